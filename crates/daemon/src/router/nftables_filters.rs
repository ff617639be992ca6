//! Filters packets that the daemon does not get with nftables, and applies inbound IPsec policies to them.
//!
//! The tables are created after ports have followed their interfaces, and again if somebody flushes the ruleset. They stay when
//! the daemon is killed: `brickmoon up` or `brickmoon stop` removes them.

use bm_control::config::{Config, Device};
use bm_control::control_thread::ControlPortState;
use bm_control::nftables::{self, PortInterface, PortNow};
use bm_netlink::nft::Table;

use std::collections::BTreeMap;

use super::Forwarder;
use crate::lock;
use crate::ports::presence::Presence;
use crate::workers::data_path::PortInfo;

/// The interface of a port.
fn interface(info: &PortInfo, control: Option<&ControlPortState>, uncovered: &Uncovered) -> PortInterface {
    match (&info.presence, control) {
        (Presence::Missing, _) => PortInterface::Missing,
        (Presence::Here { .. }, Some(of_port)) if of_port.interfaces.is_empty() => unusable(info),
        (Presence::Here { ifindex, .. }, _) if uncovered.contains_key(ifindex) => unusable(info),
        (Presence::Here { ifindex, .. }, _) if info.path.in_kernel => PortInterface::Usable(*ifindex),
        (Presence::Here { ifindex, .. }, of_port) => {
            let interfaces = of_port.map(|of_port| &*of_port.interfaces).unwrap_or_default();
            let mac = interfaces.iter().find(|own| own.vlan.is_none()).map_or([0; 6], |own| own.mac.0);
            let vlans_in_vrf = interfaces.iter().any(|own| own.vlan.is_some() && own.vrf.is_some());
            PortInterface::ByWorkers { ifindex: *ifindex, mac, vlans_in_vrf, marked: false }
        }
        (Presence::Refused { .. }, _) => unusable(info),
    }
}

/// The interface of a port that cannot use it. It may disappear before its port is updated.
fn unusable(info: &PortInfo) -> PortInterface {
    bm_fastpath::ifindex(&info.name).map_or(PortInterface::Missing, PortInterface::Unusable)
}

/// Notes that the owned table marks what workers of these ports hand to Linux.
fn mark_all(ports: &mut [PortNow]) {
    for port in ports {
        if let PortInterface::ByWorkers { marked, .. } = &mut port.interface {
            *marked = true;
        }
    }
}

/// Interfaces on which the kernel path cannot filter, by their index in Linux, and why.
pub type Uncovered = BTreeMap<u32, String>;

impl Forwarder {
    /// Finds out on which interfaces the kernel path cannot filter; returns whether that has changed. Another daemon may
    /// attach a program in front of ours at any time, which the kernel does not announce.
    pub(super) fn look_at_coverage(&self) -> bool {
        let drops = self.setup().config.filters_drop();
        let found = if drops { self.driver.handle().uncovered() } else { Some(Uncovered::new()) };
        let Some(found) = found else { return false };
        let mut known = lock(&self.uncovered);
        let changed = *known != found;
        *known = found;
        changed
    }

    /// Creates the tables for ports that the daemon does not filter, and logs which filters apply where.
    pub(super) fn follow_filters(&self) {
        // Read once for both; later changes are handled in the next call.
        let of_control = self.driver.handle().ask(|control| control.interfaces()).unwrap_or_default();
        self.look_at_coverage();
        self.apply_nftables_filters(&of_control);
        self.say_unfiltered(&of_control);
    }

    fn apply_nftables_filters(&self, of_control: &[ControlPortState]) {
        let setup = self.setup();
        let config = &setup.config;
        let name = nftables::name(&config.daemon.socket);
        let (inbound, version) = {
            let ipsec = lock(&self.context.ipsec);
            (ipsec.inbound(), ipsec.version())
        };
        if !nftables::is_closed(config) && inbound.is_empty() {
            let mut installed = lock(&self.filter_tables);
            installed.put(&name, Vec::new());
            installed.policies = version;
            return installed.unmark();
        }
        // While workers are being restarted, the tables stay.
        let Some(mut ports) = self.ports_now(config, of_control) else { return };
        let owned = nftables::owned_table(config, &inbound, &name, &ports);
        let mut installed = lock(&self.filter_tables);
        let before = installed.trouble();
        if let Some(possible) = installed.mark(owned.as_ref()) {
            if possible {
                mark_all(&mut ports);
            }
            installed.put(&name, nftables::tables(config, &inbound, &name, &ports));
            installed.policies = version;
        }
        if owned.is_none() {
            installed.unmark();
        }
        if let Some(why) = installed.trouble().filter(|why| before.as_ref() != Some(why)) {
            tracing::error!("{why}");
        }
    }

    /// The table with inbound IPsec policies that stays when the daemon ends, as what Linux would otherwise forward in clear
    /// does.
    pub(super) fn inbound_policies(&self) -> Vec<Table> {
        let setup = self.setup();
        let inbound = lock(&self.context.ipsec).inbound();
        if inbound.is_empty() {
            return Vec::new();
        }
        let of_control = self.driver.handle().ask(|control| control.interfaces()).unwrap_or_default();
        let mut ports = self.ports_now(&setup.config, &of_control).unwrap_or_default();
        mark_all(&mut ports);
        let name = nftables::name(&setup.config.daemon.socket);
        nftables::inbound_table(&inbound, &name, &ports).into_iter().collect()
    }

    fn ports_now(&self, config: &Config, of_control: &[ControlPortState]) -> Option<Vec<PortNow>> {
        let running = lock(&self.running);
        let uncovered = lock(&self.uncovered);
        let mut ports = Vec::new();
        for (index, info) in running.as_ref()?.ports.iter().enumerate() {
            if config.ports.get(index).is_some_and(|port| matches!(port.device, Device::Xdp(_))) {
                let interface = interface(info, of_control.get(index), &uncovered);
                let name = info.name.clone();
                let by_index = bm_fastpath::ifindex(&name).map(bm_fastpath::interface_name);
                let device = by_index.unwrap_or_else(|_| name.clone());
                ports.push(PortNow { name, device, index, interface });
            }
        }
        Some(ports)
    }

    /// What nftables does for a port that does not have its interface; `None` if nothing.
    pub(super) fn nftables_note(&self, index: usize, name: &str) -> Option<String> {
        let setup = self.setup();
        let installed = lock(&self.filter_tables);
        let table = nftables::is_closed(&setup.config) && installed.filters(name);
        table.then(|| match nftables::inexact(&setup.config, index) {
            None => format!("nftables filters packets that arrive there (table netdev {})", installed.name()),
            Some(why) => format!(
                "nftables drops all packets that Linux would forward from there (table netdev {}), because {why}",
                installed.name()
            ),
        })
    }
}
