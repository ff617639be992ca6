//! Forwarding information bases: flat arrays, one writer, many readers, no locks.
