//! Group B, checks 29 to 33: fragments and path MTU of IPv4 (RFC 791, 1191, 1858, 6864). The MTU of `r2` is 1300.

use bm_tests::case::Case;
use bm_tests::lab::{LOW_MTU, Side};
use bm_tests::packet::{self, Ip4, fragments4, too_big4};

const HOST: &str = "192.0.2.2";
const ROUTER: &str = "192.0.2.1";
/// A destination behind the link with an MTU of 1300.
const LOW: &str = "10.2.9.9";

/// A UDP datagram whose IP packet has this many bytes.
fn sized(to: &str, bytes: usize) -> Ip4 {
    Ip4::udp(HOST, to, bytes - 28)
}

/// Sends a packet and expects its fragments at neighbor 2 of a side.
fn cut(case: Case, packet: &Ip4, side: Side, mtu: usize) -> Case {
    let case = case.sends(packet.clone());
    fragments4(&packet.bytes(), mtu)
        .iter()
        .fold(case, |case, part| case.expects(side, side.to_neighbor(2, part)))
}

fn low(case: Case, packet: &Ip4) -> Case {
    cut(case, packet, Side::Low, LOW_MTU)
}

pub fn cases() -> Vec<Case> {
    [refused(), fragmented(), again(), with_options(), route_mtu()].concat()
}

fn refused() -> Vec<Case> {
    let too_big = [1301, 1400, 1500].into_iter().fold(Case::new(29, "too-big-with-df"), |case, bytes| {
        case.answers(sized(LOW, bytes).flags(Ip4::DF), |sent| too_big4(ROUTER, LOW_MTU as u16, sent))
    });
    let fits = [1299, 1300].into_iter().fold(Case::new(29, "just-fits-with-df"), |case, bytes| {
        case.forwards(sized(LOW, bytes).flags(Ip4::DF), Side::Low, 2)
    });
    let fragment = sized(LOW, 1400).flags(Ip4::DF | Ip4::MF | 100);
    let error = packet::error4(ROUTER, 3, 4, 0, &sized(LOW, 1400).bytes(), packet::Quote::Full);
    vec![
        too_big,
        fits,
        Case::new(29, "padding-does-not-count").forwards(
            [sized(LOW, 1300).flags(Ip4::DF).bytes(), vec![0; 100]].concat(),
            Side::Low,
            2,
        ),
        Case::new(44, "no-error-about-a-later-fragment").sends(fragment.clone()),
        Case::new(44, "error-about-a-first-fragment")
            .answers(fragment.flags(Ip4::DF | Ip4::MF), |sent| too_big4(ROUTER, LOW_MTU as u16, sent)),
        Case::new(42, "no-error-about-an-error-too-big").sends({
            let mut big = error;
            big.payload.resize(1380, 0);
            (big.source, big.destination) = ([192, 0, 2, 2].into(), [10, 2, 9, 9].into());
            big.flags(Ip4::DF)
        }),
    ]
}

fn fragmented() -> Vec<Case> {
    let sizes = [1301, 1308, 1400, 1500];
    let case = |name| Case::new(30, name);
    vec![
        sizes.into_iter().fold(case("fragmented"), |case, bytes| low(case, &sized(LOW, bytes))),
        low(low(case("fragments-keep-tos"), &sized(LOW, 1400).tos(0xb8)), &sized(LOW, 1400).tos(0x03)),
        low(case("fragments-lose-the-reserved-flag"), &sized(LOW, 1400).flags(0x8000)),
        low(case("fragments-without-ports"), &Ip4::new(HOST, LOW, 253, packet::pattern(1400))),
        case("fits-without-df").forwards(sized(LOW, 1300), Side::Low, 2),
        case("spent-and-too-big")
            .answers(sized(LOW, 1400).ttl(1), |sent| packet::time_exceeded4(ROUTER, sent)),
    ]
}

fn again() -> Vec<Case> {
    let first = sized(LOW, 1400).flags(Ip4::MF);
    let middle = sized(LOW, 1404).flags(Ip4::MF | 185);
    let last = sized(LOW, 1399).flags(185);
    let beyond = Ip4::new(HOST, LOW, 17, packet::pattern(800)).flags(8191);
    vec![
        low(low(low(Case::new(31, "fragments-of-fragments"), &first), &middle), &last),
        Case::new(33, "fragment-past-the-longest-packet")
            .sends(beyond.clone())
            .but_linux("does not check offset plus length of fragments in transit", |case| {
                case.forwards(beyond, Side::Low, 2)
            }),
    ]
}

fn with_options() -> Vec<Case> {
    let both = sized(LOW, 1400).options(&[0x9e, 4, 1, 2, 0x1e, 4, 3, 4, 1, 1, 0x5e, 2]);
    let copied = sized(LOW, 1400).options(&[0x9e, 4, 1, 2]);
    let later = sized(LOW, 1400).options(&[0x1e, 4, 3, 4]).flags(Ip4::MF | 50);
    let mut recorded = sized(LOW, 1400).options(&[7, 7, 4, 0, 0, 0, 0]);
    let sent = recorded.clone();
    recorded.options = vec![7, 7, 8, 203, 0, 113, 1, 0];
    let parts = fragments4(&recorded.bytes(), LOW_MTU);
    let record = parts.iter().fold(Case::new(32, "record-route-only-in-the-first"), |case, part| {
        case.expects(Side::Low, Side::Low.to_neighbor(2, part))
    });
    vec![
        low(low(Case::new(32, "copied-options"), &both), &copied),
        low(Case::new(32, "uncopied-option-in-a-later-fragment"), &later).but_linux(
            "keeps all options in later fragments",
            |case| {
                let keep = |mut part: Vec<u8>| {
                    part[20..24].copy_from_slice(&later.options);
                    let sum = bm_wire::checksum::ipv4_header(&part[..24]);
                    packet::put16(&mut part, 10, sum);
                    part
                };
                let parts = fragments4(&later.bytes(), LOW_MTU).into_iter().map(keep);
                parts.fold(case, |case, part| case.expects(Side::Low, Side::Low.to_neighbor(2, &part)))
            },
        ),
        record.sends(sent),
        Case::new(29, "too-big-with-df-and-options")
            .answers(sized(LOW, 1400).options(&[0x9e, 4, 1, 2]).flags(Ip4::DF), |sent| {
                too_big4(ROUTER, LOW_MTU as u16, sent)
            }),
    ]
}

fn route_mtu() -> Vec<Case> {
    let under = |name, words: &str| {
        let route = "10.3.0.0/16 via 198.51.100.2";
        Case::new(29, name).after(&format!("route add {route} {words}"), &format!("route del {route}"))
    };
    let to = "10.3.9.9";
    let refused = |case: Case| {
        case.answers(sized(to, 1001).flags(Ip4::DF), |sent| too_big4(ROUTER, 1000, sent))
            .passes(sized(to, 1000).flags(Ip4::DF))
    };
    vec![
        refused(under("mtu-of-the-route", "mtu 1000")),
        cut(under("fragments-for-the-mtu-of-the-route", "mtu 1000"), &sized(to, 1400), Side::Snk, 1000),
        refused(under("locked-mtu-of-the-route", "mtu lock 1000")),
        under("mtu-of-the-route-above-that-of-the-link", "mtu 9000").passes(sized(to, 1500).flags(Ip4::DF)),
    ]
}
