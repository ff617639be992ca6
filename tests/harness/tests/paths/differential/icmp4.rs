//! Group C: ICMP (RFC 792, RFC 1812 4.3).

use bm_tests::case::Case;
use bm_tests::lab::Side;
use bm_tests::packet::{self, Ip4, Quote, echo4, error4, put16, reply4, time_exceeded4, unreachable4};
use bm_wire::Mac;

const HOST: &str = "192.0.2.2";
const FAR: &str = "10.9.9.9";
const ROUTER: &str = "192.0.2.1";

fn spent(length: usize) -> Ip4 {
    Ip4::udp(HOST, FAR, length).ttl(1)
}

fn exceeds(case: Case, packet: impl bm_tests::case::Packet) -> Case {
    case.answers(packet, |sent| time_exceeded4(ROUTER, sent))
}

pub fn cases() -> Vec<Case> {
    [quotes(), sources(), never(), echoes(), delivered()].concat()
}

fn quotes() -> Vec<Case> {
    let sizes = [0, 1, 8, 100, 519, 520, 521, 1472].into_iter();
    let padded = [spent(4).bytes(), vec![0xaa; 14]].concat();
    let tos = [0x00, 0x08, 0x1c, 0xb8, 0xff].into_iter();
    vec![
        sizes.fold(Case::new(40, "as-much-as-576-bytes-hold"), |case, length| exceeds(case, spent(length))),
        exceeds(Case::new(40, "padding-is-not-quoted"), padded),
        exceeds(Case::new(40, "quoted-as-received"), spent(20).flags(Ip4::DF).id(0xbeef)),
        tos.fold(Case::new(47, "precedence"), |case, tos| exceeds(case, spent(20).tos(tos))),
        exceeds(Case::new(40, "about-tcp"), Ip4::tcp_syn(HOST, FAR, 1000, 80).ttl(1)),
        exceeds(Case::new(40, "about-an-unknown-protocol"), Ip4::new(HOST, FAR, 253, Vec::new()).ttl(1)),
    ]
}

fn sources() -> Vec<Case> {
    let behind = Ip4::udp("172.16.9.9", FAR, 20).ttl(1);
    let other = Ip4::udp("198.51.100.9", FAR, 20).ttl(1);
    let to_9 = |from: &str| Side::Snk.to_neighbor(9, &time_exceeded4(from, &other.bytes()).bytes());
    let preferred = ["172.16.0.0/16 via 192.0.2.2 src 198.51.100.1", "172.16.0.0/16 via 192.0.2.2"];
    vec![
        exceeds(Case::new(41, "source-towards-a-routed-host"), behind.clone()),
        Case::new(41, "source-when-the-answer-leaves-elsewhere")
            .sends(other.clone())
            .expects(Side::Snk, to_9(ROUTER))
            .but_linux("an error's source is the outgoing interface's address", |case| {
                case.expects(Side::Snk, to_9("198.51.100.1"))
            }),
        Case::new(41, "source-by-the-setting")
            .setting("net.ipv4.icmp_errors_use_inbound_ifaddr", "1")
            .sends(other.clone())
            .expects(Side::Snk, to_9(ROUTER)),
        exceeds(
            Case::new(41, "source-preferred-by-the-way-back").after(
                &format!("route replace {}", preferred[0]),
                &format!("route replace {}", preferred[1]),
            ),
            behind.clone(),
        )
        .but_linux("an error's source is the one that the way back prefers", |case| {
            case.replies(time_exceeded4("198.51.100.1", &behind.bytes()))
        }),
    ]
}

