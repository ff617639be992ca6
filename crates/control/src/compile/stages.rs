//! The kernel's tables in which a destination is looked up, in order.
//!
//! ```text
//! ip rule:   0 lookup local    1000 lookup [l3mdev-table]    32766 lookup main    32767 lookup default
//! main:      local ───────────────────────────────────────►  main ─────────────►  default ─► no route
//! VRF n:     local ──────────►  its table ─► Linux decides (leaks are its business)
//! ```
//!
//! Rules that match anything but the VRF cannot be represented by a lookup of the destination: a family with such a
//! rule is left to Linux. Until the first rule is added, the kernel keeps local and main in one trie, so that a longer
//! route of main beats a shorter one of local. So all routes of local lead to Linux, whatever they are, and what they
//! cover: it decides by itself.

use super::fib_info::RouteFamily;
use bm_netlink::route::{TABLE_DEFAULT, TABLE_LOCAL, TABLE_MAIN};
use bm_netlink::{Family, Mirror, Rule};
use bm_wire::prefix::Prefix;

/// `FR_ACT_TO_TBL`: the action of a rule that looks up a table.
const TO_TABLE: u8 = 1;

/// The tables, in the order of lookup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Stages {
    /// IDs of the tables in the kernel.
    pub tables: Vec<u32>,
    /// Packets without a route in any of them go to Linux; otherwise they are unreachable.
    pub else_linux: bool,
}

impl Stages {
    /// The stages of the main table, or of the VRF with table `vrf`.
    pub fn from_rules(mirror: &Mirror, family: Family, vrf: Option<u32>) -> Self {
        let mut rules: Vec<&Rule> = mirror.rules().iter().filter(|rule| rule.family == family).collect();
        if rules.is_empty() {
            return Self::without_rules(family, vrf);
        }
        rules.sort_by_key(|rule| rule.priority);
        let mut stages = Self::default();
        for rule in rules.into_iter().filter(|rule| serves_all(rule)) {
            match (rule.l3mdev, vrf) {
                (true, None) => {}
                (true, Some(table)) => return stages.ended_by(table),
                (false, _) if !stages.tables.contains(&rule.table) => stages.tables.push(rule.table),
                (false, _) => {}
            }
        }
        match vrf {
            // No rule leads to its table: a copy of main for each VRF would cost too much.
            Some(_) => Self { tables: Vec::new(), else_linux: true },
            None => stages,
        }
    }

    /// The tables of a kernel without policy routing, or whose rules are not known yet.
    fn without_rules(family: Family, vrf: Option<u32>) -> Self {
        let local = Self { tables: vec![TABLE_LOCAL], else_linux: false };
        let main = match family {
            Family::V4 => vec![TABLE_LOCAL, TABLE_MAIN, TABLE_DEFAULT],
            Family::V6 => vec![TABLE_LOCAL, TABLE_MAIN],
        };
        match vrf {
            Some(table) => local.ended_by(table),
            None => Self { tables: main, else_linux: false },
        }
    }

    fn ended_by(mut self, table: u32) -> Self {
        self.tables.push(table);
        self.else_linux = true;
        self
    }

    /// All prefixes in any of the tables or in doubt there, and the default prefix; sorted, without duplicates.
    pub fn prefixes<A: RouteFamily>(&self, mirror: &Mirror) -> Vec<Prefix<A>> {
        let routes = A::routes(mirror);
        let mut prefixes: Vec<Prefix<A>> = vec![Prefix::default()];
        for number in &self.tables {
            let table = routes.table(*number).into_iter();
            prefixes.extend(table.flat_map(|table| table.iter()).map(|(prefix, _)| prefix));
            prefixes.extend(routes.doubts_of(*number));
        }
        prefixes.sort_unstable();
        prefixes.dedup();
        prefixes
    }

    /// The position of a table in the order.
    pub fn position(&self, table: u32) -> Option<usize> {
        self.tables.iter().position(|stage| *stage == table)
    }
}

/// Whether a rule looks up a table for all packets.
fn serves_all(rule: &Rule) -> bool {
    rule.action == TO_TABLE
        && !rule.invert
        && rule.tos == 0
        && rule.source.is_none()
        && rule.destination.is_none()
        && rule.input.is_none()
        && rule.output.is_none()
        && rule.mark.is_none()
        && rule.suppress_length.is_none()
        && rule.others.is_empty()
}

/// Whether only Linux can route a family: by rules that match more than the destination, because there are none at all,
/// with which nothing has a route, or because only Linux knows whether it follows them, or which they are at present.
pub(super) fn is_left_to_linux(mirror: &Mirror, family: Family) -> bool {
    mirror.rules_in_doubt(family)
        || mirror.lost_all_rules(family)
        || mirror.may_ignore_rules(family)
        || unsupported(mirror, family).next().is_some()
}

/// The rules because of which packets of a family are left to Linux.
pub(super) fn unsupported(mirror: &Mirror, family: Family) -> impl Iterator<Item = &Rule> {
    mirror.rules().iter().filter(move |rule| rule.family == family && !serves_all(rule))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_netlink::Message;

    fn rule(priority: u32, table: u32) -> Rule {
        Rule::lookup(Family::V4, priority, table)
    }

    fn mirror(rules: &[Rule]) -> Mirror {
        let mut mirror = Mirror::default();
        rules.iter().for_each(|rule| mirror.apply(Message::Rule(rule.clone())));
        mirror
    }

    #[test]
    fn follows_the_default_routing_rules() {
        let usual = [rule(0, 255), rule(32_766, 254), rule(32_767, 253)];
        let mirror = mirror(&usual);
        let main = Stages { tables: vec![255, 254, 253], else_linux: false };
        assert_eq!(Stages::from_rules(&mirror, Family::V4, None), main);
        assert_eq!(Stages::from_rules(&Mirror::default(), Family::V4, None), main);
        assert_eq!(Stages::from_rules(&mirror, Family::V6, None).tables, [255, 254]);
        assert_eq!(unsupported(&mirror, Family::V4).count(), 0);
    }

    #[test]
    fn the_vrf_rule_is_applied_at_its_priority() {
        let vrf = Rule { l3mdev: true, ..rule(1000, 0) };
        let mirror = mirror(&[rule(32_765, 255), vrf, rule(32_766, 254)]);
        let of_ten = Stages { tables: vec![10], else_linux: true };
        assert_eq!(Stages::from_rules(&mirror, Family::V4, Some(10)), of_ten);
        assert_eq!(Stages::from_rules(&mirror, Family::V4, None).tables, [255, 254]);
        let without = self::mirror(&[rule(0, 255), rule(32_766, 254)]);
        let linux = Stages { tables: vec![], else_linux: true };
        assert_eq!(Stages::from_rules(&without, Family::V4, Some(10)), linux);
    }

    #[test]
    fn detects_rules_that_match_more_than_the_destination() {
        let from = Rule { source: Some(("192.0.2.0".parse().unwrap(), 24)), ..rule(100, 7) };
        let mirror = mirror(&[rule(0, 255), from.clone(), rule(200, 8), rule(32_766, 254)]);
        assert_eq!(unsupported(&mirror, Family::V4).collect::<Vec<_>>(), [&from]);
        assert_eq!(Stages::from_rules(&mirror, Family::V4, None).tables, [255, 8, 254]);
    }
}
