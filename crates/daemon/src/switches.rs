//! The switches of the daemon, and the API replies about them.

use std::sync::Mutex;

use bm_api::{Account, Drops, Error, Mac, MacEntry, Macs, SwitchPort, Switches};
use bm_cli::Failure;
use bm_control::config::Config;
use bm_serve::report::{self, Counters};
use bm_stats::Scope;
use bm_switch::{FdbEntryView, PortView, Service, Switch};

use crate::lock;

/// All switches; empty after the end.
#[derive(Default)]
pub struct Bridges(Mutex<Vec<Service>>);

fn name(service: &Service) -> String {
    service.switch().settings().name.clone()
}

impl Bridges {
    /// Starts the switches of the configuration, and removes others that an earlier daemon left.
    pub fn start(config: &Config) -> Result<Self, Failure> {
        let names: Vec<_> = config.switches.iter().map(|switch| switch.name.as_str()).collect();
        let removed = bm_switch::remove_kept_but(&names);
        if !removed.is_empty() {
            tracing::info!(interfaces = removed.join(", "), "removed the switch that an earlier daemon left");
        }
        let mut services = Vec::new();
        for switch in &config.switches {
            let started = Service::start(switch.clone());
            services.push(started.map_err(|why| Failure::Failed(format!("switch {}: {why}", switch.name)))?);
        }
        Ok(Self(Mutex::new(services)))
    }

    /// Changes the switches to those of another configuration: stops those that it does not have, replaces changed ones
    /// and starts new ones. Unchanged switches are not touched.
    ///
    /// # Errors
    /// Why a switch cannot be started or replaced. Earlier changes are not undone.
    pub fn change(&self, config: &Config) -> Result<(), Error> {
        let mut services = lock(&self.0);
        services.retain(|service| config.switches.iter().any(|switch| switch.name == name(service)));
        let mut before = std::mem::take(&mut *services);
        for switch in &config.switches {
            let there = before.iter().position(|service| name(service) == switch.name);
            let started = match there.map(|at| before.swap_remove(at)) {
                Some(same) if same.switch().settings() == switch => Ok(same),
                Some(other) => other.replace(switch.clone()),
                None => Service::start(switch.clone()),
            };
            match started {
                Ok(service) => services.push(service),
                Err(why) => {
                    services.append(&mut before);
                    return Err(Error::new(format!("switch {}: {why}", switch.name)));
                }
            }
        }
        Ok(())
    }

    /// Makes each switch take interfaces that have become free.
    ///
    /// # Errors
    /// If the interfaces cannot be read from Linux.
    pub fn attach_freed_interfaces(&self) -> Result<(), Error> {
        lock(&self.0).iter().try_for_each(|service| service.switch().reconcile()).map_err(Error::new)
    }

    fn each<T>(&self, ask: impl Fn(&Switch) -> T) -> Vec<T> {
        lock(&self.0).iter().map(|service| ask(&service.switch())).collect()
    }

    /// Number of switches, and of their ports.
    pub fn count(&self) -> (u32, u32) {
        let ports = self.each(|switch| switch.port_count() as u32);
        (ports.len() as u32, ports.iter().sum())
    }

    /// Notes for `status`.
    pub fn notes(&self) -> Vec<String> {
        self.each(|switch| switch.notes().to_vec()).concat()
    }

    /// Switches with their ports.
    pub fn switches(&self) -> Switches {
        let switches = self.each(|switch| bm_api::Switch {
            name: switch.settings().name.clone(),
            vlans: switch.settings().has_vlans(),
            ageing_s: switch.settings().ageing.as_secs(),
            macs: switch.fdb_count(),
            macs_max: switch.settings().table,
            interface: switch.settings().interface.clone(),
            ports: switch.ports().iter().map(port).collect(),
            refused: switch.refused().clone(),
        });
        Switches { switches }
    }

    /// The MAC addresses that the switches have learned.
    pub fn macs(&self) -> Macs {
        let of_switches = self.each(|switch| {
            let vlans = switch.settings().has_vlans();
            let name = &switch.settings().name;
            switch.fdb().iter().map(|one| entry(name, vlans, one)).collect::<Vec<_>>()
        });
        Macs { macs: of_switches.concat() }
    }

    /// Adds the counters of switch ports, as `switch/NAME/PORT/..`.
    pub fn add_to(&self, counters: &mut Counters) {
        for switch in self.switches().switches {
            for port in switch.ports {
                let scope = Scope::Switch { switch: &switch.name, port: &port.name };
                let mut set = |name: &str, value| {
                    counters.insert(format!("{scope}/{name}"), value);
                };
                set("received", port.account.received);
                set("passed", port.account.passed);
                set("host", port.account.host);
                for (reason, frames) in port.account.drops {
                    set(&format!("drop/{reason}"), frames);
                }
            }
        }
    }

    /// Adds drops on switch ports, with their meanings.
    pub fn add_drops(&self, drops: &mut Drops) {
        let switches = self.switches().switches;
        let ports = switches.iter().flat_map(|switch| switch.ports.iter().map(move |port| (switch, port)));
        let accounts = ports.map(|(switch, port)| {
            let scope = Scope::Switch { switch: &switch.name, port: &port.name };
            (scope.to_string(), &port.account)
        });
        report::add_drops(drops, &bm_switch::REASONS, &accounts.collect::<Vec<_>>());
    }

    /// Makes switches keep forwarding after the daemon has ended.
    pub fn keep(&self) -> Result<(), Error> {
        lock(&self.0).iter().try_for_each(|service| service.switch().keep()).map_err(Error::new)
    }

    /// Stops all switches except those to be kept.
    pub fn end(&self) {
        lock(&self.0).clear();
    }
}

fn port(view: &PortView) -> SwitchPort {
    let counters = &view.counters;
    let drops: std::collections::BTreeMap<String, u64> = counters
        .drops()
        .filter(|(_, frames)| *frames > 0)
        .map(|(name, frames)| (name.into(), frames))
        .collect();
    let others = [
        "forwarded",
        "flooded",
        "learned",
        "moved",
        "move_refused",
        "evicted",
        "table_full",
        "sums_completed",
    ];
    SwitchPort {
        name: view.name.clone(),
        ifindex: view.ifindex,
        up: view.up,
        takes_frames: view.takes_frames,
        generic: view.generic,
        mtu_bytes: view.mtu,
        vlans: view.vlans.to_string(),
        flags: view.flags.changed(),
        fdb_max_learned: view.fdb_max_learned,
        account: Account {
            received: counters.received(),
            passed: counters.passed(),
            host: counters.linux(),
            dropped: counters.dropped(),
            drops,
            received_bytes: counters.get("received_bytes"),
            ..Account::default()
        },
        sent: counters.get("sent"),
        sent_bytes: counters.get("sent_bytes"),
        counters: others.iter().map(|name| ((*name).into(), counters.get(name))).collect(),
    }
}

fn entry(switch: &str, vlans: bool, view: &FdbEntryView) -> MacEntry {
    MacEntry {
        switch: switch.into(),
        vlan: vlans.then_some(view.address.vlan),
        mac: Mac(view.address.mac),
        port: view.port.clone(),
        age_ms: view.age.map(|age| age.as_millis() as u64),
    }
}
