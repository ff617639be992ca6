//! Compares the compiled tables with the mirror: computes every route again, looks up every entry, and compares every
//! next hop and interface.
//!
//! The mirror itself is compared with the kernel elsewhere (`bm_netlink::Watch`); `brickmoon verify` reports both.

use super::Compiler;
use super::comparison::Comparison;
use super::family;
use super::fib_info::RouteFamily;
use super::targets::Targets;
use super::view::View;
use bm_api::Area;
use bm_netlink::Mirror;
use std::sync::Arc;

impl Compiler {
    /// Compares all compiled state with the mirror, and lists the routes that could not be compiled, so that Linux forwards
    /// their packets. All changes of the mirror must have been applied.
    pub fn verify(&mut self, mirror: &Mirror) -> Comparison {
        let interfaces = Arc::clone(self.interfaces());
        let view = View { mirror, interfaces: &interfaces };
        let mut comparison = Comparison::default();
        self.check_interfaces(mirror, &mut comparison);
        self.targets.check(view, &mut comparison);
        check(&mut self.ipv4, view, &mut self.targets, &mut comparison);
        check(&mut self.ipv6, view, &mut self.targets, &mut comparison);
        // Computing entries adds users to targets and removes them again.
        self.targets.sweep();
        comparison
    }

    /// Compares the compiled rules with the current list of packets that only Linux may handle.
    fn check_linux_only(&self, rules: &[bm_filter::Flat], comparison: &mut Comparison) {
        let tree = self.state.filters.as_ref().map(|filters| &filters.tree);
        let searched = tree.is_some_and(|tree| tree.linux_only.is_some() && tree.rules.ends_with(rules));
        comparison.compared += rules.len();
        if searched == rules.is_empty() || self.state.linux_only_rules != rules {
            comparison.differs(Area::Compiled, || {
                let (has, should) = (self.state.linux_only_rules.len(), rules.len());
                format!("filters leave packets to Linux with {has} rules, expected {should}")
            });
        }
    }

    fn check_interfaces(&self, mirror: &Mirror, comparison: &mut Comparison) {
        let (now, rules) = self.interfaces_now(mirror, &self.vrfs(mirror));
        self.check_linux_only(&rules, comparison);
        let before = self.interfaces();
        comparison.compared += now.list.len();
        for (was, is) in before.list.iter().zip(&now.list).filter(|(was, is)| was != is) {
            comparison
                .differs(Area::Compiled, || format!("interface {} is {was:?}, expected {is:?}", was.name));
        }
        if before.list.len() != now.list.len() || before.ports != now.ports {
            comparison.differs(Area::Compiled, || {
                format!("ports have interfaces {:?}, expected {:?}", before.ports, now.ports)
            });
        }
    }
}

fn check<A: RouteFamily>(
    family: &mut family::Tables<A>,
    view: View<'_>,
    targets: &mut Targets,
    comparison: &mut Comparison,
) {
    let family::Tables { shared, vrfs, .. } = &mut *family;
    for table in vrfs.values_mut() {
        let mut context = super::context::Context { view, targets, shared };
        table.check(&mut context, comparison);
        for (prefix, shortage) in table.refused() {
            comparison
                .differs(Area::Refused, || format!("{prefix} goes to Linux: {}", shortage_text(shortage)));
        }
    }
    for (number, prefix, why) in family.faults(A::routes(view.mirror)) {
        comparison.differs(Area::Refused, || format!("{prefix} of table {number} goes to Linux: {why}"));
    }
}

/// Describes a lack of room for the operator.
pub(super) fn shortage_text(shortage: bm_fib::Shortage) -> &'static str {
    match shortage {
        bm_fib::Shortage::NextHop(_) => "too many next hops for a table entry",
        bm_fib::Shortage::Blocks => "no room for more long prefixes",
        bm_fib::Shortage::Memory => "not enough memory",
    }
}
