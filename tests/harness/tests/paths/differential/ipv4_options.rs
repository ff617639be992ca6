//! Group A, checks 22 to 25: valid and broken IP options (RFC 791 3.1, RFC 1812 5.2.4.1 and 5.3.13, RFC 7126).

use bm_tests::case::Case;
use bm_tests::lab::Side;
use bm_tests::packet::{Ip4, Quote, error4, parameter_problem4};

const HOST: &str = "192.0.2.2";
const FAR: &str = "10.9.9.9";
const ROUTER: &str = "192.0.2.1";
/// The router's address on the link to the sink, which it records in options.
const OUT: [u8; 4] = [198, 51, 100, 1];

fn with_options(options: &[u8]) -> Ip4 {
    Ip4::udp(HOST, FAR, 20).options(options)
}

pub fn cases() -> Vec<Case> {
    [unchanged(), record_route(), timestamps(), source_routes(), broken()].concat()
}

/// Sends one option and expects another after the hop.
fn becomes(case: Case, sent: &[u8], out: &[u8]) -> Case {
    let out = with_options(out).ttl(63).bytes();
    case.sends(with_options(sent)).expects(Side::Snk, Side::Snk.to_neighbor(2, &out))
}

/// Sends an option and expects Parameter Problem at this byte of the header.
fn refused(case: Case, options: &[u8], pointer: u8) -> Case {
    case.answers(with_options(options), |sent| parameter_problem4(ROUTER, pointer, sent))
}

