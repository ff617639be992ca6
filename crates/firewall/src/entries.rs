//! Builds the list: equal traffic once, and not more entries than a filter can hold.

use super::condition::Families;
use super::names::Names;
use super::{Counters, Feature, LinuxOnly, Match, Repeats, RulesetFacts, Traffic};
use std::collections::HashMap;

/// The most matches that are kept apart. More become [`Traffic::All`].
pub(super) const MATCHES_MAX: usize = 1000;

/// Why fragments are Linux's.
pub(super) const REASSEMBLES: &str = "connection tracking reassembles fragments";
/// Why packets are Linux's though no rule translates them.
pub(super) const TRANSLATES: &str = "connections keep the translation that they have";

/// Entries, in the order in which they were found.
#[derive(Debug, Default)]
pub(super) struct Entries {
    list: Vec<LinuxOnly>,
    /// The position of the entry for some traffic, and how many others were for the same.
    places: HashMap<(Feature, Traffic, Repeats), (usize, usize)>,
    /// Whether counters have to be right.
    pub counters: Counters,
    /// What was found out about the nftables ruleset, apart from its generation.
    pub facts: Option<RulesetFacts>,
}

impl Entries {
    /// None yet, where counters are as said.
    pub fn new(counters: Counters) -> Self {
        Self { counters, ..Self::default() }
    }

    /// Adds an entry that treats each packet on its own.
    pub fn add(&mut self, feature: Feature, traffic: Traffic, why: impl FnOnce() -> String) {
        self.add_that(Repeats::EachPacket, feature, traffic, why);
    }

    /// Adds an entry. One for the same traffic that repeats as well keeps its reason, and says how many more there are.
    pub(crate) fn add_that(
        &mut self,
        repeats: Repeats,
        feature: Feature,
        traffic: Traffic,
        why: impl FnOnce() -> String,
    ) {
        let nothing = Families { ipv4: false, ipv6: false };
        if [nothing.all(), nothing.fragments()].contains(&traffic) {
            return;
        }
        let place = self.list.len();
        let (_, count) = self.places.entry((feature, traffic.clone(), repeats)).or_insert((place, 0));
        *count += 1;
        if *count == 1 {
            self.list.push(LinuxOnly { feature, traffic, repeats, why: why() });
        }
    }

    /// Whether there is an entry for this traffic.
    pub(crate) fn has(&self, repeats: Repeats, feature: Feature, traffic: &Traffic) -> bool {
        self.places.contains_key(&(feature, traffic.clone(), repeats))
    }

    /// Adds packets that arrive on an interface or on those above it, such as VLANs.
    pub(crate) fn add_in(&mut self, feature: Feature, names: &Names, ifindex: u32, why: impl Fn() -> String) {
        for upper in names.with_uppers(ifindex) {
            self.add(feature, Traffic::In(upper), &why);
        }
    }

    /// Adds packets that leave through an interface or through those above it.
    pub(crate) fn add_out(
        &mut self,
        feature: Feature,
        names: &Names,
        ifindex: u32,
        why: impl Fn() -> String,
    ) {
        for upper in names.with_uppers(ifindex) {
            self.add(feature, Traffic::Out(upper), &why);
        }
    }

    /// Adds packets that arrive on an interface, or that leave through it.
    pub(crate) fn add_at(
        &mut self,
        feature: Feature,
        names: &Names,
        ifindex: u32,
        incoming: bool,
        why: impl Fn() -> String,
    ) {
        if incoming {
            self.add_in(feature, names, ifindex, why);
        } else {
            self.add_out(feature, names, ifindex, why);
        }
    }

    /// The list.
    pub fn finish(self) -> Vec<LinuxOnly> {
        let mut list = self.list;
        for (place, count) in self.places.into_values() {
            if let (Some(entry), more @ 1..) = (list.get_mut(place), count.saturating_sub(1)) {
                entry.why.push_str(&format!(" (and {more} more)"));
            }
        }
        list
    }
}

/// The list with at most [`MATCHES_MAX`] matches: those of the features that have most are replaced by all packets of
/// their families, apart for what repeats and what does not.
pub(super) fn bounded(mut list: Vec<LinuxOnly>) -> Vec<LinuxOnly> {
    loop {
        let mut counts: HashMap<(Feature, Repeats), usize> = HashMap::new();
        for entry in list.iter().filter(|entry| matches!(entry.traffic, Traffic::Matching(_))) {
            *counts.entry((entry.feature, entry.repeats)).or_default() += 1;
        }
        let greatest = counts.iter().max_by_key(|&(&of, &count)| (count, of));
        let Some((&(feature, repeats), &count)) = greatest else { return list };
        if counts.values().sum::<usize>() <= MATCHES_MAX {
            return list;
        }
        list = without_matches(list, feature, repeats, count);
    }
}

