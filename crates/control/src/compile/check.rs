//! Compares the compiled tables with the mirror: computes every route again, looks up every entry, and compares every
//! next hop and interface.
//!
//! The mirror itself is compared with the kernel elsewhere (`bm_netlink::Watch`); `brickmoon verify` reports both.

use super::Compiler;
use super::body::RouteFamily;
use super::checked::Checked;
use super::family;
use super::targets::Targets;
use super::view::View;
use bm_api::Area;
use bm_netlink::Mirror;
use std::sync::Arc;

impl Compiler {
    /// Compares all compiled state with the mirror, and lists the routes that could not be compiled, so that Linux forwards
    /// their packets. All changes of the mirror must have been applied.
    pub fn verify(&mut self, mirror: &Mirror) -> Checked {
        let interfaces = Arc::clone(self.interfaces());
        let view = View { mirror, interfaces: &interfaces };
        let mut checked = Checked::default();
        self.check_interfaces(mirror, &mut checked);
        self.targets.check(view, &mut checked);
        check(&mut self.ipv4, view, &mut self.targets, &mut checked);
        check(&mut self.ipv6, view, &mut self.targets, &mut checked);
        // Computing entries adds users to targets and removes them again.
        self.targets.sweep();
        checked
    }

    /// Compares the compiled rules with the current list of packets that only Linux may handle.
    fn check_linux_only(&self, rules: &[bm_filter::Flat], checked: &mut Checked) {
        let tree = self.state.filters.as_ref().map(|filters| &filters.tree);
        let searched = tree.is_some_and(|tree| tree.linux_only.is_some() && tree.rules.ends_with(rules));
        checked.compared += rules.len();
        if searched == rules.is_empty() || self.state.linux_only_rules != rules {
            checked.differs(Area::Compiled, || {
                let (has, should) = (self.state.linux_only_rules.len(), rules.len());
                format!("filters leave packets to Linux with {has} rules, expected {should}")
            });
        }
    }

    fn check_interfaces(&self, mirror: &Mirror, checked: &mut Checked) {
        let (now, rules) = self.interfaces_now(mirror, &self.vrfs(mirror));
        self.check_linux_only(&rules, checked);
        let before = self.interfaces();
        checked.compared += now.list.len();
        for (was, is) in before.list.iter().zip(&now.list).filter(|(was, is)| was != is) {
            checked.differs(Area::Compiled, || format!("interface {} is {was:?}, expected {is:?}", was.name));
        }
        if before.list.len() != now.list.len() || before.ports != now.ports {
            checked.differs(Area::Compiled, || {
                format!("ports have interfaces {:?}, expected {:?}", before.ports, now.ports)
            });
        }
    }
}

fn check<A: RouteFamily>(
    family: &mut family::Tables<A>,
    view: View<'_>,
    targets: &mut Targets,
    checked: &mut Checked,
) {
    let family::Tables { shared, vrfs, .. } = &mut *family;
    for table in vrfs.values_mut() {
        let mut context = super::context::Context { view, targets, shared };
        table.check(&mut context, checked);
        for (prefix, shortage) in table.refused() {
            checked.differs(Area::Refused, || format!("{prefix} goes to Linux: {}", shortage_text(shortage)));
        }
    }
    for (number, prefix, why) in family.faults(A::routes(view.mirror)) {
        checked.differs(Area::Refused, || format!("{prefix} of table {number} goes to Linux: {why}"));
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
