//! The list of packets that only Linux may handle: which entries the configuration bypasses, and how they are shown.

use std::net::IpAddr;

use bm_api::{Bypassed, Firewall as Shown, LinuxOnlyTo, RouteQuery, Routes};
use bm_filter::{AnyAddress, Flat, Key, Kind};
use bm_firewall::{Addresses, LinuxOnly, Match, RulesetFacts, Traffic};
use bm_netlink::Mirror;
use bm_wire::Family;
use bm_wire::ipv4::Ipv4;
use bm_wire::ipv6::Ipv6;

use crate::compile::{families_by_flow, leaves_by, rule_of};
use crate::config::{Firewall, FirewallMode};

/// What Linux's firewall looks like.
#[derive(Clone, Debug, Default)]
pub(super) struct FirewallState {
    /// Packets that only Linux may handle.
    pub list: Vec<LinuxOnly>,
    /// About the rules that the list was made from.
    pub facts: RulesetFacts,
}

/// The list, and the configuration that decides which entries are in effect.
#[derive(Default)]
pub(super) struct LinuxOnlyList {
    list: Vec<LinuxOnly>,
    /// What follows from the mirror.
    known: Vec<LinuxOnly>,
    firewall: Firewall,
    /// Whether there is a table of flows.
    flows: bool,
}

/// Why a packet is left to Linux, in words; or what would leave it to Linux if it were not bypassed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum About {
    Applies(String),
    Bypassed(String),
}

impl LinuxOnlyList {
    pub fn new(firewall: Firewall, flows: bool) -> Self {
        Self { firewall, flows, ..Self::default() }
    }

    /// Sets the list; `false` if it has not changed.
    pub fn set(&mut self, list: Vec<LinuxOnly>) -> bool {
        let differs = self.list != list;
        self.list = list;
        differs
    }

    /// Follows what the mirror has. If that has changed, returns the entries that were in effect before.
    ///
    /// Workers that encrypt send all errors, whatever settings, addresses and routes there are: Linux does not know the
    /// tunnels.
    pub fn follow(&mut self, mirror: &Mirror, workers_encrypt: bool) -> Option<Vec<LinuxOnly>> {
        let mut now = bm_firewall::of_mirror(mirror);
        now.retain(|entry| !workers_encrypt || !matches!(entry.traffic, Traffic::Errors { .. }));
        if self.known == now {
            return None;
        }
        let before = self.in_effect();
        self.known = now;
        Some(before)
    }

    /// Sets the configuration.
    pub fn configure(&mut self, firewall: &Firewall) {
        self.firewall = firewall.clone();
    }

    /// The entries that are not bypassed.
    pub fn in_effect(&self) -> Vec<LinuxOnly> {
        let in_effect = self.list.iter().filter(|entry| !self.firewall.bypasses(entry.feature));
        in_effect.chain(&self.known).cloned().collect()
    }

    /// Whether any entry is bypassed.
    pub fn bypasses(&self) -> bool {
        self.list.iter().any(|entry| self.firewall.bypasses(entry.feature))
    }

    /// The bypassed entries, by key.
    fn bypassed(&self) -> impl Iterator<Item = (&'static str, Vec<&LinuxOnly>)> {
        let keys = self.firewall.all().into_iter().filter(|(_, mode)| *mode == FirewallMode::Bypass);
        keys.map(|(key, _)| {
            let entries = self.list.iter().filter(|entry| Firewall::key(entry.feature) == Some(key));
            (key, entries.collect())
        })
    }

    pub fn shown(&self, mirror: &Mirror) -> Shown {
        Shown {
            linux_only: self.in_effect().iter().map(|entry| self.shown_entry(mirror, entry)).collect(),
            bypassed: self
                .bypassed()
                .map(|(key, list)| Bypassed {
                    setting: key.into(),
                    packets: list.into_iter().map(|entry| shown(mirror, entry, false)).collect(),
                })
                .collect(),
        }
    }

    /// Converts an entry for a reply.
    fn shown_entry(&self, mirror: &Mirror, entry: &LinuxOnly) -> bm_api::LinuxOnly {
        shown(mirror, entry, self.flows && families_by_flow(entry).is_some())
    }

