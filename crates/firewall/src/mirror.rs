//! What only Linux may handle because of settings, interfaces, addresses and routes that the mirror has.
//!
//! ```text
//! settings ───► all packets of a family, some packets, or ICMP errors
//! links ──────► packets that an upper interface takes from a port, or whose tag gets a priority
//! addresses ──► ICMP errors, whose source Linux chooses by more than is known here
//! routes ─────► the same
//! ```
//!
//! docs/settings.md lists the settings; `settings` has the list.

use super::{Addresses, Feature, LinuxOnly, Match, Repeats, Traffic};
use bm_netlink::mirror::{Mirror, Routes};
use bm_netlink::route::{RouteBody, RouteKind};
use bm_netlink::{Address, Family, Hop, Kind, Link, Sysctls, Upper, Via, netconf};
use bm_wire::prefix::{self, Ipv4Prefix};
use bm_wire::protocol;
use std::net::IpAddr;

/// Ticks a second of Linux: an error about a route costs one second's.
const TICKS: [u32; 4] = [100, 250, 300, 1000];
/// `RTPROT_KERNEL`: the kernel made the route for an address.
const BY_KERNEL: u8 = 2;
/// `RTPROT_RA`: a router advertised it.
const BY_ADVERTISEMENT: u8 = 9;
/// Hardware type of Ethernet (`ARPHRD_ETHER`).
const ETHERNET: u16 = 1;
/// `RT_SCOPE_UNIVERSE`.
const UNIVERSE: u8 = 0;
/// Flags of IPv4 addresses that do not matter for errors (`IFA_F_*`): secondary ones, and how they were made.
const PLAIN_IPV4: u32 = 0x01 | 0x80 | 0x200 | 0x400;
/// Flags of IPv6 addresses that do not matter for errors. Without the first of IPv4's: here it stands for temporary
/// addresses, which matter.
const PLAIN_IPV6: u32 = 0x80 | 0x100 | 0x200 | 0x400 | 0x800 | 0x02;
/// Modes of macvlan (`MACVLAN_MODE_*`) in which it only takes frames to its own MAC address: private, vepa, bridge.
const BY_MAC: [u32; 3] = [1, 2, 4];
/// Kinds of interfaces that take no frames to the MAC address of the interface below, or only frames of a type of
/// their own.
const HARMLESS: [&str; 18] = [
    "amt",
    "bareudp",
    "erspan",
    "geneve",
    "gre",
    "gretap",
    "gtp",
    "ip6erspan",
    "ip6gre",
    "ip6gretap",
    "ip6tnl",
    "ipip",
    "ovpn",
    "sit",
    "vti",
    "vti6",
    "vxlan",
    "wireguard",
];

/// The packets that only Linux may handle, and why.
pub fn of_mirror(mirror: &Mirror) -> Vec<LinuxOnly> {
    let mut list = Vec::new();
    add_settings(mirror.sysctls(), &mut list);
    add_settings_of_links(mirror, &mut list);
    mirror.links().for_each(|link| add_upper(mirror, link, &mut list));
    mirror
        .uppers()
        .iter()
        .for_each(|(lower, uppers)| add_uppers_elsewhere(mirror, *lower, uppers, &mut list));
    if let Some(why) = mirror.all_addresses().find_map(|address| special_address(mirror, address)) {
        list.push(why);
    }
    if let Some(why) = special_routes(mirror, mirror.ipv4()) {
        list.push(setting(errors(Family::V4), why));
    }
    if let Some(why) = special_routes(mirror, mirror.ipv6()) {
        list.push(setting(errors(Family::V6), why));
    }
    list
}

fn setting(traffic: Traffic, why: impl Into<String>) -> LinuxOnly {
    LinuxOnly { feature: Feature::Setting, traffic, repeats: Repeats::EachPacket, why: why.into() }
}

fn of_interface(traffic: Traffic, why: String) -> LinuxOnly {
    LinuxOnly { feature: Feature::Interface, traffic, repeats: Repeats::EachPacket, why }
}

fn all(family: Family) -> Traffic {
    Traffic::All { ipv4: family == Family::V4, ipv6: family == Family::V6 }
}

