//! Messages of Linux 6.18, without their netlink headers.

use super::*;
use crate::Update;
use proptest::prelude::*;

/// A TCP connection from 127.0.0.1 port 4001 to port 4000, its tuples.
const TCP_TUPLES: &str = "34000180 14000180 08000100 7f000001 08000200 7f000001 \
    1c000280 05000100 06000000 06000200 0fa10000 06000300 0fa00000 \
    34000280 14000180 08000100 7f000001 08000200 7f000001 \
    1c000280 05000100 06000000 06000200 0fa00000 06000300 0fa10000";
/// What a listing says of it besides.
const TCP_REST: &str = "08000300 0000000e 08000800 00000000 08000c00 83860350 08000b00 00000001 08000700 0006977f \
    30000480 2c000180 05000100 03000000 05000200 0a000000 05000300 0a000000 06000400 23000000 06000500 23000000";
/// What the event of its removal says.
const TCP_DESTROYED: &str =
    "08000c00 83860350 08000300 0000020e 08000700 0006977f 10000480 0c000180 05000100 03000000";
/// A UDP connection from ::1 port 5001 to port 5000, as listed, whose original direction has zone 7.
const UDP: &str = "0a000000 54000180 2c000180 14000300 00000000000000000000000000000001 \
    14000400 00000000000000000000000000000001 1c000280 05000100 11000000 06000200 13890000 06000300 13880000 \
    06000300 00070000 4c000280 2c000180 14000300 00000000000000000000000000000001 \
    14000400 00000000000000000000000000000001 1c000280 05000100 11000000 06000200 13880000 06000300 13890000 \
    08000300 00000008 08000800 00000000 08000c00 5286bf0e 08000b00 00000001 08000700 0000001d";

fn bytes(parts: &[&str]) -> Vec<u8> {
    let digits: Vec<_> = parts.concat().bytes().filter(|digit| *digit != b' ').collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks_exact(2).map(byte).collect()
}

fn tuple(protocol: u8, address: &str, [source_port, destination_port]: [u16; 2]) -> Tuple {
    let address = address.parse().unwrap();
    Tuple { source: address, destination: address, source_port, destination_port, protocol }
}

fn tcp() -> Connection {
    Connection {
        original: tuple(6, "127.0.0.1", [4001, 4000]),
        reply: tuple(6, "127.0.0.1", [4000, 4001]),
        zones: [0, 0],
        id: 0x8386_0350,
        status: status::SEEN_REPLY | status::ASSURED | status::CONFIRMED,
        mark: 0,
        timeout_s: Some(431_999),
        tcp_state: Some(3),
        liberal: Some(false),
        has_helper: false,
    }
}

#[test]
fn a_tcp_connection_in_a_listing() {
    let message = bytes(&["02000000", TCP_TUPLES, TCP_REST]);
    assert_eq!(Connection::read(&message), Ok(tcp()));
}

#[test]
fn a_tcp_connection_is_liberal_if_both_directions_are() {
    for (flags, liberal) in [(["2b", "2b"], true), (["23", "2b"], false), (["2b", "23"], false)] {
        let rest = TCP_REST.replacen("06000400 23", &format!("06000400 {}", flags[0]), 1);
        let rest = rest.replacen("06000500 23", &format!("06000500 {}", flags[1]), 1);
        let read = Connection::read(&bytes(&["02000000", TCP_TUPLES, &rest]));
        assert_eq!(read, Ok(Connection { liberal: Some(liberal), ..tcp() }), "{flags:?}");
    }
}

#[test]
fn the_event_of_a_removal() {
    let message = bytes(&["02000000", TCP_TUPLES, TCP_DESTROYED]);
    let expected = Connection { status: tcp().status | status::DYING, liberal: None, ..tcp() };
    assert_eq!(Connection::read(&message), Ok(expected));
}

#[test]
fn a_zone_of_one_direction() {
    let udp = Connection {
        original: tuple(17, "::1", [5001, 5000]),
        reply: tuple(17, "::1", [5000, 5001]),
        zones: [7, 0],
        id: 0x5286_bf0e,
        status: status::CONFIRMED,
        mark: 0,
        timeout_s: Some(29),
        tcp_state: None,
        liberal: None,
        has_helper: false,
    };
    assert_eq!(Connection::read(&bytes(&[UDP])), Ok(udp));
}

#[test]
fn mark_zone_of_both_directions_and_helper() {
    // CTA_ZONE 5, CTA_MARK 0x10, CTA_HELP with the name "ftp".
    let more = "06001200 00050000 08000800 00000010 0c000580 08000100 66747000";
    let read = Connection::read(&bytes(&["02000000", TCP_TUPLES, TCP_REST, more]));
    assert_eq!(read, Ok(Connection { zones: [5, 5], mark: 16, has_helper: true, ..tcp() }));
}