    /// Logs added and removed entries.
    pub fn log_changes(&self, before: &[LinuxOnly], mirror: &Mirror) {
        let now = self.in_effect();
        for entry in now.iter().filter(|entry| !before.contains(entry)) {
            let packets = packets(mirror, &entry.traffic);
            if self.flows && families_by_flow(entry).is_some() {
                let LinuxOnly { feature, why, .. } = entry;
                tracing::info!("left to Linux: {packets} (first packets of each flow): {feature}: {why}");
                continue;
            }
            let hint = Firewall::key(entry.feature).map_or_else(String::new, |key| {
                format!(" (set {key} = \"bypass\" in [firewall] to forward them anyway)")
            });
            tracing::warn!("left to Linux: {packets}: {}: {}{hint}", entry.feature, entry.why);
        }
        for entry in before.iter().filter(|entry| !now.contains(entry)) {
            let packets = packets(mirror, &entry.traffic);
            tracing::info!("no longer left to Linux: {packets}: {}: {}", entry.feature, entry.why);
        }
    }

    /// Logs bypassed entries.
    pub fn log_bypassed(&self, mirror: &Mirror) {
        for (key, list) in self.bypassed() {
            if list.is_empty() {
                tracing::warn!("[firewall] {key} = \"bypass\": nothing to bypass at present");
            }
            for entry in list {
                let packets = packets(mirror, &entry.traffic);
                tracing::warn!(
                    "[firewall] {key} = \"bypass\": forwarding {packets} although Linux has: {}",
                    entry.why
                );
            }
        }
    }

    /// The entries for packets that arrive or leave on these links.
    pub fn of_links(&self, mirror: &Mirror, links: Vec<u32>) -> Vec<bm_api::LinuxOnly> {
        let in_effect = self.in_effect();
        let entries = in_effect.iter().filter(|entry| match &entry.traffic {
            Traffic::In(link) | Traffic::Out(link) => leaves_by(mirror, *link, &links),
            Traffic::Matching(of) => of.input.is_none_or(|link| leaves_by(mirror, link, &links)),
            Traffic::All { .. } | Traffic::Fragments { .. } | Traffic::Errors { .. } => true,
        });
        entries.map(|entry| self.shown_entry(mirror, entry)).collect()
    }

    /// The entries for packets to the address in `query`, which take `routes`.
    pub fn to_address(&self, query: &RouteQuery, routes: &Routes, mirror: &Mirror) -> Vec<LinuxOnlyTo> {
        let Some(address) = query.address.as_ref().and_then(|address| address.parse::<IpAddr>().ok()) else {
            return Vec::new();
        };
        let address = match address {
            IpAddr::V4(address) => AnyAddress::V4(address.into()),
            IpAddr::V6(address) => AnyAddress::V6(address.into()),
        };
        let out: Vec<u32> =
            routes.routes.iter().flat_map(|route| &route.hops).map(|hop| hop.ifindex).collect();
        let about = self.about(address, mirror, &out);
        about.map(|(entry, all)| LinuxOnlyTo { all, entry: self.shown_entry(mirror, &entry) }).collect()
    }

    /// Why a packet that arrives on the link `input`, and leaves by `out` if it has a route, is left to Linux; or which
    /// bypassed entry would otherwise leave it to Linux.
    pub fn about_packet(
        &self,
        mirror: &Mirror,
        packet: &[u8],
        input: u32,
        out: Option<u32>,
    ) -> Option<About> {
        let key = bm_ipsec::key(packet)?;
        let is_ipv4 = matches!(key.destination(), AnyAddress::V4(_));
        let is_fragment = Ipv4::parse(packet).map_or_else(
            |_| Ipv6::parse(packet).is_ok_and(|ip| ip.upper().is_ok_and(|upper| !upper.is_head())),
            |ip| ip.is_fragment(),
        );
        let entries = self.list.iter().chain(&self.known).filter(|entry| match &entry.traffic {
            Traffic::All { ipv4, ipv6 } => {
                if is_ipv4 {
                    *ipv4
                } else {
                    *ipv6
                }
            }
            Traffic::Fragments { ipv4, ipv6 } => is_fragment && if is_ipv4 { *ipv4 } else { *ipv6 },
            Traffic::Errors { .. } => false,
            Traffic::In(link) => leaves_by(mirror, *link, &[input]),
            Traffic::Out(link) => out.is_some_and(|out| leaves_by(mirror, *link, &[out])),
            Traffic::Matching(of) => {
                of.input.is_none_or(|link| leaves_by(mirror, link, &[input]))
                    && Flat::may_match(&rule_of(of), None).any(|rule| rule.matches(&key))
            }
        });
        // Those that are not bypassed come first.
        let entry = entries.min_by_key(|entry| self.firewall.bypasses(entry.feature))?;
        let said = format!("{}: {}: {}", packets(mirror, &entry.traffic), entry.feature, entry.why);
        Some(match self.firewall.bypasses(entry.feature) {
            false => About::Applies(said),
            true => {
                let key = Firewall::key(entry.feature).unwrap_or_default();
                About::Bypassed(format!("bypassed by [firewall] {key}: {said}"))
            }
        })
    }

