//! IPv6 routes from router advertisements and with lifetimes: what Linux changes or ends without a message.

use super::netns::Namespace;
use super::support::{alone, until, watch};
use bm_netlink::route::TABLE_MAIN;
use bm_netlink::{Mirror, Watch};
use bm_tests::sys::{PacketSocket, interface_index};
use bm_wire::checksum::Pseudo;
use bm_wire::prefix::{Ipv4Prefix, Ipv6Prefix};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// Router preferences (RFC 4191).
const MEDIUM: u8 = 0;
const HIGH: u8 = 1;
const LOW: u8 = 3;

/// A router behind the far end of a veth.
struct Router {
    socket: PacketSocket,
    address: Ipv6Addr,
    name: &'static str,
}

impl Router {
    fn new(name: &'static str, far_end: &str) -> Self {
        let address = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, u16::from(name.as_bytes()[0]));
        Self { socket: PacketSocket::open(interface_index(far_end).unwrap()).unwrap(), address, name }
    }

    /// Sends an advertisement with a lifetime in seconds, and route information if any: prefix, length and preference.
    fn advertise(&self, lifetime: u16, preference: u8, route: Option<(Ipv6Addr, u8, u8)>) {
        let mut message = vec![134, 0, 0, 0, 64, preference << 3];
        message.extend_from_slice(&lifetime.to_be_bytes());
        message.extend_from_slice(&[0; 8]);
        if let Some((prefix, length, preference)) = route {
            message.extend_from_slice(&[24, 3, length, preference << 3, 0, 0, 7, 8]);
            message.extend_from_slice(&prefix.octets());
        }
        let pseudo = Pseudo::V6 { source: self.address.into(), destination: ALL_NODES.into() };
        let sum = pseudo.checksum(58, &message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        let mut frame = vec![0x33, 0x33, 0, 0, 0, 1, 2, 0, 0, 0, 0, self.name.as_bytes()[0], 0x86, 0xdd];
        frame.extend_from_slice(&packet(self.address, ALL_NODES, 255, &message));
        self.socket.send(&frame).unwrap();
    }
}

/// An ICMPv6 packet.
fn packet(source: Ipv6Addr, destination: Ipv6Addr, hop_limit: u8, message: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend_from_slice(&(message.len() as u16).to_be_bytes());
    packet.extend_from_slice(&[58, hop_limit]);
    packet.extend_from_slice(&source.octets());
    packet.extend_from_slice(&destination.octets());
    packet.extend_from_slice(message);
    packet
}

fn prefix(text: &str) -> Ipv6Prefix {
    text.parse().unwrap()
}

/// The link of the default route in use, and how many there are.
fn default_route(mirror: &Mirror) -> (Option<String>, usize) {
    let all = mirror.ipv6().get(TABLE_MAIN, prefix("::/0")).len();
    let active = mirror.active(mirror.ipv6(), TABLE_MAIN, prefix("::/0"));
    let link = active.and_then(|(_, body)| mirror.link(body.via.hops()[0].ifindex));
    (link.map(|link| link.name.to_string()), all)
}

/// Waits until this link's default route of so many is used.
fn uses(watch: &mut Watch, what: &str, link: &str, count: usize) {
    until(watch, what, |mirror| default_route(mirror) == (Some(link.into()), count));
}

/// A namespace whose links `a` and `b` accept advertisements, although it forwards.
fn accepting(tag: &str) -> Option<(Namespace, Watch)> {
    let namespace = Namespace::new(tag)?.with_links();
    assert!(namespace.shell("sysctl -qw net.ipv6.conf.all.forwarding=1"));
    for link in ["a", "b"] {
        for setting in ["accept_ra=2", "accept_ra_rtr_pref=1", "accept_ra_rt_info_max_plen=64"] {
            assert!(namespace.shell(&format!("sysctl -qw net.ipv6.conf.{link}.{setting}")));
        }
    }
    namespace.enter();
    let watch = watch(alone());
    Some((namespace, watch))
}