fn without_matches(list: Vec<LinuxOnly>, feature: Feature, repeats: Repeats, count: usize) -> Vec<LinuxOnly> {
    let (matches, mut rest): (Vec<_>, Vec<_>) = list.into_iter().partition(|entry| {
        let same = entry.feature == feature && entry.repeats == repeats;
        same && matches!(entry.traffic, Traffic::Matching(_))
    });
    let (mut ipv4, mut ipv6) = (false, false);
    for entry in &matches {
        let Traffic::Matching(matching) = &entry.traffic else { continue };
        let (four, six) = families(matching);
        (ipv4, ipv6) = (ipv4 || four, ipv6 || six);
    }
    let why = format!("{count} different matches, more than the {MATCHES_MAX} that brickmoon tells apart");
    rest.push(LinuxOnly { feature, traffic: Traffic::All { ipv4, ipv6 }, repeats, why });
    rest
}

/// The list without fragments of families of which the same feature leaves all packets to Linux.
pub(super) fn without_needless_fragments(mut list: Vec<LinuxOnly>) -> Vec<LinuxOnly> {
    let mut all: HashMap<Feature, (bool, bool)> = HashMap::new();
    for entry in &list {
        if let Traffic::All { ipv4, ipv6 } = entry.traffic {
            let of = all.entry(entry.feature).or_default();
            *of = (of.0 || ipv4, of.1 || ipv6);
        }
    }
    for entry in &mut list {
        let (four, six) = all.get(&entry.feature).copied().unwrap_or_default();
        if let Traffic::Fragments { ipv4, ipv6 } = &mut entry.traffic {
            (*ipv4, *ipv6) = (*ipv4 && !four, *ipv6 && !six);
        }
    }
    list.retain(|entry| entry.traffic != Traffic::Fragments { ipv4: false, ipv6: false });
    list
}

/// Whether packets of IPv4 and of IPv6 can match.
fn families(matching: &Match) -> (bool, bool) {
    match matching.addresses {
        super::Addresses::Any => (true, true),
        super::Addresses::Ipv4(..) => (true, false),
        super::Addresses::Ipv6(..) => (false, true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Addresses;

    fn to_port(port: u16) -> Traffic {
        let addresses = Addresses::Ipv4(None, None);
        Traffic::Matching(Match { addresses, destination_ports: Some(port..=port), ..Match::default() })
    }

    #[test]
    fn entries_for_the_same_packets_are_merged() {
        let mut entries = Entries::default();
        for rule in 1..=3 {
            entries.add(Feature::Nftables, Traffic::In(4), || format!("rule {rule}"));
        }
        entries.add(Feature::Xfrm, Traffic::In(4), || "a policy".into());
        entries.add(Feature::Xfrm, Traffic::All { ipv4: false, ipv6: false }, || "nothing".into());
        let why: Vec<_> = entries.finish().into_iter().map(|entry| entry.why).collect();
        assert_eq!(why, ["rule 1 (and 2 more)", "a policy"]);
    }

    #[test]
    fn fragments_are_not_listed_with_all_packets_of_their_family() {
        let entry = |feature, ipv4, ipv6, all: bool| {
            let families = Families { ipv4, ipv6 };
            let traffic = if all { families.all() } else { families.fragments() };
            LinuxOnly { feature, traffic, repeats: Repeats::EachPacket, why: String::new() }
        };
        let (nftables, iptables) = (Feature::Nftables, Feature::Iptables);
        let fragments = entry(nftables, true, true, false);
        let others = entry(iptables, true, false, true);
        assert_eq!(
            without_needless_fragments(vec![fragments.clone(), others.clone()]),
            [fragments.clone(), others.clone()],
            "what another feature leaves to Linux may be bypassed"
        );
        let four = entry(nftables, true, false, true);
        assert_eq!(
            without_needless_fragments(vec![fragments.clone(), four.clone()]),
            [entry(nftables, false, true, false), four]
        );
        let both = entry(nftables, true, true, true);
        assert_eq!(without_needless_fragments(vec![fragments, both.clone()]), [both]);
    }

    #[test]
    fn too_many_matches_become_all_packets_of_their_family() {
        let entry = |feature, traffic| LinuxOnly {
            feature,
            traffic,
            repeats: Repeats::EachPacket,
            why: String::new(),
        };
        let many = (0..MATCHES_MAX as u16).map(|port| entry(Feature::Nftables, to_port(port)));
        let mut list: Vec<_> = many.collect();
        assert_eq!(bounded(list.clone()), list);
        list.push(entry(Feature::Xfrm, to_port(9)));
        list.push(entry(Feature::Shaping, Traffic::Out(3)));
        let less = bounded(list);
        assert_eq!(less[..2], [entry(Feature::Xfrm, to_port(9)), entry(Feature::Shaping, Traffic::Out(3))]);
        assert_eq!(less[2].traffic, Traffic::All { ipv4: true, ipv6: false });
        assert_eq!(less[2].why, "1000 different matches, more than the 1000 that brickmoon tells apart");
        assert_eq!(less.len(), 3);
    }
}