    /// The entries that concern packets to an address, and whether each covers all of them.
    fn about<'a>(
        &'a self,
        address: AnyAddress,
        mirror: &'a Mirror,
        out: &'a [u32],
    ) -> impl Iterator<Item = (LinuxOnly, bool)> + 'a {
        self.in_effect().into_iter().filter_map(move |entry| {
            let all = match &entry.traffic {
                Traffic::All { ipv4, ipv6 } => match address {
                    AnyAddress::V4(_) => ipv4.then_some(true),
                    AnyAddress::V6(_) => ipv6.then_some(true),
                },
                Traffic::Fragments { ipv4, ipv6 } | Traffic::Errors { ipv4, ipv6 } => match address {
                    AnyAddress::V4(_) => ipv4.then_some(false),
                    AnyAddress::V6(_) => ipv6.then_some(false),
                },
                Traffic::In(_) => Some(false),
                Traffic::Out(link) => leaves_by(mirror, *link, out).then_some(true),
                Traffic::Matching(of) => matches_destination(of, address),
            };
            Some((entry, all?))
        })
    }
}

/// `Some` if packets to an address can match: whether all do.
fn matches_destination(of: &Match, address: AnyAddress) -> Option<bool> {
    // Everything but the destination aside, a rule matches by the destination alone.
    let (alone, key) = match address {
        AnyAddress::V4(to) => (destination_of(of, Family::V4)?, Key::ipv4([0, to], 0, 0, Kind::None)),
        AnyAddress::V6(to) => {
            let mut words = [0; 8];
            for (at, word) in words[4..].iter_mut().enumerate() {
                *word = (to >> (96 - 32 * at)) as u32;
            }
            (destination_of(of, Family::V6)?, Key::ipv6(words, 0, 0, Kind::None))
        }
    };
    let some = Flat::may_match(&rule_of(&alone), None).any(|rule| rule.matches(&key));
    some.then(|| *of == alone)
}

/// The destination part of a match; `None` if it is for the other family.
fn destination_of(of: &Match, family: Family) -> Option<Match> {
    let addresses = match (&of.addresses, family) {
        (Addresses::Any, _) => Addresses::Any,
        (Addresses::Ipv4(_, destination), Family::V4) => Addresses::Ipv4(None, *destination),
        (Addresses::Ipv6(_, destination), Family::V6) => Addresses::Ipv6(None, *destination),
        _ => return None,
    };
    Some(Match { addresses, ..Match::default() })
}

/// Converts an entry for a reply.
fn shown(mirror: &Mirror, entry: &LinuxOnly, first_packets: bool) -> bm_api::LinuxOnly {
    let link = match &entry.traffic {
        Traffic::In(link) | Traffic::Out(link) => Some(*link),
        Traffic::Matching(of) => of.input,
        Traffic::All { .. } | Traffic::Fragments { .. } | Traffic::Errors { .. } => None,
    };
    bm_api::LinuxOnly {
        feature: entry.feature.to_string(),
        packets: packets(mirror, &entry.traffic),
        ports: link.map(|link| name(mirror, link)).into_iter().collect(),
        why: entry.why.clone(),
        setting: Firewall::key(entry.feature).unwrap_or_default().into(),
        first_packets,
    }
}

fn name(mirror: &Mirror, link: u32) -> String {
    mirror.link(link).map_or_else(|| format!("interface {link}"), |link| link.name.to_string())
}