#[test]
fn of_two_routers_the_preferred_one_is_used() {
    let Some((namespace, mut watch)) = accepting("advertised") else { return };
    if !namespace.shell("test -e /proc/sys/net/ipv6/conf/all/accept_ra_rtr_pref") {
        return eprintln!("skipped: this kernel has no router preferences");
    }
    // A link takes no advertisements before it has a link-local address.
    for link in ["a", "b"] {
        until(&mut watch, "link-local addresses", |mirror| {
            let link = mirror.link_named(link).unwrap().ifindex;
            mirror.addresses(link).iter().any(|address| address.local.to_string().starts_with("fe80"))
        });
    }
    let routers = [Router::new("a", "a2"), Router::new("b", "b2")];
    let [a, b] = &routers;
    a.advertise(1800, MEDIUM, None);
    uses(&mut watch, "one router", "a", 1);
    b.advertise(1800, MEDIUM, None);
    until(&mut watch, "two alike: Linux prefers the link on which a packet came in", |mirror| {
        default_route(mirror) == (None, 2)
    });
    b.advertise(1800, HIGH, None);
    uses(&mut watch, "the second is preferred", "b", 2);
    b.advertise(1800, LOW, None);
    uses(&mut watch, "the first is preferred", "a", 2);
    a.advertise(0, MEDIUM, None);
    uses(&mut watch, "the first has withdrawn", "b", 1);
    a.advertise(1800, MEDIUM, None);
    uses(&mut watch, "it is back", "a", 2);
    b.advertise(0, LOW, None);
    uses(&mut watch, "the second has withdrawn", "a", 1);
    // The message about the default route comes before its new lifetime is set.
    a.advertise(1, MEDIUM, None);
    // Linux removes the route some time after its end.
    until(&mut watch, "the lifetime is over", |mirror| default_route(mirror).0.is_none());
    a.advertise(1800, MEDIUM, None);
    uses(&mut watch, "it is renewed", "a", 1);
    // Linux changes what comes from route information without any message.
    let net = Ipv6Addr::new(0x2001, 0xdb8, 0xf, 0, 0, 0, 0, 0);
    a.advertise(1800, MEDIUM, Some((net, 48, HIGH)));
    let information = prefix("2001:db8:f::/48");
    until(&mut watch, "route information", |mirror| !mirror.ipv6().get(TABLE_MAIN, information).is_empty());
    let mirror = watch.mirror();
    assert!(
        mirror.active(mirror.ipv6(), TABLE_MAIN, information).is_none(),
        "only Linux knows whether it is valid"
    );
}

#[test]
fn a_learned_path_mtu_leaves_its_destination_to_linux() {
    let Some((namespace, mut watch)) = accepting("learned") else { return };
    namespace.ip("-6 route add 2001:db8:f::/48 via 2001:db8:a::2");
    let host = prefix("2001:db8:f::7/128");
    until(&mut watch, "the route", |mirror| {
        mirror.active(mirror.ipv6(), TABLE_MAIN, prefix("2001:db8:f::/48")).is_some()
    });
    assert!(!watch.mirror().ipv6().in_doubt(TABLE_MAIN, host));
    // Packet Too Big about a ping of this machine.
    let (here, there) = ("2001:db8:a::1".parse().unwrap(), "2001:db8:f::7".parse().unwrap());
    let mut error = vec![2, 0, 0, 0, 0, 0, 5, 20];
    error.extend_from_slice(&packet(here, there, 64, &[128, 0, 0, 0, 0, 7, 0, 1]));
    let sum = Pseudo::V6 { source: there.into(), destination: here.into() }.checksum(58, &error);
    error[2..4].copy_from_slice(&sum.to_be_bytes());
    let mac = watch.mirror().link_named("a").unwrap().mac.unwrap();
    let mut frame = [&mac[..], &[2, 0, 0, 0, 0, 9, 0x86, 0xdd]].concat();
    frame.extend_from_slice(&packet(there, here, 64, &error));
    PacketSocket::open(interface_index("a2").unwrap()).unwrap().send(&frame).unwrap();
    until(&mut watch, "the learned path MTU", |mirror| mirror.ipv6().in_doubt(TABLE_MAIN, host));
    namespace.ip("-6 route flush cache");
    until(&mut watch, "that Linux has forgotten it", |mirror| !mirror.ipv6().in_doubt(TABLE_MAIN, host));
}

