//! Group A, checks 1 to 7 and 16 to 21: packets that must not be forwarded at all (RFC 1812 5.2.2 and 5.3).

use bm_tests::case::Case;
use bm_tests::lab::Side;
use bm_tests::packet::{self, Ip4, put16, unreachable4, with};
use bm_wire::Mac;
use bm_wire::ethernet::ethertype;

const HOST: &str = "192.0.2.2";
const FAR: &str = "10.9.9.9";

fn udp() -> Ip4 {
    Ip4::udp(HOST, FAR, 26)
}

/// A packet in a frame with the EtherType of IPv4, whatever the packet's version is.
fn as_ipv4(packet: &[u8]) -> Vec<u8> {
    packet::frame(Side::Src.mac(1), Side::Src.mac(2), ethertype::IPV4, packet)
}

pub fn cases() -> Vec<Case> {
    [headers(), checksums(), lengths(), broadcasts(), sources(), destinations()].concat()
}

fn headers() -> Vec<Case> {
    let short = [0, 1, 10, 19].into_iter().fold(Case::new(1, "header-cut-short"), |case, length| {
        case.sends_frame(Side::Src, as_ipv4(&udp().bytes()[..length]))
    });
    let version = [0, 1, 5, 6, 7, 15].into_iter().fold(Case::new(3, "version-not-4"), |case, version: u8| {
        let packet = udp().broken(|bytes| bytes[0] = version << 4 | 5);
        case.sends_frame(Side::Src, as_ipv4(&packet))
    });
    let ihl = (0..5).fold(Case::new(4, "header-length-below-5"), |case, ihl| {
        case.sends(udp().broken(|bytes| bytes[0] = 0x40 | ihl))
    });
    let options_cut = Case::new(4, "header-length-past-the-packet")
        .sends(Ip4::new(HOST, FAR, 17, Vec::new()).broken(|bytes| bytes[0] = 0x4f))
        .sends(udp().broken(|bytes| {
            bytes[0] = 0x4f;
            put16(bytes, 2, 54);
        }));
    let ipv6_type = packet::frame(Side::Src.mac(1), Side::Src.mac(2), ethertype::IPV6, &udp().bytes());
    let as_ipv6 = Case::new(3, "ipv4-in-a-frame-of-ipv6").sends_frame(Side::Src, ipv6_type);
    vec![short, version, ihl, options_cut, as_ipv6]
}

fn checksums() -> Vec<Case> {
    let wrong = [0x0001, 0x0100, 0xffff, 0x8000].into_iter().fold(
        Case::new(2, "header-checksum-wrong"),
        |case, error: u16| {
            case.sends(with(udp().bytes(), |bytes| {
                let sum = packet::get16(bytes, 10).wrapping_add(error);
                put16(bytes, 10, sum);
            }))
        },
    );
    let absent = Case::new(2, "header-checksum-zero").sends(with(udp().bytes(), |bytes| put16(bytes, 10, 0)));
    // Both zeros of one's complement are correct for a header that adds up to 0xffff without its checksum.
    let zero = udp_with_checksum(0);
    let two_zeroes = Case::new(11, "checksum-0000-and-ffff")
        .passes(zero.clone())
        .sends(with(zero.clone(), |bytes| put16(bytes, 10, 0xffff)))
        .expects(Side::Snk, Side::Snk.to_neighbor(2, &packet::routed(&zero)));
    // The shortcut that RFC 1624 warns about fails where the sum is about to wrap.
    let edges = [0x0001, 0x00ff, 0x0100, 0xfe00, 0xfefe, 0xfeff, 0xff00, 0xfffe];
    let incremental =
        edges.into_iter().map(udp_with_checksum).fold(Case::new(11, "checksum-at-the-edges"), Case::passes);
    let many = (0..256).fold(Case::new(11, "checksum-over-many-ids"), |case, step| {
        case.passes(udp().id((step as u16).wrapping_mul(0x0101)))
    });
    vec![wrong, absent, two_zeroes, incremental, many]
}

/// A packet with this correct checksum, which is achieved by choosing its identification.
fn udp_with_checksum(wanted: u16) -> Vec<u8> {
    let found =
        (0..=u16::MAX).map(|id| udp().id(id).bytes()).find(|bytes| packet::get16(bytes, 10) == wanted);
    found.expect("some identification gives every checksum")
}

fn lengths() -> Vec<Case> {
    let below = [0, 1, 19].into_iter().fold(Case::new(5, "total-length-below-header"), |case, length| {
        case.sends(udp().broken(|bytes| put16(bytes, 2, length)))
    });
    let below_options = Case::new(5, "total-length-within-options")
        .sends(udp().options(&[1; 8]).broken(|bytes| put16(bytes, 2, 24)));
    let above =
        [55, 56, 154, 65_535].into_iter().fold(Case::new(6, "total-length-above-frame"), |case, length| {
            case.sends(udp().broken(|bytes| put16(bytes, 2, length)))
        });
    let padding =
        [18, 1, 100, 1000].into_iter().fold(Case::new(7, "padding-is-not-forwarded"), |case, padding| {
            let packet = Ip4::udp(HOST, FAR, padding % 10).bytes();
            case.passes([packet, vec![0xaa; padding]].concat())
        });
    let header_only = Case::new(7, "header-only-padded")
        .passes([Ip4::new(HOST, FAR, 253, Vec::new()).bytes(), vec![0x55; 26]].concat());
    let unpadded = Case::new(7, "shorter-than-60-bytes").passes(Ip4::udp(HOST, FAR, 0));
    vec![below, below_options, above, padding, header_only, unpadded]
}

