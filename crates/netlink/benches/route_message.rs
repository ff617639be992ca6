//! What does a dumped route cost in our reader, in netlink-packet-route, and in the mirror?
//!
//! No kernel is needed: the pieces of a dump are made here, as the kernel would send them. Turns are
//! taken in order, and the least and the median of each are printed, in nanoseconds of core a route:
//! time in which the machine did something else does not count.

#![allow(clippy::unwrap_used)]

use bm_netlink::{Message, Mirror};
use netlink_packet_core::NetlinkMessage;
use netlink_packet_route::RouteNetlinkMessage;
use std::hint::black_box;

const ROUTES: u32 = 500_000;
/// Messages in a piece of a dump: the kernel makes pieces of at most 32 KiB.
const PIECE: usize = 512;
const TURNS: usize = 7;

/// `198.51.100.0/24 via 192.0.2.2 dev 3 proto bgp metric 20` of table main, as part of a dump.
const ROUTE: [u8; 68] = [
    68, 0, 0, 0, 24, 0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, // netlink header: new route, of several
    2, 24, 0, 0, 254, 186, 0, 1, 0, 0, 0, 0, // rtmsg
    8, 0, 15, 0, 254, 0, 0, 0, // table
    8, 0, 1, 0, 198, 51, 100, 0, // destination
    8, 0, 6, 0, 20, 0, 0, 0, // metric
    8, 0, 5, 0, 192, 0, 2, 2, // gateway
    8, 0, 4, 0, 3, 0, 0, 0, // interface
];

fn pieces() -> Vec<Vec<u8>> {
    let message = |index: u32| {
        let mut message = ROUTE;
        message[40..43].copy_from_slice(&(0x0b_0000 + index * 7).to_be_bytes()[1..]);
        message[59] = 2 + (index % 20) as u8;
        message
    };
    let all: Vec<_> = (0..ROUTES).map(message).collect();
    all.chunks(PIECE).map(<[_]>::concat).collect()
}

fn ours(pieces: &[Vec<u8>]) {
    for piece in pieces {
        black_box(Message::read_all(piece).unwrap());
    }
}

fn library(pieces: &[Vec<u8>]) {
    for message in pieces.iter().flat_map(|piece| piece.chunks_exact(ROUTE.len())) {
        black_box(NetlinkMessage::<RouteNetlinkMessage>::deserialize(message).unwrap());
    }
}

fn mirror(pieces: &[Vec<u8>]) {
    let mut mirror = Mirror::default();
    for piece in pieces {
        Message::read_all(piece).unwrap().into_iter().for_each(|message| mirror.apply(message));
        mirror.take_changes();
    }
    black_box(mirror);
}

/// One way to do it.
type Rival = (&'static str, fn(&[Vec<u8>]));

/// Time that this thread has had a core, in nanoseconds.
fn core_ns() -> u64 {
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    schedstat.split(' ').next().unwrap().parse().unwrap()
}

fn main() {
    let pieces = pieces();
    let rivals: [Rival; 3] =
        [("own reader", ours), ("netlink-packet-route", library), ("own reader and mirror", mirror)];
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..TURNS {
        for ((_, run), times) in rivals.iter().zip(&mut times) {
            let start = core_ns();
            run(&pieces);
            times.push((core_ns() - start) as f64 / f64::from(ROUTES));
        }
    }
    for ((name, _), times) in rivals.iter().zip(&mut times) {
        times.sort_by(f64::total_cmp);
        println!("{name:24} min {:6.1} ns  median {:6.1} ns", times[0], times[TURNS / 2]);
    }
}
