//! What becomes of a packet by a verdict, and by a named object.

use super::expression::{number, some};
use bm_netlink::attribute::{self, Attributes};
use bm_netlink::error::Malformed;

/// Attributes of a verdict: its code, and the chain of a jump.
const VERDICT: [u16; 2] = [1, 2];
/// Verdicts with a meaning here.
mod code {
    pub const DROP: i32 = 0;
    pub const QUEUE: i32 = 3;
    pub(crate) const JUMP: i32 = -3;
    pub(crate) const GOTO: i32 = -4;
}

/// What becomes of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is accepted, or the next rule decides.
    Goes,
    /// It is dropped, or something unknown happens to it.
    Acts(&'static str),
    /// Userspace decides.
    Queue,
    /// The rules of this chain decide.
    Chain(Box<str>),
}

impl Verdict {
    /// Reads the attributes of a verdict.
    pub fn read(list: Attributes<'_>) -> Result<Self, Malformed> {
        let [verdict, chain] = some(list, VERDICT)?;
        Ok(match verdict.and_then(number).unwrap_or_default() as i32 {
            code::DROP => Self::Acts("drop"),
            code::JUMP | code::GOTO => Self::Chain(attribute::text(chain.unwrap_or_default())),
            // Its upper half has the number of the queue.
            other if other & 0xff == code::QUEUE && other > 0 => Self::Queue,
            other if other > 1 => Self::Acts("verdict"),
            // Accept, continue, break, return.
            _ => Self::Goes,
        })
    }
}

/// What a named object does to packets, by its type (`NFT_OBJECT_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Object {
    /// It counts, limits or marks the packets that it is given.
    Plain(&'static str),
    /// It concerns connections.
    Tracked(&'static str),
    /// A type of which nothing is known.
    Unknown,
}

impl Object {
    pub fn of(kind: u32) -> Self {
        match kind {
            1 => Self::Plain("counter"),
            2 => Self::Plain("quota"),
            3 => Self::Tracked("ct helper"),
            4 => Self::Plain("limit"),
            5 => Self::Tracked("ct count"),
            6 => Self::Plain("tunnel"),
            7 => Self::Tracked("ct timeout"),
            8 => Self::Plain("secmark"),
            9 => Self::Tracked("ct expectation"),
            10 => Self::Tracked("synproxy"),
            _ => Self::Unknown,
        }
    }
}
