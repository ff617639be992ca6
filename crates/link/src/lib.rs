//! Rings of frames between two apps.
