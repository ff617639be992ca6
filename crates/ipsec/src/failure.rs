//! Why a packet could not be encrypted or decrypted.

use std::fmt;

macro_rules! failures {
    ($($variant:ident, $name:literal, $meaning:literal;)*) => {
        /// Why a packet could not be encrypted or decrypted: each reason has a name, under which it is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Failure { $(#[doc = $meaning] $variant,)* }

        impl Failure {
            /// All of them.
            pub const ALL: &'static [Failure] = &[$(Failure::$variant),*];

            /// The name of its counter.
            pub fn name(self) -> &'static str {
                match self { $(Failure::$variant => $name,)* }
            }

            /// What it means.
            pub fn meaning(self) -> &'static str {
                match self { $(Failure::$variant => $meaning,)* }
            }
        }
    };
}

impl Failure {
    /// Whether only the peer can have sent the packet: its ICV was correct.
    pub fn is_of_peer(self) -> bool {
        matches!(self, Self::Padding | Self::NextHeader | Self::Selector | Self::Ecn | Self::Dummy)
    }
}

failures! {
    Malformed, "ipsec_malformed", "IP header that is malformed or truncated";
    Fragment, "ipsec_fragment", "fragment: ESP packets are reassembled first, and transport mode takes whole packets only (RFC 4303 3.3.4)";
    NotEsp, "ipsec_not_esp", "packet without an ESP header";
    TooShort, "ipsec_short", "ESP packet without room for its header, IV, trailer and ICV, or not in whole cipher blocks";
    NoSa, "ipsec_no_sa", "no SA with this SPI and destination, or none for the policy";
    Encapsulation, "ipsec_encapsulation", "in UDP for an SA without UDP encapsulation, or not in UDP for one with it";
    Replay, "ipsec_replay", "sequence number received before, or left of the replay window";
    Integrity, "ipsec_integrity", "wrong ICV: not from the peer, damaged, or encrypted with another key";
    Padding, "ipsec_padding", "padding that is not 1, 2, 3 and so on, or longer than the packet (RFC 4303 2.4)";
    NextHeader, "ipsec_next_header", "next header that the SA's mode does not allow, or inner packet that is malformed";
    Selector, "ipsec_selector", "inner packet outside of the SA's selectors (RFC 4301 5.2)";
    Ecn, "ipsec_ecn", "congestion marked on a packet whose inner header does not support ECN (RFC 6040 4.2)";
    Dummy, "ipsec_dummy", "dummy packet for traffic flow confidentiality, next header 59 (RFC 4303 2.6)";
    Lifetime, "ipsec_lifetime", "the SA's hard lifetime has ended";
    SequenceOverflow, "ipsec_sequence_overflow", "all sequence numbers of the SA are used: it must be replaced";
    NoSequenceNumbers, "ipsec_no_sequence_numbers", "reserved block of sequence numbers is used up";
    NoHeadroom, "ipsec_no_headroom", "no room in front of the packet for the new headers";
    NoTailroom, "ipsec_no_tailroom", "no room behind the packet for padding and ICV: larger frame slots are needed";
    TooLong, "ipsec_too_long", "longer than 65,535 bytes with ESP";
    TooBig, "ipsec_too_big", "larger than the path MTU with ESP, and must not be fragmented";
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.meaning())
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = Failure::ALL.iter().map(|failure| failure.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Failure::ALL.len());
        assert!(names.iter().all(|name| name.starts_with("ipsec_")));
    }
}
