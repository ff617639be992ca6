//! The router's web page, and who may use it.
//!
//! ```text
//! browser ── GET / ───────────► Guard: which host was asked? ─► page.html, page.css, page.js: nothing about the router
//!         ── GET /v1/ports .. ► Guard: which token came?     ─► the API's read-only paths
//! ```
//!
//! The page needs nothing from elsewhere, and its script only reads. This crate opens no socket and answers no request:
//! the binary does (`crates/brickmoon/src/serve/web.rs`), as is decided here.

#![forbid(unsafe_code)]

mod guard;
mod page;
mod token;

pub use guard::{Guard, Refusal};
pub use page::{FILES, File, HEADERS};
pub use token::{Token, TokenError};
