//! The compiled tables held against the mirror: every route worked out anew, every entry looked up.

use super::Compiler;
use super::body::Side;
use super::family;
use super::targets::Targets;
use super::view::View;
use bm_api::Area;
use bm_fib::BuildFib;
use bm_netlink::Mirror;
use std::sync::Arc;

/// What a comparison found.
#[derive(Debug, Default)]
pub struct Checked {
    /// What differs, the first of it.
    pub differences: Vec<(Area, String)>,
    /// How much differs.
    pub count: usize,
    /// Entries compared.
    pub compared: usize,
}

/// Differences that are kept as text.
const KEPT: usize = 1000;

impl Checked {
    pub(super) fn differs(&mut self, area: Area, sentence: impl FnOnce() -> String) {
        self.count += 1;
        if self.differences.len() < KEPT {
            self.differences.push((area, sentence()));
        }
    }
}

impl<B4, B6> Compiler<B4, B6>
where
    B4: BuildFib<Address = u32>,
    B6: BuildFib<Address = u128>,
    B4::Fib: 'static,
    B6::Fib: 'static,
{
    /// Compares every table with what `mirror` says, and lists the routes that Linux has to forward since
    /// they could not be compiled.
    pub fn verify(&mut self, mirror: &Mirror) -> Checked {
        let interfaces = Arc::clone(self.interfaces());
        let view = View { mirror, interfaces: &interfaces };
        let mut checked = Checked::default();
        check(&mut self.ipv4, view, &mut self.targets, &mut checked);
        check(&mut self.ipv6, view, &mut self.targets, &mut checked);
        checked
    }
}

fn check<B: BuildFib>(
    family: &mut family::Tables<B>,
    view: View<'_>,
    targets: &mut Targets,
    checked: &mut Checked,
) where
    B::Address: Side,
{
    let family::Tables { shared, vrfs } = family;
    for table in vrfs.values() {
        let mut context = super::table::Context { view, targets, shared };
        table.check(&mut context, checked);
        for (prefix, lack) in table.refused() {
            checked.differs(Area::Refused, || format!("{prefix} goes to Linux: there is no room ({lack:?})"));
        }
    }
    let routes = B::Address::routes(view.mirror);
    for (id, _) in routes.bodies() {
        let Some(why) = shared.bodies.why(id).filter(super::body::Why::is_fault) else { continue };
        let users = routes.tables().flat_map(|(_, table)| table.iter());
        for (prefix, _) in users.filter(|(_, bodies)| bodies.contains(&id)) {
            checked.differs(Area::Refused, || format!("{prefix} goes to Linux: {why}"));
        }
    }
}