/// Describes packets in words.
fn packets(mirror: &Mirror, traffic: &Traffic) -> String {
    match traffic {
        Traffic::All { ipv4: true, ipv6: false } => "all IPv4 packets".into(),
        Traffic::All { ipv4: false, ipv6: true } => "all IPv6 packets".into(),
        Traffic::All { .. } => "all packets".into(),
        Traffic::Fragments { ipv4: true, ipv6: false } => "all IPv4 fragments".into(),
        Traffic::Fragments { ipv4: false, ipv6: true } => "all IPv6 fragments".into(),
        Traffic::Fragments { .. } => "all fragments".into(),
        Traffic::Errors { ipv4: true, ipv6: false } => "ICMP errors about IPv4 packets".into(),
        Traffic::Errors { ipv4: false, ipv6: true } => "ICMP errors about IPv6 packets".into(),
        Traffic::Errors { .. } => "ICMP errors about forwarded packets".into(),
        Traffic::In(link) => format!("all packets that arrive on {}", name(mirror, *link)),
        Traffic::Out(link) => format!("all packets that leave by {}", name(mirror, *link)),
        Traffic::Matching(of) => {
            let mut rule = rule_of(of);
            rule.port = of.input.map(|link| name(mirror, link));
            let family = match &of.addresses {
                Addresses::Any => "packets",
                Addresses::Ipv4(..) => "IPv4 packets",
                Addresses::Ipv6(..) => "IPv6 packets",
            };
            if matches!(of.addresses, Addresses::Ipv4(None, _) | Addresses::Ipv6(None, _)) {
                rule.source = None;
            }
            format!("{family}: {rule}")
        }
    }
}

