//! Which ports get flooded frames: a set of ports for each VLAN, for each kind of flooded frame, and for whether the
//! frame comes from an isolated port. Where no port is isolated or refuses floods, one set per VLAN is enough.

use crate::layout::VIDS;
use crate::settings::{PortFlags, PortSettings, Settings};

/// Why a frame is flooded: unknown destination, multicast or broadcast. In the order of `enum flood_kind`.
const KINDS: [fn(&PortFlags) -> bool; 3] =
    [|flags| flags.flood, |flags| flags.mcast_flood, |flags| flags.bcast_flood];

/// Which sets of ports a switch needs.
pub(crate) struct Sets {
    isolation: bool,
    kinds: bool,
}

impl Sets {
    /// The sets for a switch with these settings.
    pub(crate) fn from_settings(settings: &Settings) -> Self {
        Self { isolation: settings.isolates(), kinds: settings.limits_floods() }
    }

    /// The numbers of the sets that a port belongs to.
    pub fn with(&self, port: &PortSettings) -> Vec<u32> {
        let kinds = KINDS[..if self.kinds { KINDS.len() } else { 1 }].iter().zip(0u32..);
        let taken = kinds.filter(|(accepts, _)| !self.kinds || accepts(&port.flags)).map(|(_, kind)| kind);
        let sets = taken.flat_map(|kind| {
            let from_isolated = self.isolation && !port.flags.isolated;
            std::iter::once(2 * kind).chain(from_isolated.then_some(2 * kind + 1))
        });
        let sets: Vec<u32> = sets.collect();
        let vlans = port.vlans.all();
        vlans.flat_map(|vlan| sets.iter().map(move |set| u32::from(vlan) + VIDS * set)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Pattern, PortRule, Vlans};

    #[test]
    fn a_port_is_in_the_flood_sets_of_its_frames() {
        let with = |flags: PortFlags, other: PortFlags| {
            let rule = |name, flags| PortRule {
                vlans: Some(Vlans::Access(10)),
                flags,
                ..PortRule::new(Pattern::new(name))
            };
            let mut settings = Settings::new("lan");
            settings.rules = vec![rule("p0", flags), rule("p1", other)];
            Sets::from_settings(&settings).with(&settings.port_settings("p0"))
        };
        let all = PortFlags::default();
        assert_eq!(with(all, all), [10]);
        let isolated = PortFlags { isolated: true, ..all };
        assert_eq!(with(isolated, all), [10]);
        assert_eq!(with(all, isolated), [10, 10 + VIDS]);
        let quiet = PortFlags { flood: false, bcast_flood: false, ..all };
        assert_eq!(with(quiet, all), [10 + 2 * VIDS]);
        assert_eq!(with(all, quiet), [10, 10 + 2 * VIDS, 10 + 4 * VIDS]);
        assert_eq!(with(quiet, isolated), [10 + 2 * VIDS, 10 + 3 * VIDS]);
        assert_eq!(with(all, PortFlags { isolated: true, ..quiet }).len(), 6);
    }
}
