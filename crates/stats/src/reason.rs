//! Why a frame was dropped: the one list of names that counters, `show drops` and metrics share.

macro_rules! reasons {
    ($($variant:ident, $name:literal, $meaning:literal;)*) => {
        /// Why a frame was dropped. Every lost frame is counted under one of these.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Reason { $(#[doc = $meaning] $variant,)* }

        impl Reason {
            /// All of them, in the order of their counters.
            pub const ALL: &'static [Reason] = &[$(Reason::$variant),*];

            /// The name in `show drops` and in metrics.
            pub fn name(self) -> &'static str {
                match self { $(Reason::$variant => $name,)* }
            }

            /// The meaning, as `show drops` prints it.
            pub fn meaning(self) -> &'static str {
                match self { $(Reason::$variant => $meaning,)* }
            }
        }
    };
}

reasons! {
    EthernetShort, "ethernet_short", "shorter than an Ethernet header";
    OtherHost, "other_host", "destination MAC address of another host";
    LinkBroadcast, "link_broadcast", "unicast IP packet in a link-layer broadcast or multicast frame (RFC 1812 5.3.4)";
    Ipv4Short, "ipv4_short", "shorter than an IPv4 header";
    Ipv4Version, "ipv4_version", "IP version does not match the EtherType";
    Ipv4HeaderLength, "ipv4_header_length", "IPv4 header length below 20 bytes or longer than the packet";
    Ipv4TotalLength, "ipv4_total_length", "IPv4 total length shorter than the header or longer than the frame";
    Ipv4Checksum, "ipv4_checksum", "wrong IPv4 header checksum";
    Ipv4Source, "ipv4_source", "source address that no host can have (RFC 1812 5.3.7)";
    Ipv4Destination, "ipv4_destination", "destination address that is never forwarded";
    Ipv4Options, "ipv4_options", "IPv4 option that is not forwarded, such as source routing (RFC 7126)";
    FragmentOverrun, "fragment_overrun", "fragment that ends beyond 65,535 bytes";
    Ipv6Short, "ipv6_short", "shorter than an IPv6 header";
    Ipv6Version, "ipv6_version", "IP version does not match the EtherType";
    Ipv6PayloadLength, "ipv6_payload_length", "IPv6 payload length longer than the frame";
    Ipv6Source, "ipv6_source", "source address that no host can have (RFC 4291 2.5)";
    Ipv6Destination, "ipv6_destination", "destination address that is never forwarded";
    Ipv6Options, "ipv6_options", "hop-by-hop option that is malformed, or unknown and must not be skipped (RFC 8200 4.2)";
    TtlExceeded, "ttl_exceeded", "TTL or hop limit expired";
    NoRoute, "no_route", "no route to the destination";
    Blackhole, "blackhole", "blackhole route";
    Unreachable, "unreachable", "unreachable route";
    Prohibit, "prohibit", "prohibit route";
    ReversePath, "reverse_path", "source address fails the reverse path filter (RFC 3704)";
    Filter, "filter", "dropped by a filter rule: `brickmoon show filters` says which";
    TinyFragment, "tiny_fragment", "fragment too small to hold the headers that filter rules match (RFC 1858, 7112)";
    RateLimit, "rate_limit", "its source sends more packets a second than [filter] rate_packets allows";
    FilterNotReady, "filter_not_ready", "received before the filters of its interface were in place, or while no worker applied them";
    TooBig, "too_big", "larger than the next hop's MTU, and must not be fragmented";
    NeighborUnresolved, "neighbor_unresolved", "the next hop did not answer ARP or neighbor discovery";
    NeighborQueueFull, "neighbor_queue_full", "too many packets are waiting for the next hop's MAC address";
    InterfaceDown, "interface_down", "outgoing interface is down or has no carrier";
    NoInterface, "no_interface", "outgoing interface is not a port of brickmoon";
    SlowPathFull, "slow_path_full", "the slow path's queue is full";
    HostRefused, "host_refused", "Linux refused a packet handed to it";
    TransmitFull, "transmit_full", "the port's transmit queue is full";
    TransmitError, "transmit_error", "the port refused the frame as too short or too long, or failed to send it";
    Hook, "hook", "dropped by a hook, which gives its own reason";
    HookFailed, "hook_failed", "not seen by a hook that does not run, whose `on_failure` is \"drop\"";
    HookRefused, "hook_refused", "diverted by a hook at a stage from which it cannot go to the slow path";
    IpsecMalformed, "ipsec_malformed", "IP header that is malformed or truncated";
    IpsecFragment, "ipsec_fragment", "fragment: ESP packets are reassembled first, and transport mode takes whole packets only (RFC 4303 3.3.4)";
    IpsecNotEsp, "ipsec_not_esp", "packet without an ESP header";
    IpsecTooShort, "ipsec_short", "ESP packet without room for its header, IV, trailer and ICV, or not in whole cipher blocks";
    IpsecNoSa, "ipsec_no_sa", "no SA with this SPI and destination, or none for the policy";
    IpsecEncapsulation, "ipsec_encapsulation", "in UDP for an SA without UDP encapsulation, or not in UDP for one with it";
    IpsecReplay, "ipsec_replay", "sequence number received before, or left of the replay window";
    IpsecIntegrity, "ipsec_integrity", "wrong ICV: not from the peer, damaged, or encrypted with another key";
    IpsecPadding, "ipsec_padding", "padding that is not 1, 2, 3 and so on, or longer than the packet (RFC 4303 2.4)";
    IpsecNextHeader, "ipsec_next_header", "next header that the SA's mode does not allow, or inner packet that is malformed";
    IpsecSelector, "ipsec_selector", "inner packet outside of the SA's selectors (RFC 4301 5.2)";
    IpsecEcn, "ipsec_ecn", "congestion marked on a packet whose inner header does not support ECN (RFC 6040 4.2)";
    IpsecDummy, "ipsec_dummy", "dummy packet for traffic flow confidentiality, next header 59 (RFC 4303 2.6)";
    IpsecLifetime, "ipsec_lifetime", "the SA's hard lifetime has ended";
    IpsecSequenceOverflow, "ipsec_sequence_overflow", "all sequence numbers of the SA are used: it must be replaced";
    IpsecNoSequenceNumbers, "ipsec_no_sequence_numbers", "reserved block of sequence numbers is used up";
    IpsecNoHeadroom, "ipsec_no_headroom", "no room in front of the packet for the new headers";
    IpsecNoTailroom, "ipsec_no_tailroom", "no room behind the packet for padding and ICV: larger frame slots are needed";
    IpsecTooLong, "ipsec_too_long", "longer than 65,535 bytes with ESP";
    IpsecTooBig, "ipsec_too_big", "larger than the path MTU with ESP, and must not be fragmented";
    IpsecNoInterface, "ipsec_no_interface", "from an SA of an IPsec interface that does not exist";
    IpsecPolicy, "ipsec_policy", "an IPsec policy discards it, or wants it encrypted and it arrived in clear; or no policy of its IPsec interface is for it";
    NoMemory, "no_memory", "no free frame memory";
    Oversize, "oversize", "larger than a frame can hold";
    LinkFull, "link_full", "the link to the next app is full";
    NoOutput, "no_output", "the app has no outgoing link";
    Stopped, "stopped", "still queued when the worker stopped";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_in_order() {
        let mut names: Vec<_> = Reason::ALL.iter().map(|reason| reason.name()).collect();
        assert!(Reason::ALL.iter().enumerate().all(|(index, &reason)| reason as usize == index));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Reason::ALL.len());
    }
}
