//! `brickmoon top`: ports, workers, drops and more with rates, full screen.
//!
//! ```text
//! thread bm-top-poll ── Get: GET /v1/ports .. ──► daemon or Lua program
//!        │ Sample or why not
//!        ▼
//! run: keys ─► Screen ─► Model (two samples: rates, histories) ─► panels ─► lines ─► ratatui ─► terminal
//!                                                                             └─► text, JSON (--once)
//! ```
//!
//! It only reads, and opens no socket: the caller passes a [`Get`]. A daemon that hangs or is restarted never stops the
//! screen, because requests are made on another thread.

#![forbid(unsafe_code)]

mod history;
mod model;
mod number;
mod once;
mod panel;
mod panels;
mod run;
mod sample;
mod screen;
mod terminal;
mod view;

pub use once::once;
pub use run::{Options, run};
pub use sample::{Get, Reply};
pub use view::View;