/// A path MTU that is locked, since it is below the least that Linux believes, and a redirect.
#[test]
fn what_linux_has_learned_leaves_an_ipv4_destination_to_it() {
    let Some(namespace) = Namespace::new("learned4") else { return };
    let namespace = namespace.with_links();
    for setting in ["ip_forward=1", "conf.all.accept_redirects=1"] {
        assert!(namespace.shell(&format!("sysctl -qw net.ipv4.{setting}")));
    }
    namespace.enter();
    let mut watch = watch(alone());
    namespace.ip("route add 203.0.113.0/24 via 192.0.2.2");
    for neighbor in ["192.0.2.2", "192.0.2.3"] {
        namespace.ip(&format!("neigh replace {neighbor} lladdr 02:00:00:00:00:09 dev a nud permanent"));
    }
    let mac = watch.mirror().link_named("a").unwrap().mac.unwrap();
    let far_end = PacketSocket::open(interface_index("a2").unwrap()).unwrap();
    let gateway = [192, 0, 2, 2];
    for (kind, code, word, last) in [(3, 4, [0, 0, 1, 244], 7), (5, 1, [192, 0, 2, 3], 8)] {
        let host = Ipv4Addr::new(203, 0, 113, last);
        let route: Ipv4Prefix = format!("{host}/32").parse().unwrap();
        let socket = std::net::UdpSocket::bind("192.0.2.1:0").unwrap();
        socket.connect((host, 9)).unwrap();
        socket.send(b"x").unwrap();
        assert!(!watch.mirror().ipv4().in_doubt(TABLE_MAIN, route));
        let [port, nine] = [socket.local_addr().unwrap().port(), 9].map(u16::to_be_bytes);
        let udp = [&port[..], &nine, &[0, 9, 0, 0]].concat();
        let about = ipv4(17, [192, 0, 2, 1], host.octets(), &udp);
        let mut error = [&[kind, code, 0, 0][..], &word, &about].concat();
        let sum = bm_wire::checksum::checksum(&error);
        error[2..4].copy_from_slice(&sum.to_be_bytes());
        let mut frame = [&mac[..], &[2, 0, 0, 0, 0, 9, 8, 0]].concat();
        frame.extend_from_slice(&ipv4(1, gateway, [192, 0, 2, 1], &error));
        far_end.send(&frame).unwrap();
        until(&mut watch, "what Linux has learned", |mirror| {
            // Linux lists what a packet of its own has met.
            let _refused = socket.send(b"x");
            mirror.ipv4().in_doubt(TABLE_MAIN, route)
        });
    }
    namespace.ip("route flush cache");
    until(&mut watch, "that Linux has forgotten it", |mirror| {
        mirror.ipv4().doubts_of(TABLE_MAIN).next().is_none()
    });
}

/// An IPv4 packet.
fn ipv4(protocol: u8, source: [u8; 4], destination: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0];
    packet.extend_from_slice(&(20 + payload.len() as u16).to_be_bytes());
    packet.extend_from_slice(&[0, 0, 0, 0, 64, protocol, 0, 0]);
    packet.extend_from_slice(&source);
    packet.extend_from_slice(&destination);
    let sum = bm_wire::checksum::checksum(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend_from_slice(payload);
    packet
}

#[test]
fn the_end_of_a_lifetime_is_noticed_without_a_message() {
    let Some((namespace, mut watch)) = accepting("lifetime") else { return };
    let net = prefix("2001:db8:f::/48");
    let is_used = |mirror: &Mirror| mirror.active(mirror.ipv6(), TABLE_MAIN, net).is_some();
    namespace.ip("-6 route add 2001:db8:f::/48 via 2001:db8:a::2 expires 2");
    until(&mut watch, "a route for two seconds", is_used);
    let begin = std::time::Instant::now();
    until(&mut watch, "its end", |mirror| !is_used(mirror));
    assert!(begin.elapsed() < Duration::from_secs(2), "it is not used after its end");
    until(&mut watch, "reading it again", |mirror| {
        !is_used(mirror) && mirror.ipv6().in_doubt(TABLE_MAIN, net)
    });
    namespace.ip("-6 route replace 2001:db8:f::/48 via 2001:db8:a::2");
    until(&mut watch, "a route for ever", is_used);
}
