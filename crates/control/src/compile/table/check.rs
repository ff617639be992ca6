//! Compares a table with the mirror.

use super::*;
use crate::compile::comparison::Comparison;
use bm_api::Area;

impl<A: RouteFamily> Table<A> {
    /// Compares every entry with its expected value, and the lookup with the list of entries.
    pub fn check(&mut self, context: &mut Context<'_, A>, comparison: &mut Comparison) {
        let wanted = self.stages.prefixes(context.view.mirror);
        self.check_routes(&wanted, context, comparison);
        self.check_hosts(context, comparison);
        self.check_lookup(&wanted, comparison);
        if let Some(sources) = &self.sources {
            sources.check(&self.stages, context, comparison);
        }
        if self.lacks_sources {
            let why = "no memory for feasible reverse paths: every source passes";
            comparison.differs(Area::Refused, || why.into());
        }
    }

    fn check_routes(&self, wanted: &[Prefix<A>], context: &mut Context<'_, A>, comparison: &mut Comparison) {
        for prefix in wanted {
            comparison.compared += 1;
            // The entry of a single address also depends on its neighbor.
            if prefix.length() < A::WIDTH {
                let value = context.value(&self.stages, *prefix);
                self.check_entry(*prefix, value, context, comparison);
            }
        }
    }

    fn check_hosts(&self, context: &mut Context<'_, A>, comparison: &mut Comparison) {
        let hosts = self.fib.rib().iter().filter(|(prefix, _)| prefix.length() == A::WIDTH);
        let neighbors: Vec<_> = context.shared.neighbors.iter().map(|(address, _)| *address).collect();
        let mut addresses: Vec<_> = hosts.map(|(prefix, _)| prefix.first()).chain(neighbors).collect();
        addresses.sort_unstable();
        addresses.dedup();
        for address in addresses {
            let own = context.value(&self.stages, Prefix::host(address));
            let neighbor = self.neighbor_entry(address, own, context);
            self.check_entry(Prefix::host(address), neighbor.or(own), context, comparison);
            if neighbor == Some(FixedTarget::Host.target()) {
                comparison.differs(Area::Refused, || {
                    format!("neighbor {} is left to Linux: no free next hop for it", address.show())
                });
            }
            if let Some(target) = neighbor {
                context.targets.release(target);
            }
        }
    }

    fn check_entry(
        &self,
        prefix: Prefix<A>,
        value: Option<Target>,
        context: &Context<'_, A>,
        comparison: &mut Comparison,
    ) {
        let Some(change) = self.change(prefix, value, context) else { return };
        comparison.differs(Area::Compiled, || {
            let should = match change {
                Change::Set(_, hop) => Some(hop),
                Change::Remove(_) => None,
            };
            let has = self.fib.rib().get(prefix);
            format!("{prefix} has {}, expected {}", entry_text(has, context), entry_text(should, context))
        });
    }

    /// Checks that each entry has a reason, and that the lookup structure agrees with the list.
    fn check_lookup(&self, wanted: &[Prefix<A>], comparison: &mut Comparison) {
        let reader = self.fib.reader();
        for (prefix, _) in self.fib.rib().iter() {
            let host = prefix.length() == A::WIDTH;
            if !host && wanted.binary_search(&prefix).is_err() && !self.covering.contains_key(&prefix) {
                comparison.differs(Area::Compiled, || format!("{prefix} has an entry but no route"));
            }
            for address in [prefix.first(), prefix.last()] {
                let listed = self.fib.rib().longest_match(address).map_or(NextHop::NONE, |(_, hop)| hop);
                let found = reader.lookup(address);
                if found != listed {
                    comparison.differs(Area::Compiled, || {
                        format!(
                            "lookup of {} returns next hop {found}, but the list has {listed}",
                            address.show()
                        )
                    });
                }
            }
        }
    }
}

fn entry_text<A>(hop: Option<NextHop>, context: &Context<'_, A>) -> String {
    match hop {
        Some(hop) => format!("next hop {hop}, {:?}", context.targets.table().action(hop)),
        None => "no entry".into(),
    }
}
