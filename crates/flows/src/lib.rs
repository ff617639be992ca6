//! The table of flows that Linux has decided about: one writer, readers in BPF programs and workers.

#[expect(dead_code, reason = "the writer and the reader come next")]
mod layout;

pub use layout::bytes;
