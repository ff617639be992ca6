//! ESP (RFC 4303): encryption and decryption of IP packets, with the databases of RFC 4301 that say which packets.
//!
//! ```text
//!                 Policies::find                 SaTable::find                Outbound::encrypt
//! IP packet ────► discard · bypass · protect ──► by SPI and destination ────► headers, padding, cipher ──► ESP packet
//!
//!                 locate                         SaTable::find                Inbound::decrypt
//! ESP packet ───► ESP · IKE · keepalive ───────► by SPI and destination ────► replay, ICV, padding, selectors ──► IP packet
//! ```
//!
//! All of it is functions of packets, keys and time: a packet is a [`Buffer`] with free bytes in front of and behind
//! it, in which it is encrypted and decrypted in place; time is an argument in nanoseconds; sequence numbers come from a
//! [`Block`] that no one else has. Every packet that cannot be handled has a named [`Failure`].
//!
//! Absent on purpose: sockets, devices, tables of the kernel, negotiation of keys, threads, and allocation for a packet.

mod bare;
mod buffer;
mod choice;
mod cipher;
mod decrypt;
mod ecn;
mod encrypt;
mod failure;
mod header;
mod key;
mod library;
mod lifetime;
mod locate;
mod mark;
mod multi;
mod payload;
mod policy;
mod problem;
mod replay;
mod sa;
mod sa_list;
mod secret;
mod selector;
mod sequence;
mod suite;
mod table;
mod template;
mod too_big;
mod wiped;

pub use bare::Bare;
pub use buffer::Buffer;
pub use choice::library;
pub use decrypt::Inbound;
pub use encrypt::Outbound;
pub use failure::Failure;
pub use key::{key, key_of_quoted_reply};
pub use library::{Library, Manager};
pub use lifetime::{Expiry, Limit, Limits, SaUsage};
pub use locate::{Esp, Located, locate, names_esp};
pub use mark::Mark;
pub use multi::{BURST, Lanes};
pub use payload::{FRONT, KEY, PayloadReceiver, PayloadSender, Resync, back};
pub use policy::{Action, Policies, Policy};
pub use problem::{PATH_MTU_MIN, Problem, What, problems};
pub use replay::WINDOW_MAX;
pub use sa::{Df, Direction, Dscp, Ecn, Mode, Sa, SaId, UdpPorts};
pub use sa_list::SaList;
pub use secret::{NotHex, Secret};
pub use selector::Selector;
pub use sequence::{Block, Numbers, ReturnedNumbers, UsedUp};
pub use suite::{Suite, UnknownSuite};
pub use table::{DuplicateSa, SaTable};
pub use template::Template;
pub use too_big::TooBig;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