#[test]
fn what_is_missing_is_an_error() {
    let missing = |parts: &[&str], kind| {
        assert_eq!(Connection::read(&bytes(parts)), Err(Malformed::Missing { kind }), "{parts:?}");
    };
    let (original, reply) = TCP_TUPLES.split_once("34000280").unwrap();
    let reply = format!("34000280{reply}");
    missing(&["02000000", &reply, TCP_REST], kinds::TUPLE_ORIGINAL);
    missing(&["02000000", original, TCP_REST], kinds::TUPLE_REPLY);
    missing(&["02000000", TCP_TUPLES], kinds::ID);
    missing(&["02000000", TCP_TUPLES, "08000c00 83860350"], kinds::STATUS);
    // A tuple without addresses, one without a protocol, one whose protocol has no number.
    missing(&["02000000", "20000180 1c000280 05000100 06000000 06000200 0fa10000 06000300 0fa00000"], 1);
    missing(&["02000000", "18000180 14000180 08000100 7f000001 08000200 7f000001"], 2);
    missing(
        &["02000000", "24000180 14000180 08000100 7f000001 08000200 7f000001 0c000280 06000200 0fa10000"],
        1,
    );
    // No destination; and one of the other family.
    missing(&["02000000", "10000180 0c000180 08000100 7f000001"], 2);
    let mixed = "24000180 20000180 08000100 7f000001 14000400 00000000000000000000000000000001";
    missing(&["02000000", mixed], 3);
}

#[test]
fn lengths_that_do_not_fit_are_errors() {
    for (length, body) in [(0, ""), (3, "020000")] {
        let short = Err(Malformed::Header { kind: message::NEW, length });
        assert_eq!(Connection::read(&bytes(&[body])), short);
    }
    let value = |kind, length, body: &str| {
        assert_eq!(Connection::read(&bytes(&["02000000", body])), Err(Malformed::Value { kind, length }));
    };
    value(kinds::STATUS, 2, "06000300 00000000");
    value(kinds::MARK, 0, "04000800");
    value(kinds::ZONE, 4, "08001200 00000005");
    // An IPv4 address of 16 bytes, a port of one, a protocol of two; flags of one byte.
    value(1, 16, "1c000180 18000180 14000100 00000000000000000000000000000001");
    value(2, 1, "10000180 0c000280 05000200 01000000");
    value(1, 2, "10000180 0c000280 06000100 06000000");
    value(4, 1, "10000480 0c000180 05000400 23000000");
    let claims = bytes(&["02000000", "34000180 14000180"]);
    assert_eq!(Connection::read(&claims), Err(Malformed::Attribute { length: 0x34, room: 8 }));
}

#[test]
fn an_update_as_the_kernel_reads_it() {
    let (original, _) = TCP_TUPLES.split_once("34000280").unwrap();
    let mut update =
        Update { original: tcp().original, zone: 0, timeout_s: None, liberal: false, status: None };
    let written = |update: &Update| {
        let mut message = Vec::new();
        update.write(&mut message);
        message
    };
    assert_eq!(written(&update), bytes(&["02000000", original]));
    (update.zone, update.timeout_s, update.status, update.liberal) = (7, Some(3600), Some(14), true);
    let rest = "06001200 00070000 08000700 00000e10 08000300 0000000e \
        18000480 14000180 06000400 08280000 06000500 08280000";
    assert_eq!(written(&update), bytes(&["02000000", original, rest]));
}

proptest! {
    #[test]
    fn random_bytes_cause_no_panic(body in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Connection::read(&body);
    }

    #[test]
    fn changed_bytes_cause_no_panic(
        ipv6: bool,
        changes in proptest::collection::vec((0..300_usize, any::<u8>()), 1..6),
        end in 0..300_usize,
    ) {
        let mut message = if ipv6 { bytes(&[UDP]) } else { bytes(&["02000000", TCP_TUPLES, TCP_REST]) };
        for (at, byte) in changes {
            let length = message.len();
            message[at % length] = byte;
        }
        message.truncate(end);
        let _ = Connection::read(&message);
    }

    #[test]
    fn a_tuple_is_read_as_it_was_written(
        ipv6: bool,
        addresses: [u128; 2],
        ports: [u16; 2],
        protocol: u8,
    ) {
        let address = |bits: u128| match ipv6 {
            true => std::net::IpAddr::V6(bits.into()),
            false => std::net::IpAddr::V4((bits as u32).into()),
        };
        let [source, destination] = addresses.map(address);
        let [source_port, destination_port] = ports;
        let tuple = Tuple { source, destination, source_port, destination_port, protocol };
        let mut message = Vec::new();
        tuple.write(kinds::TUPLE_ORIGINAL, &mut message);
        let value = Attributes::new(&message).find(kinds::TUPLE_ORIGINAL).unwrap().unwrap();
        prop_assert_eq!(Tuple::read(value), Ok((tuple, None)));
    }
}