fn broadcasts() -> Vec<Case> {
    let to = |mac: Mac| packet::ip_frame(mac, Side::Src.mac(2), &udp().bytes());
    let at_layer_2 = Case::new(16, "link-layer-broadcast").sends_frame(Side::Src, to(Mac::BROADCAST));
    let group = Case::new(16, "link-layer-group").sends_frame(Side::Src, to(Mac([1, 0, 0x5e, 9, 9, 9])));
    let limited = Ip4::udp(HOST, "255.255.255.255", 20).bytes();
    let all = Case::new(17, "limited-broadcast")
        .sends(limited.clone())
        .sends_frame(Side::Src, packet::ip_frame(Mac::BROADCAST, Side::Src.mac(2), &limited));
    let directed = Case::new(18, "directed-broadcast")
        .sends(Ip4::udp(HOST, "198.51.100.255", 20))
        .sends(packet::echo4(HOST, "203.0.113.255", 7, 20));
    let own = Ip4::udp(HOST, "192.0.2.255", 20).bytes();
    let of_own_net = Case::new(18, "directed-broadcast-of-the-own-net")
        .sends(own.clone())
        .sends_frame(Side::Src, packet::ip_frame(Mac::BROADCAST, Side::Src.mac(2), &own));
    let other = Mac([2, 0, 0, 0, 0x99, 0x99]);
    let mac = Case::new(28, "frame-for-another-mac").sends_frame(Side::Src, to(other)).sends_frame(
        Side::Src,
        packet::ip_frame(other, Side::Src.mac(2), &packet::echo4(HOST, "192.0.2.1", 7, 20).bytes()),
    );
    vec![at_layer_2, group, all, directed, of_own_net, mac]
}

fn sources() -> Vec<Case> {
    let from = |check, name, sources: &[&str]| {
        sources.iter().fold(Case::new(check, name), |case, source| case.sends(Ip4::udp(source, FAR, 20)))
    };
    vec![
        from(19, "source-loopback", &["127.0.0.1", "127.255.1.2"]),
        from(19, "source-multicast", &["224.0.0.1", "239.1.2.3"]),
        from(19, "source-zero", &["0.0.0.0"]),
        from(19, "source-this-network", &["0.1.2.3"])
            .but_linux_passes("forwards sources in 0/8 other than 0.0.0.0"),
        from(19, "source-class-e", &["240.0.0.1", "254.1.2.3"]).but_linux_passes("forwards sources in 240/4"),
        from(19, "source-limited-broadcast", &["255.255.255.255"]),
        from(0, "source-is-the-router", &["192.0.2.1", "198.51.100.1", "203.0.113.1"]),
        from(19, "source-is-a-broadcast-of-ours", &["192.0.2.255", "198.51.100.255"])
            .but_linux_passes("forwards sources that are broadcasts of its own nets, while it has no rules"),
        from(19, "source-is-a-broadcast-of-ours-under-rules", &["192.0.2.255", "198.51.100.255"])
            .after("rule add to 10.99.0.0/16 table 77", "rule del to 10.99.0.0/16 table 77"),
    ]
}

fn destinations() -> Vec<Case> {
    let link_local = "169.254.0.0/16 via 198.51.100.2";
    let routed =
        |case: Case| case.after(&format!("route add {link_local}"), &format!("route del {link_local}"));
    let group = |mac: bool, destination: &str| {
        let packet = Ip4::udp(HOST, destination, 20).bytes();
        let address = u32::from(destination.parse::<std::net::Ipv4Addr>().expect("an address"));
        let mac = if mac { Mac::of_ipv4_group(address) } else { Side::Src.mac(1) };
        packet::ip_frame(mac, Side::Src.mac(2), &packet)
    };
    let groups = ["224.0.0.5", "224.0.0.1", "239.1.1.1"]
        .into_iter()
        .fold(Case::new(0, "multicast-is-not-forwarded"), |case, to| {
            case.sends_frame(Side::Src, group(true, to)).sends_frame(Side::Src, group(false, to))
        });
    vec![
        Case::new(20, "destination-loopback").sends(Ip4::udp(HOST, "127.0.0.1", 20)).sends(packet::echo4(
            HOST,
            "127.0.0.1",
            7,
            20,
        )),
        Case::new(20, "destination-zero").sends(Ip4::udp(HOST, "0.0.0.0", 20)),
        Case::new(20, "destination-this-network").sends(Ip4::udp("172.16.20.1", "0.1.2.3", 20)).but_linux(
            "looks for a route to destinations in 0/8 other than 0.0.0.0",
            |case| {
                let sent = Ip4::udp("172.16.20.1", "0.1.2.3", 20).bytes();
                case.replies(unreachable4("192.0.2.1", 0, &sent))
            },
        ),
        routed(Case::new(21, "destination-link-local"))
            .sends(Ip4::udp(HOST, "169.254.7.7", 20))
            .but_linux_passes("forwards 169.254/16 where it has a route"),
        Case::new(21, "source-link-local")
            .sends(Ip4::udp("169.254.7.7", FAR, 20))
            .but_linux_passes("forwards sources in 169.254/16"),
        groups,
        Case::new(0, "destination-class-e")
            .after("route add 240.0.0.0/4 via 198.51.100.2", "route del 240.0.0.0/4")
            .passes(Ip4::udp(HOST, "250.1.2.3", 20)),
    ]
}