fn errors(family: Family) -> Traffic {
    Traffic::Errors { ipv4: family == Family::V4, ipv6: family == Family::V6 }
}

/// Settings that are the same for all links.
fn add_settings(now: &Sysctls, list: &mut Vec<LinuxOnly>) {
    let usual = Sysctls::default();
    let mut add = |differs: bool, traffic: Traffic, path: &str, value: u32| {
        if differs {
            list.push(setting(traffic, format!("net.{path} is {value}")));
        }
    };
    let pmtu = now.ip_forward_use_pmtu;
    add(pmtu != 0, all(Family::V4), "ipv4.ip_forward_use_pmtu", pmtu);
    let silent = now.skip_notify_on_dev_down;
    add(silent != 0, all(Family::V6), "ipv6.route.skip_notify_on_dev_down", silent);
    let (number, length) = (now.max_hbh_opts_number, now.max_hbh_length);
    add(number != usual.max_hbh_opts_number, all(Family::V6), "ipv6.max_hbh_opts_number", number);
    add(length != usual.max_hbh_length, all(Family::V6), "ipv6.max_hbh_length", length);
    let (four, six) = (now.icmp_errors_extension_mask, now.icmpv6_errors_extension_mask);
    add(four != 0, errors(Family::V4), "ipv4.icmp_errors_extension_mask", four);
    add(six != 0, errors(Family::V6), "ipv6.icmp.errors_extension_mask", six);
    let labels = now.auto_flowlabels;
    add(labels != usual.auto_flowlabels, errors(Family::V6), "ipv6.auto_flowlabels", labels);
    let cost = now.route_error_cost;
    let is_usual = TICKS.contains(&cost) && now.route_error_burst == 5 * cost;
    add(cost != 0 && !is_usual, errors(Family::V4), "ipv4.route.error_cost", cost);
}

/// Settings of links, and those for all of them.
fn add_settings_of_links(mirror: &Mirror, list: &mut Vec<LinuxOnly>) {
    if mirror.netconf_of(Family::V6, netconf::ALL).proxy_neigh {
        // Linux answers solicitations to addresses of others; options may be ahead of them.
        let addresses = Addresses::Ipv6(None, None);
        let of = Match { protocol: Some(protocol::ICMPV6), addresses, ..Match::default() };
        list.push(setting(Traffic::Matching(of), "net.ipv6.conf.all.proxy_ndp is 1"));
    }
    if mirror.sysctls().route_localnet != 0 {
        add_localnet(None, "all", list);
        return;
    }
    for link in mirror.links().filter(|link| mirror.link_sysctls(link.ifindex).route_localnet) {
        add_localnet(Some(link.ifindex), &link.name, list);
    }
}

/// Packets from and to 127.0.0.0/8.
fn add_localnet(input: Option<u32>, name: &str, list: &mut Vec<LinuxOnly>) {
    let localnet = Ipv4Prefix::containing(0x7f00_0000, 8);
    for addresses in [Addresses::Ipv4(localnet, None), Addresses::Ipv4(None, localnet)] {
        let of = Match { input, addresses, ..Match::default() };
        list.push(setting(Traffic::Matching(of), format!("net.ipv4.conf.{name}.route_localnet is 1")));
    }
    list.push(setting(errors(Family::V4), format!("net.ipv4.conf.{name}.route_localnet is 1")));
}

/// What an interface does to those below it.
fn add_upper(mirror: &Mirror, link: &Link, list: &mut Vec<LinuxOnly>) {
    if link.maps_priorities {
        let why = format!("{} maps priorities to those of VLAN tags", link.name);
        list.push(of_interface(Traffic::Out(link.ifindex), why));
    }
    let own = link.lower.filter(|_| link.lower_namespace.is_none() && takes_frames(mirror, link));
    for lower in own.into_iter().chain(link.takes_from.iter().copied()) {
        let why = format!("{} ({}) takes frames of {}", link.name, link.kind, name_of(mirror, lower));
        list.push(of_interface(Traffic::In(lower), why));
    }
}

