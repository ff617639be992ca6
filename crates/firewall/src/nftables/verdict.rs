//! What becomes of a packet by a verdict, and by a named object.

use super::attributes::{number, some};
use bm_netlink::attribute::{self, Attributes};
use bm_netlink::error::Malformed;

/// Attributes of a verdict: its code, and the chain of a jump.
const VERDICT: [u16; 2] = [1, 2];
/// Verdicts with a meaning here.
mod code {
    pub const DROP: i32 = 0;
    pub const ACCEPT: i32 = 1;
    pub const QUEUE: i32 = 3;
    pub(crate) const JUMP: i32 = -3;
    pub(crate) const GOTO: i32 = -4;
    pub const RETURN: i32 = -5;
}

/// What becomes of a packet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// The next statement or rule decides.
    Continue,
    /// The base chain accepts it.
    Accept,
    /// The chain that led here decides, or the policy.
    Return,
    Drop,
    /// Userspace decides.
    Queue,
    /// The rules of this chain decide, and then the next rule.
    Jump(Box<str>),
    /// The rules of this chain decide, instead of those of this one.
    Goto(Box<str>),
    Unknown,
}

impl Verdict {
    /// Reads the attributes of a verdict.
    pub fn read(list: Attributes<'_>) -> Result<Self, Malformed> {
        let [verdict, chain] = some(list, VERDICT)?;
        Ok(match verdict.and_then(number).unwrap_or_default() as i32 {
            code::DROP => Self::Drop,
            code::ACCEPT => Self::Accept,
            code::RETURN => Self::Return,
            code::JUMP => Self::Jump(attribute::text(chain.unwrap_or_default())),
            code::GOTO => Self::Goto(attribute::text(chain.unwrap_or_default())),
            // Its upper half has the number of the queue.
            other if other & 0xff == code::QUEUE && other > 0 => Self::Queue,
            other if other > 0 => Self::Unknown,
            // Continue, break.
            _ => Self::Continue,
        })
    }

    /// Its effect on the packet in nft's words, if it has one that is not another rule's.
    pub(crate) fn effect(&self) -> Option<&'static str> {
        match self {
            Self::Drop => Some("drop"),
            Self::Queue => Some("queue"),
            Self::Unknown => Some("verdict"),
            _ => None,
        }
    }

    /// The chain that it leads to.
    pub(crate) fn chain(&self) -> Option<&str> {
        match self {
            Self::Jump(chain) | Self::Goto(chain) => Some(chain),
            _ => None,
        }
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