/// A list that covers another one and can be applied faster: rules are replaced by all packets of their families.
pub(super) fn whole_families(list: &[LinuxOnly]) -> Vec<LinuxOnly> {
    let mut families = list.to_vec();
    for entry in &mut families {
        if let Traffic::Matching(of) = &entry.traffic {
            let ipv4 = !matches!(of.addresses, Addresses::Ipv6(..));
            let ipv6 = !matches!(of.addresses, Addresses::Ipv4(..));
            entry.traffic = Traffic::All { ipv4, ipv6 };
        }
    }
    families
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_firewall::{Feature, Repeats};
    use bm_netlink::Sysctls;

    fn entry(feature: Feature, traffic: Traffic) -> LinuxOnly {
        LinuxOnly { feature, traffic, repeats: Repeats::EachPacket, why: "a rule".into() }
    }

    fn to(prefix: &str, protocol: Option<u8>) -> Match {
        let addresses = Addresses::Ipv4(None, prefix.parse().ok());
        Match { addresses, protocol, ..Match::default() }
    }

    #[test]
    fn entries_that_repeat_are_shown_as_such_if_there_are_flows() {
        let each = entry(Feature::Nftables, Traffic::All { ipv4: true, ipv6: false });
        let list = vec![LinuxOnly { repeats: Repeats::EachFlow, ..each.clone() }, each];
        for flows in [true, false] {
            let mut listed = LinuxOnlyList::new(Firewall::default(), flows);
            listed.set(list.clone());
            let shown = listed.shown(&Mirror::default());
            let first_packets = shown.linux_only.iter().map(|entry| entry.first_packets);
            assert_eq!(first_packets.collect::<Vec<_>>(), [flows, false]);
            // Those that are bypassed are about all packets.
            listed.firewall = Firewall { nftables: FirewallMode::Bypass, ..Firewall::default() };
            let shown = listed.shown(&Mirror::default());
            let mut bypassed = shown.bypassed.iter().flat_map(|bypassed| &bypassed.packets);
            assert!(bypassed.all(|entry| !entry.first_packets));
        }
    }

    #[test]
    fn bypassed_entries_are_not_applied_but_shown() {
        let firewall =
            Firewall { nftables: FirewallMode::Bypass, shaping: FirewallMode::Bypass, ..Firewall::default() };
        let mut listed = LinuxOnlyList::new(firewall, false);
        let [legacy, xfrm] = [Feature::Iptables, Feature::Xfrm]
            .map(|feature| entry(feature, Traffic::All { ipv4: true, ipv6: false }));
        assert!(listed.set(vec![legacy, xfrm.clone()]) && !listed.set(listed.list.clone()));
        assert_eq!(listed.in_effect(), [xfrm]);
        assert!(listed.bypasses() && !LinuxOnlyList::new(listed.firewall.clone(), false).bypasses());
        let shown = listed.shown(&Mirror::default());
        assert_eq!(shown.linux_only[0].packets, "all IPv4 packets");
        let bypassed = shown.bypassed.iter().map(|by| (&*by.setting, by.packets.len()));
        assert_eq!(bypassed.collect::<Vec<_>>(), [("nftables", 1), ("shaping", 0)]);
        // `explain` names what applies, and otherwise what is bypassed.
        let mut packet = [0; 28];
        (packet[0], packet[3], packet[8], packet[9]) = (0x45, 28, 64, 17);
        let about = |listed: &LinuxOnlyList| listed.about_packet(&Mirror::default(), &packet, 1, None);
        assert_eq!(about(&listed), Some(About::Applies("all IPv4 packets: xfrm: a rule".into())));
        listed.list.retain(|entry| entry.feature != Feature::Xfrm);
        let bypassed = "bypassed by [firewall] nftables: all IPv4 packets: iptables: a rule";
        assert_eq!(about(&listed), Some(About::Bypassed(bypassed.into())));
    }

    /// Linux would choose the source, but the error may have to go through a tunnel.
    #[test]
    fn workers_that_encrypt_send_all_errors() {
        let mut mirror = Mirror::default();
        let sysctls = Sysctls { auto_flowlabels: 0, ip_forward_use_pmtu: 1, ..Sysctls::default() };
        mirror.set_sysctls(sysctls);
        let [packets, errors] =
            [Traffic::All { ipv4: true, ipv6: false }, Traffic::Errors { ipv4: false, ipv6: true }];
        let mut listed = LinuxOnlyList::default();
        let known = |listed: &LinuxOnlyList| {
            listed.in_effect().into_iter().map(|entry| entry.traffic).collect::<Vec<_>>()
        };
        assert_eq!(listed.follow(&mirror, true), Some(vec![]));
        assert_eq!(known(&listed), std::slice::from_ref(&packets));
        assert!(listed.follow(&mirror, false).is_some());
        assert_eq!(known(&listed), [packets, errors.clone()]);
        // A firewall's chain at output may drop errors, tunnels or not.
        let mut listed = LinuxOnlyList::default();
        listed.set(vec![entry(Feature::Nftables, errors.clone())]);
        listed.follow(&Mirror::default(), true);
        assert_eq!(known(&listed), [errors]);
    }

    #[test]
    fn reports_whether_all_packets_to_an_address_match() {
        let address = AnyAddress::V4(0x0a01_0203);
        assert_eq!(matches_destination(&to("10.0.0.0/8", None), address), Some(true));
        assert_eq!(matches_destination(&to("10.0.0.0/8", Some(6)), address), Some(false));
        assert_eq!(matches_destination(&to("11.0.0.0/8", None), address), None);
        let six = Match { addresses: Addresses::Ipv6(None, None), ..Match::default() };
        assert_eq!(matches_destination(&six, address), None);
        assert_eq!(matches_destination(&six, AnyAddress::V6(1)), Some(true));
        assert_eq!(matches_destination(&Match::default(), address), Some(true));
        assert_eq!(matches_destination(&Match { input: Some(3), ..Match::default() }, address), Some(false));
    }

    #[test]
    fn lists_are_described_in_words() {
        let mirror = Mirror::default();
        let said = |traffic| packets(&mirror, &traffic);
        assert_eq!(said(Traffic::Fragments { ipv4: true, ipv6: true }), "all fragments");
        assert_eq!(said(Traffic::Out(7)), "all packets that leave by interface 7");
        let ports = Match { destination_ports: Some(22..=22), ..to("10.0.0.0/8", Some(6)) };
        assert_eq!(said(Traffic::Matching(ports)), "IPv4 packets: tcp from any to 10.0.0.0/8 port 22");
    }

    #[test]
    fn a_wider_list_covers_all() {
        let list = [
            entry(Feature::Xfrm, Traffic::Matching(to("10.0.0.0/8", None))),
            entry(Feature::Xfrm, Traffic::In(3)),
        ];
        let wide = whole_families(&list);
        assert_eq!(wide[0].traffic, Traffic::All { ipv4: true, ipv6: false });
        assert_eq!(wide[1], list[1]);
    }
}
