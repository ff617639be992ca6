//! What the commands print: one screen or verb a file.

#![forbid(unsafe_code)]