fn unchanged() -> Vec<Case> {
    let pass = |check, name, options: &[&[u8]]| {
        options.iter().fold(Case::new(check, name), |case, options| case.passes(with_options(options)))
    };
    vec![
        pass(
            22,
            "unknown-options",
            &[&[0x9e, 4, 1, 2], &[0x1e, 4, 3, 4], &[0x5e, 8, 1, 2, 3, 4, 5, 6], &[0xde, 3, 9], &[0x9e, 2]],
        ),
        pass(22, "no-operations", &[&[1, 1, 1, 1], &[1, 1, 1, 0], &[0, 0, 0, 0]]),
        pass(22, "forty-bytes-of-options", &[&[1; 40]]),
        pass(22, "security-and-stream", &[&[130, 11, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[136, 4, 1, 2]]),
        pass(25, "router-alert", &[&[148, 4, 0, 0]]),
        becomes(Case::new(22, "bytes-behind-the-end-of-the-list"), &[1, 0, 7, 7], &[1, 0, 0, 0]),
    ]
}

fn record_route() -> Vec<Case> {
    let [a, b, c, d] = OUT;
    let [full, one_left, odd] =
        ["record-route-full", "record-route", "record-route-odd-pointer"].map(|name| Case::new(23, name));
    let before_room = [7, 11, 4, 0, 0, 0, 0, 0, 0, 0, 0];
    let after_room = [7, 11, 8, a, b, c, d, 0, 0, 0, 0];
    let one_left = becomes(one_left, &before_room, &after_room);
    let one_left = becomes(one_left, &[7, 7, 4, 0, 0, 0, 0], &[7, 7, 8, a, b, c, d]);
    let overrun = refused(Case::new(23, "record-route-pointer-overruns"), &[7, 7, 5, 0, 0, 0, 0], 22);
    let overrun = refused(overrun, &[7, 7, 7, 0, 0, 0, 0], 22);
    let low = refused(Case::new(23, "record-route-pointer-too-low"), &[7, 7, 3, 0, 0, 0, 0], 22);
    let low = refused(low, &[7, 7, 0, 0, 0, 0, 0], 22);
    vec![
        one_left,
        full.passes(with_options(&[7, 7, 8, 1, 2, 3, 4])).passes(with_options(&[7, 7, 255, 1, 2, 3, 4])),
        becomes(odd, &[7, 11, 5, 9, 0, 0, 0, 0, 0, 0, 0], &[7, 11, 9, 9, a, b, c, d, 0, 0, 0]),
        overrun,
        low,
        refused(Case::new(23, "record-route-too-short"), &[7, 2, 1, 1], 21),
        refused(Case::new(23, "record-route-past-the-header"), &[7, 8, 4, 0], 20),
        two_record_routes(),
    ]
}

/// Two options of which the second is refused.
fn two_record_routes() -> Case {
    let first = [7, 7, 8, 1, 2, 3, 4];
    let packet = with_options(&[&first[..], &[1], &first].concat());
    let error = parameter_problem4(ROUTER, 28, &packet.bytes());
    Case::new(23, "two-record-routes")
        .sends(packet)
        .replies(error.clone())
        .but_linux("an error carries the options that were read before the bad one", |case| {
            case.replies(error.options(&first))
        })
}

/// A router writes the address of the outgoing interface into an option (RFC 1812 4.2.2.3).
fn timestamp_with_address() -> Case {
    let sent = [68, 12, 5, 1, 0, 0, 0, 0, 0, 0, 0, 0];
    let written = |address: [u8; 4]| [&[68, 12, 13, 1], &address[..], &[0; 4]].concat();
    let out = |address| Side::Snk.to_neighbor(2, &with_options(&written(address)).ttl(63).bytes());
    Case::new(23, "timestamp-with-address")
        .sends(with_options(&sent))
        .expects(Side::Snk, out(OUT))
        .but_linux("writes the address of the link where the packet came in", |case| {
            case.expects(Side::Snk, out([192, 0, 2, 1]))
        })
}

fn timestamps() -> Vec<Case> {
    let case = |name| Case::new(23, name);
    let elsewhere = [68, 12, 5, 3, 10, 9, 9, 9, 0, 0, 0, 0];
    let full = [68, 8, 9, 0, 1, 2, 3, 4];
    vec![
        // The comparison ignores the times themselves.
        becomes(
            case("timestamp-only"),
            &[68, 12, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[68, 12, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ),
        timestamp_with_address(),
        case("timestamp-for-another-router").passes(with_options(&elsewhere)),
        becomes(
            case("timestamp-for-us"),
            &[68, 12, 5, 3, 192, 0, 2, 1, 0, 0, 0, 0],
            &[68, 12, 13, 3, 192, 0, 2, 1, 0, 0, 0, 0],
        ),
        becomes(case("timestamp-full-counts-overflow"), &full, &[68, 8, 9, 0x10, 1, 2, 3, 4]),
        refused(case("timestamp-overflow-is-full"), &[68, 8, 9, 0xf0, 1, 2, 3, 4], 23),
        refused(case("timestamp-pointer-too-low"), &[68, 8, 4, 0, 1, 2, 3, 4], 22),
        refused(case("timestamp-pointer-overruns"), &[68, 8, 7, 0, 1, 2, 3, 4], 22),
        refused(case("timestamp-address-overruns"), &[68, 8, 5, 1, 1, 2, 3, 4], 22),
        refused(case("timestamp-too-short"), &[68, 3, 5, 0], 21),
    ]
}

fn source_routes() -> Vec<Case> {
    let route = |kind: u8| [kind, 7, 4, 10, 9, 9, 9];
    let to_us = |kind| Ip4::udp(HOST, ROUTER, 20).options(&route(kind));
    let refused = |name, kind| Case::new(24, name).sends(with_options(&route(kind))).sends(to_us(kind));
    let used_up = Case::new(24, "source-route-used-up").sends(with_options(&[131, 7, 8, 10, 9, 9, 9]));
    let out = {
        let mut out = Ip4::udp(HOST, ROUTER, 20).ttl(63).options(&[131, 7, 8, 198, 51, 100, 1]);
        out.destination = [10, 9, 9, 9].into();
        out
    };
    vec![
        refused("loose-source-route", 131),
        refused("strict-source-route", 137),
        used_up,
        Case::new(24, "source-route-where-it-is-accepted")
            .setting("net.ipv4.conf.all.accept_source_route", "1")
            .setting("net.ipv4.conf.r0.accept_source_route", "1")
            .sends(to_us(131))
            .expects(Side::Snk, Side::Snk.to_neighbor(2, &out.bytes())),
    ]
}

fn broken() -> Vec<Case> {
    let ttl = Ip4::udp(HOST, FAR, 20).options(&[1, 1, 1, 1]).ttl(1);
    vec![
        refused(Case::new(23, "option-without-length"), &[1, 1, 1, 0x9e], 23),
        refused(Case::new(23, "option-of-length-0"), &[0x9e, 0, 0, 0], 20),
        refused(Case::new(23, "option-of-length-1"), &[0x9e, 1, 0, 0], 20),
        refused(Case::new(23, "option-past-the-header"), &[0x9e, 5, 0, 0], 20),
        Case::new(40, "error-quotes-options")
            .answers(ttl, |sent| error4(ROUTER, 11, 0, 0, sent, Quote::Full)),
    ]
}
