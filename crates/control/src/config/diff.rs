//! The differences between two configurations, and what it takes to apply them.
//!
//! Settings with a form are compared as they are declared; here are the tables of which there can be several, and what
//! is read by hand.

use std::collections::BTreeMap;
use std::fmt::Debug;

use super::declare::{Declared, Effect, Setting};
use super::{Collector, Config, Export, Filter, Hook, Ipsec, Lua, Port, app};

/// A setting that differs between two configurations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Section and key, such as `slow_path.queue`; for a port `port.xdp:eth0`, for a switch `switch.lan`.
    pub key: String,
    /// What it takes to apply the change.
    pub effect: Effect,
}

impl Config {
    /// The changes from `self` to `new`, by key.
    pub fn diff(&self, new: &Self) -> Vec<Change> {
        let (mut old, new) = (self.settings(), new.settings());
        let mut changes: Vec<Change> = Vec::new();
        for (key, (value, effect)) in new {
            if old.remove(&key).is_none_or(|(before, _)| before != value) {
                changes.push(Change { key, effect });
            }
        }
        // The rest are settings that no longer exist, such as removed ports.
        changes.extend(old.into_iter().map(|(key, (_, effect))| Change { key, effect }));
        changes.sort_by(|one, two| one.key.cmp(&two.key));
        changes
    }

    /// All settings as text, by key, with what it takes to apply a change.
    pub(super) fn settings(&self) -> BTreeMap<String, (String, Effect)> {
        // Named one by one, so that a new table is not forgotten here.
        let Self {
            daemon,
            ports,
            fib,
            slow_path,
            neighbors,
            mirror,
            switches,
            cluster,
            filter,
            firewall,
            flows,
            ipsec,
            claims,
            export,
            lua,
            hooks,
            apps,
            links,
        } = self;
        let mut list = SettingList::default();
        list.table("daemon", daemon);
        list.table("fib", fib);
        list.table("slow_path", slow_path);
        list.table("neighbors", neighbors);
        list.table("mirror", mirror);
        list.filter(filter);
        list.table("firewall", firewall);
        list.table("flows", flows);
        list.export(export);
        for (at, claim) in claims.iter().enumerate() {
            list.add(format!("claim.{}", at + 1), claim, Effect::Live);
        }
        for port in ports {
            list.port(port);
        }
        for hook in hooks {
            // The line is only for messages; files are always loaded again.
            list.add(format!("hook.{}", hook.name), &Hook { line: 0, ..hook.clone() }, Effect::Live);
        }
        list.lua(lua, !apps.is_empty());
        list.apps(apps, links);
        if let Some(cluster) = cluster {
            list.add("cluster", cluster, Effect::Live);
        }
        list.ipsec(ipsec);
        for switch in switches {
            list.add(format!("switch.{}", switch.name), switch, Effect::Live);
        }
        list.0
    }
}

/// Settings as text, by key.
#[derive(Default)]
struct SettingList(BTreeMap<String, (String, Effect)>);

impl SettingList {
    fn add(&mut self, key: impl Into<String>, value: &dyn Debug, effect: Effect) {
        self.0.insert(key.into(), (format!("{value:?}"), effect));
    }

    /// The declared settings of a table.
    fn table(&mut self, name: &str, table: &impl Declared) {
        for Setting { key, value, effect } in table.settings() {
            self.0.insert(format!("{name}.{key}"), (value, effect));
        }
    }

    fn filter(&mut self, filter: &Filter) {
        self.table("filter", filter);
        self.add("filter.rule", &filter.rules, Effect::Live);
    }

    fn export(&mut self, export: &Export) {
        self.table("sampling", export);
        for Collector { format, address, line: _ } in &export.collectors {
            self.add(format!("{}.{address}", format.name()), address, Effect::Live);
        }
    }

    /// A port: one entry for what needs new workers, and one for each other setting that is not the default.
    fn port(&mut self, port: &Port) {
        let name = format!("port.{}", port.device);
        let mut of_workers = Vec::new();
        for (setting, default) in port.settings().into_iter().zip(Port::default().settings()) {
            if setting.effect == Effect::Workers {
                of_workers.push(setting.value);
            } else if setting.value != default.value {
                self.0.insert(format!("{name}.{}", setting.key), (setting.value, setting.effect));
            }
        }
        self.add(name, &of_workers, Effect::Workers);
    }

    /// Hooks are loaded into new Lua states every time; apps keep theirs, which contain the module path.
    fn lua(&mut self, lua: &Lua, has_apps: bool) {
        self.table("lua", lua);
        if has_apps {
            self.add("lua.path", &lua.path, Effect::Workers);
        }
    }

    fn apps(&mut self, apps: &[app::App], links: &[app::Link]) {
        for app in apps {
            let name = format!("app.{}", app.name);
            // A core for apps has a worker of its own.
            if app.core.is_some() {
                self.table(&name, app);
            }
            self.add(name, &app::App { line: 0, core: None, ..app.clone() }, Effect::Live);
        }
        // Workers that were started without apps cannot get any, and links need new workers.
        if !apps.is_empty() {
            self.add("app", &"some", Effect::Workers);
        }
        if !links.is_empty() {
            let ends: Vec<_> = links.iter().map(|link| (&link.from, &link.to)).collect();
            self.add("link", &ends, Effect::Workers);
        }
    }

    /// The settings of `[ipsec]`. SAs belong to workers, so a change needs new workers.
    fn ipsec(&mut self, ipsec: &Ipsec) {
        if ipsec.is_empty() {
            return;
        }
        self.table("ipsec", ipsec);
        self.add("ipsec.xfrm_socket", &ipsec.xfrm_socket, Effect::Daemon);
        self.add("ipsec.interface", &ipsec.interfaces, Effect::Workers);
        for (name, sa) in ipsec.names.iter().zip(&ipsec.sas) {
            // `Debug` does not show keys, so they are compared by their fingerprint.
            let shown = (bm_ipsec::Sa { at: 0, ..sa.clone() }, sa.fingerprint());
            self.add(format!("ipsec.sa.{name}"), &shown, Effect::Workers);
        }
        let policies = ipsec.policies.iter().map(|policy| bm_ipsec::Policy { at: 0, ..policy.clone() });
        self.add("ipsec.policy", &(policies.collect::<Vec<_>>(), &ipsec.lists), Effect::Workers);
    }
}
