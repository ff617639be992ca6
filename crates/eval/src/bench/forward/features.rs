//! What features cost per packet: filters, a rate limit, the reverse path filter, hooks, multipath routes, VLAN tags and
//! several routing tables, beside the router without them. `all` has filters, the reverse path filter and the first hook.
//!
//! All packets pass, so the figures are the cost of the checks. `over_plain` compares with the router without features.

use std::sync::Arc;

use bm_filter::{Action, Filters, Flat, Rate, Rule, Tree};
use bm_forward::filter::{FilterSet, RuleCounts, SourceRates};
use bm_forward::tables::ReversePath;
use bm_graph::StageHook;
use bm_lua::hook::HookSet;
use bm_testbed::addresses::Pattern;

use super::bed::{Bed, Extras, Links, PORTS};
use super::mix;
use super::running::RunningEngine;
use super::{BREATHS, BenchError, breathe, check_all, rounded, routable};
use crate::alternate::{Subject, Turns, alternate};
use crate::bench::lua::hooks;
use crate::report::Row;

/// The name of the case.
pub(super) const CASE: &str = "features-full-prefix";
/// Number of rules of the filters.
const RULES: u16 = 100;
/// A rate that is never reached.
const RATE: Rate = Rate { packets: 10_000_000, burst: 10_000_000, lengths: [32, 64] };

/// What a router does besides forwarding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Feature {
    Nothing,
    /// 100 rules that drop, none of which matches.
    Filters,
    /// There must be a route to the source.
    ReversePath,
    /// A list of ports to drop, in Lua.
    Hook,
    All,
    /// More packets a second than ever arrive, for each source.
    Rate,
    /// A hook in Lua that does nothing, after the lookup.
    LookupHook,
    /// A hook in Lua that does nothing, behind everything.
    EgressHook,
    /// Each route has two next hops.
    Multipath,
    /// Packets leave with a tag.
    TagOut,
    /// Each port also has an interface with a tag in another routing table.
    Vrfs,
}

impl Feature {
    pub const ALL: [Self; 11] = [
        Self::Nothing,
        Self::Filters,
        Self::ReversePath,
        Self::Hook,
        Self::All,
        Self::Rate,
        Self::LookupHook,
        Self::EgressHook,
        Self::Multipath,
        Self::TagOut,
        Self::Vrfs,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "plain",
            Self::Filters => "filters",
            Self::ReversePath => "reverse-path",
            Self::Hook => "hook",
            Self::All => "all",
            Self::Rate => "rate",
            Self::LookupHook => "lookup-hook",
            Self::EgressHook => "egress-hook",
            Self::Multipath => "multipath",
            Self::TagOut => "tag-out",
            Self::Vrfs => "vrfs",
        }
    }

    fn is(self, other: Self) -> bool {
        self == other || self == Self::All
    }

    /// The hook, by the name of its case.
    fn hook(self) -> Option<&'static str> {
        match self {
            Self::Hook | Self::All => Some("hook-acl"),
            Self::LookupHook => Some("hook-lookup"),
            Self::EgressHook => Some("hook-egress"),
            _ => None,
        }
    }
}

/// A router with one of the features.
pub(super) struct Featured {
    pub running: RunningEngine,
    /// What leaves is not what leaves without the feature.
    differs: bool,
    /// The owner of the hook's Lua state.
    _hooks: Option<HookSet>,
}

/// A rule for UDP from another source, or for another port, than those of the packets.
fn rule(number: u16) -> Rule {
    let source = format!("10.{number}.0.0/16").parse().ok();
    let ports = Some(2000 + number..=2000 + number);
    let by_source = Rule { source, protocol: Some(17), ..Rule::default() };
    let by_port = Rule { destination_ports: ports, protocol: Some(17), ..Rule::default() };
    Rule { action: Action::Drop, ..if number.is_multiple_of(2) { by_source } else { by_port } }
}

/// Rules that no packet matches, half of them for sources and half for ports.
fn filters(rate: Option<Rate>) -> Result<Arc<FilterSet>, BenchError> {
    let flat = (0..RULES).flat_map(|number| Flat::from_rule(&rule(number), number, None));
    let tree = Tree::grow(flat.collect()).map_err(|error| BenchError::build("filters")(error.to_string()))?;
    Ok(Arc::new(FilterSet {
        filters: Arc::new(Filters { tree, rate, ..Filters::default() }),
        checks: Vec::new(),
        unknown: [false; 2],
        ports: vec![true; PORTS.len()],
        counts: Arc::new(RuleCounts::new().map_err(BenchError::build("counters"))?),
        rates: rate
            .map(|_| SourceRates::new(1))
            .transpose()
            .map_err(BenchError::build("rates"))?
            .map(Arc::new),
    }))
}

