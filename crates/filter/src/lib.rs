//! Packet filters: rules as users write them, and a tree to find the first rule that matches.
//!
//! ```text
//! [[filter.rule]] ─► Rule ─► Tree::grow ─► words, flat rules ─┬─► bpf/rules.h: the same search in the kernel
//!                                                             └─► Tree::find: here, for workers and tests
//! ```
//!
//! The first rule that matches decides. A tree of cuts leaves few rules to compare: each inner node uses up to eight
//! bits of one field and has a child for each of their values, so a table of 10,000 rules is two or three loads deep.
//! A rule is in every leaf in which it could match, except after a rule that always matches there. Up to 512 rules are
//! also bit vectors ([`Vectors`]), which workers use for the packets that most are.
//!
//! Absent on purpose: packets (the caller makes the [`Key`]), counters, and any state: reading a tree needs only its
//! two arrays, so the kernel can do it.

#![deny(unsafe_code)]

mod grow;
mod key;
mod node;
mod rule;
mod set;
mod tree;
mod vectors;

pub use key::{AnyAddress, EXTENSIONS, Key, Kind, TOGETHER, WORDS};
pub use node::ROOM_WORDS;
pub use rule::{Action, AnyPrefix, Flat, NoPrefix, Ports, ROOM_RULES, Rule, UNMATCHED};
pub use set::{COUNTERS, Filters, Rate, SOURCES, TICKS_A_NANOSECOND};
pub use tree::{TooMany, Tree};
#[cfg(target_arch = "x86_64")]
pub use vectors::{FIRST_WORD, Words};
pub use vectors::{Header, Matches, Vectors, VectorsOn};
