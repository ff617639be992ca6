//! Properties for all bytes: no view panics, and what is emitted is read back unchanged.

use bm_wire::checksum::{self, Pseudo};
use bm_wire::ethernet::Ethernet;
use bm_wire::flow::{self, Policy};
use bm_wire::icmp::{self, Icmp};
use bm_wire::icmpv6::{self, Icmpv6};
use bm_wire::ipv4::{Ipv4, Ipv4Header, option};
use bm_wire::ipv6::{Ipv6, Ipv6Header};
use bm_wire::tcp::Tcp;
use bm_wire::udp::{self, Udp};
use bm_wire::{Mac, offload};
use proptest::collection::vec;
use proptest::prelude::*;

const POLICIES: [Policy; 3] = [Policy::Addresses, Policy::Ports, Policy::Inner];

/// Calls all functions that read or change a frame.
fn use_ethernet(mut bytes: Vec<u8>) {
    if let Ok(mut frame) = Ethernet::parse(&mut bytes[..]) {
        let _ = (frame.destination(), frame.source(), frame.tag(), frame.network(), frame.payload().len());
        frame.set_destination(Mac::BROADCAST);
        frame.payload_mut().reverse();
    }
}

fn use_ipv4(mut bytes: Vec<u8>, buffer: &mut [u8]) {
    let sender = icmp::Sender { source: 1, ttl: 64, id: 2 };
    for ip in [Ipv4::parse(&bytes[..]), Ipv4::parse_quoted(&bytes[..])].into_iter().flatten() {
        let _ = (ip.repr(), ip.checksum_ok(), ip.overruns(), ip.packet().len(), ip.payload().len());
        option::Options::new(ip.options()).for_each(|option| assert!(option.is_err() || option.is_ok()));
        option::copied_into_fragments(ip.options(), &mut [0; 40]);
        let _ = icmp::may_answer(&ip, false);
        if let Ok(length) = icmp::destination_unreachable(4, 1280).emit(&sender, &ip, buffer) {
            assert!(length <= icmp::ERROR_LEN_MAX);
            let error = Ipv4::parse(&buffer[..length]).expect("what was emitted can be read");
            assert!(error.checksum_ok() && Icmp::parse(error.payload()).expect("so can this").checksum_ok());
        }
        if let Ok(message) = Icmp::parse(ip.payload()) {
            let _ = (message.is_error(), message.checksum_ok(), message.id(), message.data().len());
            let _ = icmp::echo_reply(&sender, &ip, &message, buffer);
        }
        let _ = POLICIES.map(|policy| flow::ipv4(&ip, policy).hash(3));
    }
    if let Ok(mut ip) = Ipv4::parse(&mut bytes[..]) {
        ip.set_tos(9);
        ip.set_ttl(9);
        ip.fill_checksum();
        ip.decrement_ttl();
        assert!(ip.checksum_ok());
        ip.options_mut().fill(0);
        ip.payload_mut().fill(0);
    }
}

fn use_ipv6(mut bytes: Vec<u8>, buffer: &mut [u8]) {
    let sender = icmpv6::Sender { source: 1, hop_limit: 64 };
    for ip in [Ipv6::parse(&bytes[..]), Ipv6::parse_quoted(&bytes[..])].into_iter().flatten() {
        let _ = (ip.repr(), ip.upper(), ip.payload().len());
        for extension in ip.extensions().flatten() {
            let _ = (extension.next_header(), extension.routing(), extension.fragment());
            let _ = extension.options().count();
        }
        let problem = icmpv6::parameter_problem(icmpv6::problem::OPTION, u32::from(bytes[6]));
        let _ = icmpv6::may_answer(&ip, &problem, true);
        if let Ok(length) = problem.emit(&sender, &ip, buffer) {
            assert!(length <= icmpv6::ERROR_LEN_MAX);
            let error = Ipv6::parse(&buffer[..length]).expect("what was emitted can be read");
            let message = Icmpv6::parse(error.payload()).expect("so can this");
            assert!(message.checksum_ok(&error.pseudo()));
        }
        if let Ok(message) = Icmpv6::parse(ip.payload()) {
            let _ = (message.is_error(), message.id(), message.data().len());
            let _ = icmpv6::echo_reply(&sender, &ip, &message, buffer);
        }
        let _ = POLICIES.map(|policy| flow::ipv6(&ip, policy).hash(3));
    }
    if let Ok(mut ip) = Ipv6::parse(&mut bytes[..]) {
        ip.set_hop_limit(9);
        ip.decrement_hop_limit();
        ip.set_flow_label(u32::MAX);
        ip.payload_mut().fill(0);
    }
}

