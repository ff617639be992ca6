//! Tables as text: one `PREFIX/LENGTH [NEXT_HOP]` per line; `#` begins a comment.
//!
//! The next hop is a number from 1, an address, which is replaced by a number, or missing, which means 1.

use std::fmt;
use std::io::BufRead;
use std::net::IpAddr;
use std::str::SplitAsciiWhitespace;

use bm_wire::prefix::{Ipv4Prefix, Ipv6Prefix, NotAPrefix};

use super::{RibBuilder, RibFault};

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LineFault {
    /// The first word is not a prefix.
    Prefix {
        word: String,
        /// Why not.
        why: NotAPrefix,
    },
    /// The first word has no `/LENGTH`.
    NoLength { word: String },
    /// The second word is neither a number from 1 to 65535 nor an address.
    NextHop { word: String },
    /// There is a third word.
    TooLong { word: String },
    /// The line is no UTF-8.
    NotText,
}

impl fmt::Display for LineFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefix { word, why } => write!(f, "{word:?}: {why}"),
            Self::NoLength { word } => write!(f, "{word:?}: a prefix needs its length, as in 192.0.2.0/24"),
            Self::NextHop { word } => {
                write!(f, "{word:?}: a next hop is a number from 1 to 65535 or an address")
            }
            Self::TooLong { word } => write!(f, "{word:?}: expected only PREFIX/LENGTH [NEXT_HOP]"),
            Self::NotText => f.write_str("neither text nor an MRT dump"),
        }
    }
}

pub fn read(mut input: impl BufRead, gathered: &mut RibBuilder) -> Result<(), RibFault> {
    let mut bytes = Vec::new();
    for number in 1.. {
        bytes.clear();
        if input.read_until(b'\n', &mut bytes)? == 0 {
            break;
        }
        let line = std::str::from_utf8(&bytes).map_err(|_| RibFault::Line(number, LineFault::NotText))?;
        read_line(line, gathered).map_err(|fault| RibFault::Line(number, fault))?;
    }
    Ok(())
}

fn read_line(line: &str, gathered: &mut RibBuilder) -> Result<(), LineFault> {
    let line = line.split('#').next().unwrap_or_default();
    let mut words = line.split_ascii_whitespace();
    let Some(word) = words.next() else { return Ok(()) };
    if !word.contains('/') {
        return Err(LineFault::NoLength { word: word.into() });
    }
    let fault = |why| LineFault::Prefix { word: word.into(), why };
    if word.contains(':') {
        let prefix = word.parse::<Ipv6Prefix>().map_err(fault)?;
        let next_hop = next_hop(words, gathered)?;
        gathered.add_ipv6(prefix, next_hop);
    } else {
        let prefix = word.parse::<Ipv4Prefix>().map_err(fault)?;
        let next_hop = next_hop(words, gathered)?;
        gathered.add_ipv4(prefix, next_hop);
    }
    Ok(())
}

/// What follows the prefix: one word or nothing.
fn next_hop(mut words: SplitAsciiWhitespace<'_>, gathered: &mut RibBuilder) -> Result<u16, LineFault> {
    let Some(word) = words.next() else { return Ok(1) };
    let number = match word.parse::<u16>() {
        Ok(number) if number > 0 => Ok(number),
        _ => word.parse().map(|address: IpAddr| gathered.number(address)),
    };
    let number = number.map_err(|_| LineFault::NextHop { word: word.into() })?;
    match words.next() {
        Some(word) => Err(LineFault::TooLong { word: word.into() }),
        None => Ok(number),
    }
}
