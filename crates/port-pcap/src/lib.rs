//! Ports that read and write capture files.

#![forbid(unsafe_code)]