fn use_layer_4(mut bytes: Vec<u8>, pseudo: &Pseudo) {
    if let Ok(segment) = Tcp::parse(&bytes[..]) {
        let _ = (segment.options().len(), segment.payload().len(), segment.checksum_ok(pseudo));
    }
    if let Ok(mut datagram) = Udp::parse(&mut bytes[..]) {
        let _ = (datagram.payload().len(), datagram.checksum_ok(pseudo));
        datagram.fill_checksum(pseudo);
        assert!(datagram.checksum_ok(pseudo));
    }
}

/// Packets that pass the first checks: a version, a plausible length, a protocol with a parser.
fn plausible() -> impl Strategy<Value = Vec<u8>> {
    let protocol = prop::sample::select(vec![1, 4, 6, 17, 41, 47, 50, 51, 58]);
    (prop_oneof![0x45..0x50u8, Just(0x60)], protocol, inner(), vec(any::<u8>(), 40)).prop_map(
        |(first, protocol, payload, head)| match first {
            0x60 => ipv6(if payload.len() % 8 == 0 { 60 } else { protocol }, &payload),
            first => ipv4(first, protocol, &head, &payload),
        },
    )
}

fn ipv4(first: u8, protocol: u8, head: &[u8], payload: &[u8]) -> Vec<u8> {
    let header_len = usize::from(first & 0x0f) * 4;
    let length = ((header_len + payload.len()) as u16).to_be_bytes();
    // An odd first byte of options: a fragment.
    let fragment = if head[0] % 4 == 1 { head[1] } else { 0 };
    let mut bytes =
        vec![first, 0, length[0], length[1], 0, 0, 0, fragment, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0];
    bytes.extend([0, 2]);
    bytes.extend(&head[..header_len - 20]);
    bytes.extend(payload);
    bytes
}

fn ipv6(next_header: u8, payload: &[u8]) -> Vec<u8> {
    let header = Ipv6Header { next_header, payload_len: payload.len() as u16, ..Default::default() };
    let mut bytes = vec![0; 40];
    header.emit(&mut bytes).expect("forty bytes are there");
    bytes.extend(payload);
    bytes
}

/// Payloads: bytes, a chain of extension headers, an ICMP error, or a tunnel.
fn inner() -> impl Strategy<Value = Vec<u8>> {
    let bytes = || vec(any::<u8>(), 0..100);
    let kind = prop::sample::select(vec![0, 6, 17, 43, 44, 51, 58, 60, 60, 60, 60, 60]);
    let chain = vec((kind, 0..2u8, any::<[u8; 6]>()), 1..16).prop_map(|headers| {
        headers.into_iter().flat_map(|(next, units, rest)| [&[next, units], &rest[..]].concat()).collect()
    });
    let ip = (any::<bool>(), bytes())
        .prop_map(|(six, payload)| if six { ipv6(58, &payload) } else { ipv4(0x45, 1, &[0; 40], &payload) });
    let behind = (0..13u8, any::<[u8; 3]>(), any::<[u8; 4]>(), ip, any::<bool>()).prop_map(
        |(kind, [flags, a, b], rest, ip, gre)| {
            let head = if gre { [flags & 0xb0, 0, 8, 0] } else { [kind, 0, a, b] };
            [&head[..], &rest, &ip].concat()
        },
    );
    prop_oneof![bytes(), chain, behind]
}

fn ipv4_header() -> impl Strategy<Value = Ipv4Header> {
    (any::<[u8; 3]>(), any::<[bool; 2]>(), any::<[u16; 2]>(), any::<[u32; 2]>()).prop_map(
        |([tos, ttl, protocol], [dont_fragment, more_fragments], [id, offset], [source, destination])| {
            Ipv4Header {
                tos,
                ttl,
                protocol,
                dont_fragment,
                more_fragments,
                id,
                fragment_offset: offset & !7,
                source,
                destination,
                total_len: 0,
            }
        },
    )
}

