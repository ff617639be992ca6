//! Kernel settings that decide what happens to a packet; the mirror follows them.

use bm_tests::case::Case;
use bm_tests::lab::Side;
use bm_tests::packet::{self, Ip4, Ip6, Quote, echo4, error4, time_exceeded4, time_exceeded6, too_big6};
use bm_wire::Mac;
use bm_wire::protocol::HOP_BY_HOP;

const HOST: &str = "192.0.2.2";
const ROUTER: &str = "192.0.2.1";
const FAR: &str = "10.9.9.9";
const HOST6: &str = "2001:db8:1::2";
const FAR6: &str = "2001:db8:a000::9";

fn from(source: &str) -> Ip4 {
    Ip4::udp(source, FAR, 20)
}

pub fn cases() -> Vec<Case> {
    [forwarding(), reverse_path(), others(), limits()].concat()
}

fn forwarding() -> Vec<Case> {
    let six = Ip6::udp(HOST6, FAR6, 20);
    vec![
        Case::new(0, "forwarding-off-here")
            .setting("net.ipv4.conf.r0.forwarding", "0")
            .unfenced()
            .sends(from(HOST))
            .sends(from(HOST).ttl(1))
            .passes(six.clone()),
        Case::new(0, "forwarding-off-at-the-other-end")
            .setting("net.ipv4.conf.r1.forwarding", "0")
            .passes(from(HOST)),
        Case::new(0, "forwarding-off-everywhere")
            .setting("net.ipv4.ip_forward", "0")
            .unfenced()
            .sends(from(HOST))
            .passes(six.clone()),
        Case::new(0, "ipv6-forwarding-off-everywhere")
            .setting("net.ipv6.conf.all.forwarding", "0")
            .sends(six.clone())
            .sends(six.clone().hop_limit(1))
            .passes(from(HOST)),
        Case::new(0, "ipv6-forwarding-off-here").setting("net.ipv6.conf.r0.forwarding", "0").passes(six),
    ]
}

fn reverse_path() -> Vec<Case> {
    let (behind, beyond, nowhere) = (from("172.16.5.5"), from("198.51.100.7"), from("11.1.1.1"));
    vec![
        Case::new(0, "rp-filter-off").passes(behind.clone()).passes(beyond.clone()).passes(nowhere.clone()),
        Case::new(77, "rp-filter-strict")
            .setting("net.ipv4.conf.r0.rp_filter", "1")
            .passes(behind.clone())
            .passes(from(HOST))
            .sends(beyond.clone())
            .sends(nowhere.clone()),
        Case::new(77, "rp-filter-strict-for-all")
            .setting("net.ipv4.conf.all.rp_filter", "1")
            .passes(behind.clone())
            .sends(beyond.clone()),
        Case::new(79, "rp-filter-loose")
            .setting("net.ipv4.conf.r0.rp_filter", "2")
            .passes(behind)
            .passes(beyond.clone())
            .sends(nowhere),
        Case::new(79, "rp-filter-elsewhere").setting("net.ipv4.conf.r1.rp_filter", "1").passes(beyond),
    ]
}