fn never() -> Vec<Case> {
    let icmp = |kind: u8| {
        let quoted = Ip4::udp(FAR, HOST, 20).bytes();
        let mut error = error4(HOST, kind, 0, 0, &quoted, Quote::Full);
        error.destination = FAR.parse().expect("an address");
        error.ttl(1)
    };
    let errors = [3, 4, 5, 11, 12].into_iter();
    let broadcast = |packet: &Ip4, mac| packet::ip_frame(mac, Side::Src.mac(2), &packet.bytes());
    let from_broadcast = Ip4::udp("192.0.2.255", FAR, 20).ttl(1);
    let to_all = packet::ip_frame(
        Mac::BROADCAST,
        Side::Src.mac(1),
        &time_exceeded4(ROUTER, &from_broadcast.bytes()).bytes(),
    );
    vec![
        errors.fold(Case::new(42, "no-error-about-an-error"), |case, kind| case.sends(icmp(kind))),
        [19, 41, 255]
            .into_iter()
            .fold(Case::new(42, "no-error-about-unknown-icmp"), |case, kind| case.sends(icmp(kind))),
        exceeds(Case::new(42, "error-about-an-echo"), echo4(HOST, FAR, 9, 20).ttl(1)),
        Case::new(43, "no-error-about-broadcast-or-multicast")
            .sends(Ip4::udp(HOST, "198.51.100.255", 20).ttl(1))
            .sends(Ip4::udp(HOST, "239.1.1.1", 20).ttl(1))
            .sends(Ip4::udp(HOST, "255.255.255.255", 20))
            .sends_frame(Side::Src, broadcast(&spent(20), Mac::BROADCAST))
            .sends_frame(Side::Src, broadcast(&Ip4::udp(HOST, "192.0.2.255", 20), Mac::BROADCAST)),
        Case::new(44, "no-error-about-a-fragment-but-the-first")
            .sends(spent(20).flags(100))
            .sends(spent(20).flags(Ip4::MF | 1)),
        exceeds(Case::new(44, "error-about-the-first-fragment"), spent(20).flags(Ip4::MF)),
        ["0.0.0.0", "127.0.0.1", "224.1.2.3", "255.255.255.255", "240.1.2.3"]
            .into_iter()
            .fold(Case::new(45, "no-error-to-what-is-no-host"), |case, from| {
                case.sends(Ip4::udp(from, FAR, 20).ttl(1))
            }),
        Case::new(45, "no-error-to-a-broadcast")
            .sends(from_broadcast)
            .but_linux("answers a source that is its own directed broadcast", |case| {
                case.expects(Side::Src, to_all)
            }),
    ]
}

fn echoes() -> Vec<Case> {
    let answered = |case: Case, request: Ip4| {
        let reply = reply4(&request);
        case.answers(request, |_| reply)
    };
    let sizes = [0, 1, 56, 1472].into_iter();
    let all = [ROUTER, "198.51.100.1", "203.0.113.1"].into_iter();
    let broken = packet::with(echo4(HOST, ROUTER, 3, 20).bytes(), |bytes| bytes[30] ^= 1);
    let no_sum = packet::with(echo4(HOST, ROUTER, 3, 20).bytes(), |bytes| put16(bytes, 22, 0));
    let far = echo4("172.16.4.4", ROUTER, 0xffff_0001, 56);
    vec![
        sizes.fold(Case::new(48, "echo"), |case, length| {
            answered(case, echo4(HOST, ROUTER, 0xabcd_0001, length))
        }),
        all.fold(Case::new(48, "echo-to-each-address"), |case, to| answered(case, echo4(HOST, to, 7, 20))),
        answered(Case::new(48, "echo-keeps-tos"), echo4(HOST, ROUTER, 7, 20).tos(0x28)),
        answered(Case::new(48, "echo-from-afar"), far),
        Case::new(50, "echo-with-a-wrong-checksum").sends(broken).sends(no_sum),
        Case::new(48, "echo-to-a-neighbor-is-forwarded").forwards(
            echo4(HOST, "198.51.100.4", 7, 20),
            Side::Snk,
            4,
        ),
        Case::new(48, "reply-to-nothing-is-ignored").sends(reply4(&echo4(ROUTER, HOST, 7, 20))),
    ]
}

fn delivered() -> Vec<Case> {
    let syn = Ip4::tcp_syn(HOST, ROUTER, 1000, 81);
    let mut reset = Ip4::tcp_syn(ROUTER, HOST, 81, 1000).id(0).flags(Ip4::DF);
    // RST with an ACK of the SYN's sequence number plus one, window 0.
    let words = [81, 1000, 0, 0, 0x1122, 0x3345, 0x5014, 0, 0, 0].map(u16::to_be_bytes);
    reset.payload = words.concat();
    let pseudo =
        bm_wire::checksum::Pseudo::V4 { source: reset.source.into(), destination: reset.destination.into() };
    let sum = pseudo.checksum(6, &reset.payload);
    put16(&mut reset.payload, 16, sum);
    vec![
        Case::new(0, "udp-to-a-closed-port")
            .answers(Ip4::udp(HOST, ROUTER, 20), |sent| unreachable4(ROUTER, 3, sent)),
        Case::new(0, "udp-to-a-closed-port-of-another-address")
            .answers(Ip4::udp(HOST, "198.51.100.1", 20), |sent| unreachable4("198.51.100.1", 3, sent)),
        Case::new(0, "unknown-protocol-to-us")
            .answers(Ip4::new(HOST, ROUTER, 253, packet::pattern(20)), |sent| unreachable4(ROUTER, 2, sent)),
        Case::new(0, "tcp-to-a-closed-port").answers(syn, |_| reset),
    ]
}
