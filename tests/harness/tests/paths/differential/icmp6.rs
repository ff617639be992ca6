//! Group D, checks 54 to 58, 64 and 65: ICMPv6 and neighbor discovery (RFC 4443, 4861); 35 and 36: fragments to us.

use bm_tests::case::{Case, Packet};
use bm_tests::lab::Side;
use bm_tests::packet::{
    self, Ip6, echo6, neighbor_solicitation, option_link_address, parameter_problem6, reply6, time_exceeded6,
    unreachable6,
};
use bm_wire::Mac;
use std::net::Ipv6Addr;

const HOST: &str = "2001:db8:1::2";
const ROUTER: &str = "2001:db8:1::1";
const FAR: &str = "2001:db8:a000::9";

fn spent(length: usize) -> Ip6 {
    Ip6::udp(HOST, FAR, length).hop_limit(1)
}

fn exceeds(case: Case, packet: impl Packet) -> Case {
    case.answers(packet, |sent| time_exceeded6(ROUTER, sent))
}

pub fn cases() -> Vec<Case> {
    [errors(), never(), echoes(), delivered(), discovery(), fragments()].concat()
}

fn errors() -> Vec<Case> {
    let sizes = [0, 8, 100, 1183, 1184, 1185, 1452].into_iter();
    let other = Ip6::udp("2001:db8:2::9", FAR, 20).hop_limit(1);
    vec![
        sizes.fold(Case::new(54, "as-much-as-1280-bytes-hold"), |case, length| exceeds(case, spent(length))),
        exceeds(Case::new(54, "ipv6-padding-is-not-quoted"), [spent(4).bytes(), vec![0xaa; 9]].concat()),
        exceeds(Case::new(54, "class-and-label-are-quoted"), spent(20).class(0xb8).label(0x12345)),
        exceeds(Case::new(54, "towards-a-routed-host"), Ip6::udp("2001:db8:c000::9", FAR, 20).hop_limit(1)),
        Case::new(54, "ipv6-source-when-the-answer-leaves-elsewhere")
            .sends(other.clone())
            .expects(Side::Snk, Side::Snk.to_neighbor(9, &time_exceeded6(ROUTER, &other.bytes()).bytes())),
        exceeds(Case::new(54, "error-about-a-later-fragment"), spent(20).fragment(1480, true, 7)),
        exceeds(Case::new(54, "error-about-an-echo-request"), echo6(HOST, FAR, 9, 20).hop_limit(1)),
        exceeds(
            Case::new(54, "error-about-an-unknown-message"),
            Ip6::icmp(HOST, FAR, 200, 0, &[0; 8]).hop_limit(1),
        ),
    ]
}

fn never() -> Vec<Case> {
    let kinds = [1, 2, 3, 4, 100, 127].into_iter();
    let group = packet::ip_frame(Mac([0x33, 0x33, 0, 0, 0, 9]), Side::Src.mac(2), &spent(20).bytes());
    vec![
        kinds.fold(Case::new(42, "no-icmp6-error-about-an-error"), |case, kind| {
            case.sends(Ip6::icmp(HOST, FAR, kind, 0, &[0; 48]).hop_limit(1))
        }),
        ["::", "ff02::9", "::1"]
            .into_iter()
            .fold(Case::new(56, "no-error-to-unspecified-or-multicast"), |case, from| {
                case.sends(Ip6::udp(from, FAR, 20).hop_limit(1))
            }),
        Case::new(55, "no-error-about-multicast")
            .sends_frame(Side::Src, group)
            .sends(Ip6::udp(HOST, "ff0e::9", 20).hop_limit(1)),
    ]
}