fn others() -> Vec<Case> {
    let spent = from(HOST).ttl(1);
    let spent6 = Ip6::udp(HOST6, FAR6, 20).hop_limit(1);
    let hairpin = Ip4::udp("192.0.2.3", "172.16.3.4", 20);
    let redirect = {
        let gateway = u32::from_be_bytes([192, 0, 2, 2]);
        // Linux quotes the packet with its TTL already decremented.
        error4(ROUTER, 5, 1, gateway, &packet::routed(&hairpin.bytes()), Quote::Full)
    };
    let directed = Ip4::udp(HOST, "198.51.100.255", 20);
    let all_of_snk = packet::ip_frame(Mac::BROADCAST, Side::Snk.mac(1), &packet::routed(&directed.bytes()));
    vec![
        Case::new(0, "default-ttl")
            .setting("net.ipv4.ip_default_ttl", "99")
            .answers(spent, |sent| time_exceeded4(ROUTER, sent).ttl(99)),
        Case::new(0, "default-hop-limit")
            .setting("net.ipv6.conf.all.hop_limit", "99")
            .setting("net.ipv6.conf.r0.hop_limit", "99")
            .answers(spent6.clone(), |sent| time_exceeded6("2001:db8:1::1", sent).hop_limit(99)),
        Case::new(0, "hop-limit-of-the-way-back")
            .after(
                "route replace 172.16.0.0/16 via 192.0.2.2 hoplimit 33",
                "route replace 172.16.0.0/16 via 192.0.2.2",
            )
            .answers(from("172.16.3.4").ttl(1), |sent| time_exceeded4(ROUTER, sent).ttl(33)),
        Case::new(0, "ipv6-hop-limit-of-the-way-back")
            .after(
                "route replace 2001:db8:1::/64 dev r0 proto kernel metric 256 hoplimit 33",
                "route replace 2001:db8:1::/64 dev r0 proto kernel metric 256",
            )
            .answers(spent6, |sent| time_exceeded6("2001:db8:1::1", sent).hop_limit(33)),
        Case::new(49, "redirects-switched-on")
            .setting("net.ipv4.conf.all.send_redirects", "1")
            .setting("net.ipv4.conf.r0.send_redirects", "1")
            .forwards(hairpin, Side::Src, 2)
            .expects(Side::Src, Side::Src.to_neighbor(3, &redirect.bytes())),
        Case::new(18, "directed-broadcast-where-allowed")
            .setting("net.ipv4.conf.all.bc_forwarding", "1")
            .setting("net.ipv4.conf.r0.bc_forwarding", "1")
            .sends(directed)
            .expects(Side::Snk, all_of_snk),
        Case::new(0, "own-source-where-allowed")
            .setting("net.ipv4.conf.r0.accept_local", "1")
            .passes(from("198.51.100.1")),
        Case::new(48, "echo-switched-off")
            .setting("net.ipv4.icmp_echo_ignore_all", "1")
            .unfenced()
            .sends(echo4(HOST, ROUTER, 1, 20))
            .passes(echo4(HOST, FAR, 1, 20)),
    ]
}

/// Settings that limit what may pass, or that only Linux follows.
fn limits() -> Vec<Case> {
    let sized = |bytes: usize| Ip6::udp(HOST6, FAR6, bytes - 48);
    let options = [[0x1e, 0].repeat(2), vec![1, 0]].concat();
    let with_options = Ip6::udp(HOST6, FAR6, 20).extension(HOP_BY_HOP, &[&[0][..], &options].concat());
    let solicitation = |to: &str| {
        let target = to.parse().expect("an address");
        packet::neighbor_solicitation(HOST6, to, target, &[]).hop_limit(254)
    };
    let route = [0x83, 7, 4, 198, 51, 100, 1, 0];
    vec![
        Case::new(53, "ipv6-mtu-below-that-of-the-link")
            .setting("net.ipv6.conf.r1.mtu", "1400")
            .answers(sized(1401), |sent| too_big6("2001:db8:1::1", 1400, sent))
            .passes(sized(1400))
            .passes(Ip4::udp(HOST, FAR, 1472)),
        Case::new(53, "ipv6-mtu-on-the-way-in").setting("net.ipv6.conf.r0.mtu", "1400").passes(sized(1500)),
        Case::new(0, "more-hop-by-hop-options-than-allowed")
            .setting("net.ipv6.max_hbh_opts_number", "1")
            .sends(with_options.clone()),
        Case::new(0, "a-longer-hop-by-hop-header-than-allowed")
            .setting("net.ipv6.max_hbh_length", "7")
            .sends(with_options),
        Case::new(0, "solicitation-to-an-address-of-another").passes(solicitation("2001:db8:a000::9")),
        Case::new(0, "learned-mtus-may-be-used")
            .setting("net.ipv4.ip_forward_use_pmtu", "1")
            .passes(from(HOST)),
        Case::new(24, "source-routes-switched-on-but-not-here")
            .setting("net.ipv4.conf.all.accept_source_route", "1")
            .setting("net.ipv4.conf.r0.accept_source_route", "0")
            .sends(Ip4::udp(HOST, ROUTER, 20).options(&route)),
    ]
}
