//! The programs in the kernel: each is loaded, and filters give the same results there as they should.

use std::sync::Mutex;

use bm_bpf::testing;
use bm_lua::BpfFilter;

use super::*;
use crate::filter::Filter;

/// Loads one at a time, since each has a map of some size.
static ONE: Mutex<()> = Mutex::new(());

fn is_root() -> bool {
    let is_root = bm_sys::effective_user() == 0;
    if !is_root {
        println!("skipped: loading programs needs root");
    }
    is_root
}

fn options(filter: &str) -> Options {
    let BpfFilter { instructions, bytes } = BpfFilter::compile(filter).unwrap();
    Options::new(Filter::new(instructions, bytes).unwrap(), 96, 1, true)
}

/// Whether the kernel says that each frame matches.
fn matched(filter: &str, frames: &[&[u8]]) -> Vec<bool> {
    let open = open(&options(filter), &["filter_alone"], None, &WatchedProgram::nothing()).unwrap();
    let object = open.load().unwrap_or_else(|error| panic!("{filter}: {error:#}"));
    let program = object.progs_mut().find(|program| program.name() == "filter_alone").unwrap();
    let passes = |frame: &&[u8]| {
        let (verdict, _) = testing::run(&program, &testing::xdp_context(frame.len(), 1), frame, 0).unwrap();
        assert!(verdict == 1 || verdict == 2, "{verdict}");
        verdict == 2
    };
    frames.iter().map(passes).collect()
}

/// UDP from 192.0.2.2 port 1234 to 198.51.100.2 port 53, with an option in the IP header.
const UDP: [u8; 54] = [
    2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x46, 0, 0, 40, 0, 1, 0, 0, 64, 17, 0, 0, 192, 0, 2, 2, 198,
    51, 100, 2, 1, 1, 1, 0, 4, 210, 0, 53, 0, 16, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8,
];
/// TCP from 2001:db8::1 port 443 to 2001:db8::2 port 1234: SYN.
const TCP6: [u8; 74] = [
    2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 3, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, 6, 64, 0x20, 1, 0xd, 0xb8, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 1, 0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 1, 187, 4, 210, 0, 0,
    0, 0, 0, 0, 0, 0, 0x50, 2, 0, 0, 0, 0, 0, 0,
];

#[test]
fn filters_are_accepted_and_do_what_they_say() {
    let _one = ONE.lock();
    if !is_root() {
        return;
    }
    let vlan = [&UDP[..12], &[0x81, 0, 0, 5], &UDP[12..]].concat();
    let many = (0..50).map(|i| format!("192.0.1.{i}")).collect::<Vec<_>>().join(" or ");
    for (filter, expected) in [
        ("", [true, true, true]),
        ("ip", [true, false, false]),
        ("udp port 53", [true, false, false]),
        ("udp port 54", [false; 3]),
        ("src port 1234 or tcp port 443", [true, true, false]),
        ("portrange 400-500", [false, true, false]),
        ("net 192.0.2.0/24", [true, false, false]),
        ("dst host 2001:db8::2", [false, true, false]),
        ("vlan 5 and udp port 53", [false, false, true]),
        ("not vlan", [true, true, false]),
        ("ether src 02:00:00:00:00:03", [false, true, false]),
        ("udp[8] = 1", [true, false, false]),
        ("udp[8:4] = 0x01020304 and len = 54", [true, false, false]),
        ("ip[ip[0] & 15] = 0", [true, false, false]),
        ("ether[len - 1] = 8", [true, false, true]),
        ("ether[ether[14] * 4] >= 0", [false, false, true]),
        ("(1 << ether[18]) = 2 or len / ether[18] = 3", [false; 3]),
        ("ip[8] / ip[9] = 3 and ip[8] % 60 = 4", [true, false, false]),
        ("net 0.0.0.0/0 or tcp", [true, true, false]),
        ("greater 60", [false, true, false]),
        (&format!("host {many} or 192.0.2.2"), [true, false, false]),
    ] {
        assert_eq!(matched(filter, &[&UDP, &TCP6, &vlan]), expected, "{filter}");
    }
    // Whatever is read, a frame that ends before it does not match.
    for length in 14..UDP.len() {
        let ends = matched("udp port 53", &[&UDP[..length]]);
        assert_eq!(ends, [length >= 42], "{length}");
    }
}

#[test]
fn every_program_is_accepted() {
    let _one = ONE.lock();
    if !is_root() {
        return;
    }
    for filter in ["", "udp port 53", "ip[ip[0] & 15] = 0"] {
        match Tap::of_senders(&options(filter)) {
            Err(CaptureError::Refused { error, .. })
                if error.kind() == libbpf_rs::ErrorKind::PermissionDenied =>
            {
                return println!("skipped: this kernel lets no program run before another one");
            }
            tap => drop(tap.unwrap_or_else(|error| panic!("{filter}: {error}"))),
        }
    }
}