fn echoes() -> Vec<Case> {
    let answered = |case: Case, request: Ip6| {
        let reply = reply6(&request);
        case.answers(request, |_| reply)
    };
    let sizes = [0, 1, 56, 1452].into_iter();
    let all = [ROUTER, "2001:db8:2::1", "2001:db8:3::1"].into_iter();
    let broken = packet::with(echo6(HOST, ROUTER, 3, 20).bytes(), |bytes| bytes[50] ^= 1);
    vec![
        sizes.fold(Case::new(48, "echo6"), |case, length| {
            answered(case, echo6(HOST, ROUTER, 0xabcd_0001, length))
        }),
        all.fold(Case::new(48, "echo6-to-each-address"), |case, to| answered(case, echo6(HOST, to, 7, 20))),
        answered(Case::new(48, "echo6-on-the-link"), echo6("fe80::2", "fe80::1", 7, 20)),
        answered(Case::new(48, "echo6-from-afar"), echo6("2001:db8:c000::7", ROUTER, 7, 20)),
        Case::new(50, "echo6-with-a-wrong-checksum").sends(broken),
        Case::new(48, "echo6-to-a-neighbor-is-forwarded").forwards(
            echo6(HOST, "2001:db8:2::4", 7, 20),
            Side::Snk,
            4,
        ),
    ]
}

fn delivered() -> Vec<Case> {
    let to_us = |protocol| Ip6::new(HOST, ROUTER, protocol, packet::pattern(20));
    vec![
        Case::new(0, "udp6-to-a-closed-port")
            .answers(Ip6::udp(HOST, ROUTER, 20), |sent| unreachable6(ROUTER, 4, sent)),
        Case::new(0, "unknown-next-header-to-us")
            .answers(to_us(253), |sent| parameter_problem6(ROUTER, 1, 6, sent)),
        Case::new(0, "no-next-header-to-us").sends(to_us(59)),
    ]
}

fn discovery() -> Vec<Case> {
    let router: Ipv6Addr = ROUTER.parse().expect("an address");
    let asked = "ff02::1:ff00:1";
    let own = option_link_address(1, Side::Src.mac(2));
    let ask = |options: &[u8]| neighbor_solicitation(HOST, asked, router, options);
    let frame =
        |packet: Ip6| packet::ip_frame(Mac([0x33, 0x33, 0xff, 0, 0, 1]), Side::Src.mac(2), &packet.bytes());
    let target = option_link_address(2, Side::Src.mac(1));
    let body = [&[0xe0, 0, 0, 0][..], &router.octets(), &target].concat();
    let answer = Ip6::icmp(ROUTER, HOST, 136, 0, &body).hop_limit(255);
    let long = [own.clone(), vec![250, 1, 0, 0, 0, 0, 0, 0]].concat();
    vec![
        Case::new(65, "neighbor-solicitation-is-answered")
            .sends_frame(Side::Src, frame(ask(&own)))
            .replies(answer.clone())
            .sends_frame(Side::Src, frame(ask(&long)))
            .replies(answer),
        Case::new(64, "discovery-from-afar-is-ignored")
            .sends_frame(Side::Src, frame(ask(&own).hop_limit(254)))
            .sends_frame(Side::Src, frame(ask(&own).hop_limit(1))),
        Case::new(64, "discovery-with-an-empty-option-is-ignored")
            .sends_frame(Side::Src, frame(ask(&[1, 0, 0, 0, 0, 0, 0, 0])))
            .sends_frame(Side::Src, frame(ask(&[own.clone(), vec![7, 0, 0, 0, 0, 0, 0, 0]].concat()))),
        Case::new(64, "discovery-with-an-option-past-the-end-is-ignored")
            .sends_frame(Side::Src, frame(ask(&[1, 2, 2, 0, 0, 0, 0, 2]))),
        Case::new(64, "discovery-for-another-host").sends_frame(
            Side::Src,
            frame(neighbor_solicitation(HOST, asked, "2001:db8:1::77".parse().expect("an address"), &own)),
        ),
    ]
}

fn fragments() -> Vec<Case> {
    let echo = echo6(HOST, ROUTER, 5, 100);
    let part = |from: usize, to: usize, more, id| {
        let payload = echo.payload[from..to].to_vec();
        Ip6 { payload, ..echo.clone() }.fragment(from as u16, more, id)
    };
    let end = echo.payload.len();
    vec![
        Case::new(35, "fragments-to-us-are-joined")
            .sends(part(0, 48, true, 1))
            .sends(part(48, end, false, 1))
            .replies(reply6(&echo)),
        Case::new(35, "overlapping-fragments-to-us-are-dropped")
            .sends(part(0, 48, true, 2))
            .sends(part(40, end, false, 2))
            .sends(part(48, end, false, 2)),
        Case::new(36, "atomic-fragment-to-us").sends(part(0, end, false, 3)).replies(reply6(&echo)),
    ]
}