/// The router with a feature.
pub(super) fn router(bed: &Bed, feature: Feature) -> Result<Featured, BenchError> {
    let mut extras = Extras::default();
    if feature.is(Feature::Filters) {
        extras.filters = Some(filters(None)?);
    }
    if feature == Feature::Rate {
        extras.filters = Some(filters(Some(RATE))?);
    }
    if feature.is(Feature::ReversePath) {
        extras.reverse_path = ReversePath::Loose;
    }
    let mut hooks = None;
    if let Some(name) = feature.hook() {
        let (set, hook): (HookSet, Box<dyn StageHook>) = hooks::named(name, bed.frames(), &PORTS)?;
        (hooks, extras.hook) = (Some(set), Some(hook));
    }
    extras.links = match feature {
        Feature::Multipath => Links::Multipath,
        Feature::TagOut => Links::TagOut,
        Feature::Vrfs => Links::Vrfs,
        _ => Links::Plain,
    };
    let differs = matches!(feature, Feature::Multipath | Feature::TagOut);
    let running = if feature == Feature::TagOut {
        bed.router_of_ports_with(extras, |index, frames, sample| mix::ipv4_port(bed, index, frames, sample))?
    } else {
        bed.router_with(&routable(Pattern::Prefix, &bed.ipv4), extras)?
    };
    Ok(Featured { running, differs, _hooks: hooks })
}

/// Runs a router for a while and compares the frames that leave with the expected ones.
fn check(bed: &Bed, feature: Feature, featured: &mut Featured) -> Result<(), BenchError> {
    let case = format!("{CASE} {}", feature.name());
    if featured.differs {
        (0..BREATHS).for_each(|_| _ = featured.running.engine.breathe());
        let checked = featured.running.check_accounts();
        return checked.map_err(|counters| BenchError::Lost { case, counters });
    }
    check_all(&case, &bed.ipv4, std::slice::from_mut(&mut featured.running), 1)
}

/// Measures all features in turn.
pub(super) fn measure(bed: &Bed, turns: Turns) -> Result<Vec<Row>, BenchError> {
    let mut routers =
        Feature::ALL.map(|feature| router(bed, feature)).into_iter().collect::<Result<Vec<_>, _>>()?;
    check_each(bed, &mut routers)?;
    let mut works: Vec<_> = routers.iter_mut().map(|featured| || breathe(&mut featured.running)).collect();
    let mut subjects: Vec<Subject<'_>> = Feature::ALL
        .iter()
        .zip(&mut works)
        .map(|(feature, work)| (feature.name(), work as &mut dyn FnMut() -> u64))
        .collect();
    let measured = alternate(turns, &mut subjects);
    check_each(bed, &mut routers)?;
    let rows: Vec<_> = measured.iter().map(|measured| Row::mpps("forward", CASE, measured)).collect();
    let plain = rows[0].ns;
    let rows = rows.into_iter().map(|row| {
        let over = rounded(row.ns / plain);
        row.with("over_plain", over)
    });
    Ok(rows.collect())
}

fn check_each(bed: &Bed, routers: &mut [Featured]) -> Result<(), BenchError> {
    Feature::ALL.iter().zip(routers).try_for_each(|(&feature, featured)| check(bed, feature, featured))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_testbed::tables::{TableOptions, generate};
    use std::time::Duration;

    #[test]
    fn every_feature_is_used_and_all_packets_pass() {
        let options = TableOptions { ipv4: 5_000, ipv6: 100, ..TableOptions::default() };
        let bed = Bed::new(generate(&options).unwrap(), Bed::frame_pool_of(4).unwrap()).unwrap();
        let turns = Turns { runs: 3, slot: Duration::from_millis(2), warm_up: Duration::from_millis(1) };
        let rows = measure(&bed, turns).unwrap();
        let names: Vec<_> = rows.iter().map(|row| row.subject.as_str()).collect();
        assert_eq!(names, Feature::ALL.map(Feature::name));
        assert!(rows.iter().all(|row| row.median > 0.0 && row.detail.contains_key("over_plain")));
        // The filters saw the packets, and none matched.
        let set = filters(None).unwrap();
        let extras = Extras { filters: Some(set.clone()), ..Extras::default() };
        let mut running = bed.router_with(&routable(Pattern::Prefix, &bed.ipv4), extras).unwrap();
        assert!(breathe(&mut running) > 1000);
        assert!(set.counts.count(bm_filter::UNMATCHED) > 1000);
        assert!((0..RULES).all(|rule| set.counts.count(rule) == 0));
    }
}