/// What interfaces in other namespaces do to the one below them.
fn add_uppers_elsewhere(mirror: &Mirror, lower: u32, uppers: &[Upper], list: &mut Vec<LinuxOnly>) {
    let taker = uppers.iter().find(|upper| {
        &*upper.kind != "vlan" && takes_frames_of_kind(&upper.kind, upper.macvlan_mode, upper.same_mac)
    });
    if let Some(Upper { ifindex, namespace, kind, .. }) = taker {
        let name = name_of(mirror, lower);
        let why =
            format!("interface {ifindex} ({kind}) in network namespace {namespace} takes frames of {name}");
        list.push(of_interface(Traffic::In(lower), why));
    }
}

fn name_of(mirror: &Mirror, ifindex: u32) -> String {
    mirror.link(ifindex).map_or_else(|| ifindex.to_string(), |link| link.name.to_string())
}

/// Whether an interface takes frames that are sent to the MAC address of the one below it.
fn takes_frames(mirror: &Mirror, link: &Link) -> bool {
    let Kind::Other(kind) = &link.kind else { return false };
    let below = link.lower.and_then(|lower| mirror.link(lower));
    takes_frames_of_kind(kind, link.macvlan_mode, below.is_some_and(|below| below.mac == link.mac))
}

fn takes_frames_of_kind(kind: &str, macvlan_mode: Option<u32>, same_mac: bool) -> bool {
    match macvlan_mode {
        Some(mode) => !BY_MAC.contains(&mode) || same_mac,
        None => !HARMLESS.contains(&kind),
    }
}

/// Why errors are left to Linux because of an address: it chooses by scope, the other end's address and age.
fn special_address(mirror: &Mirror, address: &Address) -> Option<LinuxOnly> {
    let family = Family::of(&address.local);
    let (is_loopback, plain) = match address.local {
        IpAddr::V4(local) => (local.is_loopback(), PLAIN_IPV4),
        IpAddr::V6(local) => (local.is_loopback() || local.is_unicast_link_local(), PLAIN_IPV6),
    };
    let what = match address {
        _ if is_loopback => return None,
        Address { peer: Some(_), .. } => "a peer",
        Address { scope, .. } if *scope != UNIVERSE => "a scope",
        Address { flags, .. } if flags & !plain != 0 => "a flag that keeps it from being a usual source",
        _ => return None,
    };
    let name = mirror.link(address.ifindex).map_or_else(String::new, |link| format!(" of {}", link.name));
    Some(setting(errors(family), format!("address {}{name} has {what}", address.local)))
}

/// Why errors are left to Linux because of a route: as the way back to a source it prefers an address, or does not
/// say which.
fn special_routes<A: prefix::Address>(mirror: &Mirror, routes: &Routes<A>) -> Option<String> {
    routes.bodies().map(|(_, body)| body).find_map(|body| match body {
        RouteBody { hop_limit: 1.., .. } => Some(format!("a route sets the hop limit of errors: {body}")),
        // It gets the advertised one after its message.
        RouteBody { protocol: BY_ADVERTISEMENT, kind: RouteKind::Unicast, .. } if A::FAMILY == Family::V6 => {
            Some("a router's advertisement may set the hop limit of errors".into())
        }
        RouteBody { protocol: BY_KERNEL, .. } => None,
        RouteBody { preferred_source: Some(source), .. } => {
            Some(format!("a route prefers the source {source}"))
        }
        RouteBody { kind: RouteKind::Unicast, .. } if A::FAMILY == Family::V4 && is_on_link(mirror, body) => {
            Some(format!("a route to a link names no source: {body}"))
        }
        _ => None,
    })
}

/// Whether destinations are neighbors on an Ethernet link.
fn is_on_link(mirror: &Mirror, body: &RouteBody) -> bool {
    let neighbors = |hop: &Hop| {
        hop.gateway.is_none()
            && hop.encap == 0
            && mirror.link(hop.ifindex).is_some_and(|link| link.hardware == ETHERNET)
    };
    match &body.via {
        Via::Object(_) => mirror.paths(body).hops.iter().any(neighbors),
        via => via.hops().iter().any(neighbors),
    }
}

#[cfg(test)]
mod tests;