fn ipv6_header() -> impl Strategy<Value = Ipv6Header> {
    (any::<[u8; 3]>(), 0..1u32 << 20, any::<[u128; 2]>()).prop_map(
        |([traffic_class, next_header, hop_limit], flow_label, [source, destination])| Ipv6Header {
            traffic_class,
            next_header,
            hop_limit,
            flow_label,
            source,
            destination,
            payload_len: 0,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_panics(bytes in prop_oneof![vec(any::<u8>(), 0..120), plausible()], room in 0..1300usize) {
        let mut buffer = vec![0; room];
        use_ethernet(bytes.clone());
        use_ipv4(bytes.clone(), &mut buffer);
        use_ipv6(bytes.clone(), &mut buffer);
        use_layer_4(bytes.clone(), &Pseudo::V4 { source: 1, destination: 2 });
        use_layer_4(bytes.clone(), &Pseudo::V6 { source: 1, destination: 2 });
        offload::complete_partial(&mut bytes.clone());
    }

    #[test]
    fn builders_report_missing_room(room in 0..100usize, data in vec(any::<u8>(), 0..40)) {
        let mut buffer = vec![0; room];
        let fits = |length: usize, done: Result<usize, bm_wire::NoRoom>| match done {
            Ok(written) => written == length && length <= room,
            Err(no) => no.needed == length && no.room == room && length > room,
        };
        let (v4, v6) = (icmp::Sender { source: 1, ttl: 2, id: 3 }, icmpv6::Sender { source: 1, hop_limit: 2 });
        prop_assert!(fits(28 + data.len(), icmp::echo_request(&v4, 9, 1, 2, &data, &mut buffer)));
        prop_assert!(fits(48 + data.len(), icmpv6::echo_request(&v6, 9, 1, 2, &data, &mut buffer)));
        let pseudo = Pseudo::V4 { source: 1, destination: 2 };
        prop_assert!(fits(8 + data.len(), udp::emit(&pseudo, 1, 2, &data, &mut buffer)));
        prop_assert!(fits(20, Ipv4Header::default().emit(&mut buffer)));
        prop_assert!(fits(40, Ipv6Header::default().emit(&mut buffer)));
    }

    #[test]
    fn ipv4_reads_what_it_emits(header in ipv4_header(), options in vec(any::<u8>(), 0..41), payload in 0..50usize) {
        let header_len = 20 + options.len().next_multiple_of(4);
        let header = Ipv4Header { total_len: (header_len + payload) as u16, ..header };
        let mut bytes = vec![0; header_len + payload + 7];
        prop_assert_eq!(header.emit_with_options(&options, &mut bytes), Ok(header_len));
        let ip = Ipv4::parse(bytes).expect("what was emitted can be read");
        prop_assert!(ip.checksum_ok());
        prop_assert_eq!(ip.repr(), header);
        prop_assert_eq!(&ip.options()[..options.len()], &options[..]);
        prop_assert_eq!(ip.payload().len(), payload);
    }

    #[test]
    fn ipv6_reads_what_it_emits(header in ipv6_header(), payload in 0..50u16) {
        let header = Ipv6Header { payload_len: payload, ..header };
        let mut bytes = vec![0; 40 + usize::from(payload) + 7];
        prop_assert_eq!(header.emit(&mut bytes), Ok(40));
        let ip = Ipv6::parse(bytes).expect("what was emitted can be read");
        prop_assert_eq!(ip.repr(), header);
        prop_assert_eq!(ip.payload().len(), usize::from(payload));
    }

    #[test]
    fn mac_addresses_read_what_they_write(mac: [u8; 6]) {
        let mac = Mac(mac);
        prop_assert_eq!(mac.to_string().parse(), Ok(mac));
    }

    #[test]
    fn an_updated_checksum_is_the_full_sum(mut bytes in vec(any::<u8>(), 6..80), at: prop::sample::Index, new: u32) {
        // A constant bit keeps the sum from being zero, as in every header.
        bytes[0] |= 1;
        let at = 2 + at.index((bytes.len() - 4) / 2) * 2;
        let before = checksum::checksum(&bytes);
        if at + 4 <= bytes.len() {
            let old = u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
            bytes[at..at + 4].copy_from_slice(&new.to_be_bytes());
            prop_assert_eq!(checksum::update32(before, old, new), checksum::checksum(&bytes));
        }
    }
}
