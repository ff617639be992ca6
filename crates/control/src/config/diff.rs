//! The differences between two configurations, and what it takes to apply them.

use super::*;
use std::collections::BTreeMap;

/// What it takes to apply a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// Applied at once, without losing packets.
    Live,
    /// Workers must be restarted; Linux forwards meanwhile.
    Workers,
    /// The daemon must be restarted.
    Daemon,
}

/// A changed setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// Section and key, such as `slow_path.queue`; for a port `port.xdp:eth0`, for a switch `switch.lan`.
    pub key: String,
    /// What it takes to apply the change.
    pub effect: Effect,
}

/// A setting of a configuration.
pub(super) struct Setting {
    /// As text.
    value: String,
    /// What it takes to apply a change.
    effect: Effect,
}

impl Config {
    /// The changes from `self` to `new`, by key.
    pub fn diff(&self, new: &Self) -> Vec<Changed> {
        let (mut old, new) = (self.settings(), new.settings());
        let mut changed: Vec<Changed> = Vec::new();
        for (key, setting) in new {
            if old.remove(&key).is_none_or(|before| before.value != setting.value) {
                changed.push(Changed { key, effect: setting.effect });
            }
        }
        // The rest are settings that no longer exist, such as removed ports.
        changed.extend(old.into_iter().map(|(key, setting)| Changed { key, effect: setting.effect }));
        changed.sort_by(|one, two| one.key.cmp(&two.key));
        changed
    }

    /// All settings, by key.
    pub(super) fn settings(&self) -> BTreeMap<String, Setting> {
        use Effect::{Daemon, Live, Workers};
        let Self { daemon, fib, slow_path, neighbors, mirror, filter, firewall, .. } = self;
        let mut settings = BTreeMap::new();
        let mut set = |key: &str, value: &dyn std::fmt::Debug, effect| {
            settings.insert(key.to_owned(), Setting { value: format!("{value:?}"), effect });
        };
        set("daemon.socket", &daemon.socket, Daemon);
        set("daemon.read_group", &daemon.read_group, Daemon);
        set("daemon.sandbox", &daemon.sandbox, Daemon);
        set("daemon.metrics", &daemon.metrics, Daemon);
        set("daemon.web", &daemon.web, Daemon);
        set("daemon.web_token", &daemon.web_token, Daemon);
        set("daemon.workers", &daemon.workers, Workers);
        set("daemon.cores", &daemon.cores, Workers);
        set("daemon.rebalance", &daemon.rebalance, Live);
        set("daemon.path", &daemon.path, Workers);
        set("daemon.attach", &daemon.attach, Workers);
        set("daemon.kernel_grace_s", &daemon.kernel_grace.as_secs(), Daemon);
        set("daemon.idle", &daemon.idle, Workers);
        set("daemon.poll_us", &daemon.poll_us, Workers);
        set("daemon.priority", &daemon.priority, Workers);
        set("daemon.ring", &daemon.ring, Workers);
        set("daemon.slots", &daemon.slots, Daemon);
        set("daemon.slot_size", &daemon.slot_size, Daemon);
        set("daemon.huge_pages", &daemon.huge_pages, Daemon);
        set("fib.ipv4", &fib.ipv4, Daemon);
        set("fib.ipv6", &fib.ipv6, Daemon);
        set("fib.next_hops", &fib.next_hops, Daemon);
        set("fib.group_buckets", &fib.group_buckets, Daemon);
        set("fib.hash_seed", &fib.hash_seed, Live);
        set("slow_path.ring", &slow_path.ring, Workers);
        set("slow_path.queue_per_next_hop", &slow_path.queue_per_next_hop, Workers);
        set("slow_path.queue", &slow_path.queue, Workers);
        set("slow_path.wait_ms", &slow_path.wait.as_millis(), Workers);
        set("slow_path.icmp_per_second", &slow_path.icmp_per_second, Live);
        set("neighbors.refresh_s", &neighbors.refresh.as_secs(), Live);
        set("neighbors.resolve_per_second", &neighbors.resolve_per_second, Live);
        set("neighbors.resolve_queue", &neighbors.resolve_queue, Daemon);
        set("mirror.compare_s", &mirror.compare.as_secs(), Live);
        set("mirror.receive_buffer", &mirror.receive_buffer, Daemon);
        set("filter.unmatched", &filter.unmatched, Live);
        set("filter.tiny_fragments", &filter.tiny_fragments, Live);
        set("filter.rate_packets", &filter.rate_packets, Live);
        set("filter.rate_burst", &filter.rate_burst, Live);
        set("filter.rate_ipv4_length", &filter.rate_ipv4_length, Live);
        set("filter.rate_ipv6_length", &filter.rate_ipv6_length, Live);
        set("filter.reverse_path", &filter.reverse_path, Live);
        set("filter.fail", &filter.fail, Live);
        set("filter.rule", &filter.rules, Live);
        set("sampling.one_in", &self.export.one_in, Live);
        set("sampling.counters_s", &self.export.counters.as_secs(), Live);
        set("sampling.agent", &self.export.agent, Live);
        for (key, mode) in firewall.all() {
            set(&format!("firewall.{key}"), &mode, Live);
        }
        self.listed(&mut set);
        settings
    }

    /// Adds the settings of lists, such as ports and hooks.
    fn listed(&self, set: &mut dyn FnMut(&str, &dyn std::fmt::Debug, Effect)) {
        use Effect::{Live, Workers};
        // Named one by one, so that a new list is not forgotten here.
        let Self {
            ports,
            switches,
            cluster,
            claims,
            lua,
            hooks,
            apps,
            links,
            daemon: _,
            fib: _,
            slow_path: _,
            neighbors: _,
            mirror: _,
            filter: _,
            firewall: _,
            export,
            ipsec,
        } = self;
        for (at, claim) in claims.iter().enumerate() {
            set(&format!("claim.{}", at + 1), claim, Live);
        }
        for port in ports {
            let name = format!("port.{}", port.device);
            let anew = Port { reverse_path: None, queue_workers: Vec::new(), ..port.clone() };
            set(&name, &anew, Workers);
            if !port.queue_workers.is_empty() {
                set(&format!("{name}.queue_workers"), &port.queue_workers, Live);
            }
            if let Some(reverse_path) = port.reverse_path {
                set(&format!("{name}.reverse_path"), &reverse_path, Live);
            }
        }
        for Collector { format, address, line: _ } in &export.collectors {
            set(&format!("{}.{address}", format.name()), address, Live);
        }
        for hook in hooks {
            // The line is only for messages; files are always loaded again.
            set(&format!("hook.{}", hook.name), &Hook { line: 0, ..hook.clone() }, Live);
        }
        // Hooks are loaded into new Lua states every time; apps keep theirs, which contain the module path.
        set("lua.path", &lua.path, if apps.is_empty() { Live } else { Workers });
        set("lua.hung_calls", &lua.hung_calls, Live);
        for app in apps {
            set(&format!("app.{}", app.name), &app::App { line: 0, core: None, ..app.clone() }, Live);
            // A core for apps has a worker of its own.
            if app.core.is_some() {
                set(&format!("app.{}.core", app.name), &app.core, Workers);
            }
        }
        // Workers that were started without apps cannot get any, and links need new workers.
        if !apps.is_empty() {
            set("app", &"some", Workers);
        }
        if !links.is_empty() {
            let ends: Vec<_> = links.iter().map(|link| (&link.from, &link.to)).collect();
            set("link", &ends, Workers);
        }
        if let Some(cluster) = cluster {
            set("cluster", cluster, Live);
        }
        set_ipsec(ipsec, set);
        for switch in switches {
            set(&format!("switch.{}", switch.name), switch, Live);
        }
    }
}

/// The settings of `[ipsec]`. SAs belong to workers, so a change needs new workers.
fn set_ipsec(ipsec: &Ipsec, set: &mut dyn FnMut(&str, &dyn std::fmt::Debug, Effect)) {
    if ipsec.is_empty() {
        return;
    }
    set("ipsec.state_file", &ipsec.state_file, Effect::Daemon);
    set("ipsec.xfrm_socket", &ipsec.xfrm_socket, Effect::Daemon);
    set("ipsec.kernel", &ipsec.kernel, Effect::Daemon);
    set("ipsec.left_to_linux", &ipsec.left_to_linux, Effect::Workers);
    set("ipsec.interface", &ipsec.interfaces, Effect::Workers);
    for (name, sa) in ipsec.names.iter().zip(&ipsec.sas) {
        // `Debug` does not show keys, so they are compared by their fingerprint.
        let shown = (bm_ipsec::Sa { at: 0, ..sa.clone() }, sa.fingerprint());
        set(&format!("ipsec.sa.{name}"), &shown, Effect::Workers);
    }
    let policy = |policy: &bm_ipsec::Policy| bm_ipsec::Policy { at: 0, ..policy.clone() };
    let policies = (ipsec.policies.iter().map(policy).collect::<Vec<_>>(), &ipsec.lists);
    set("ipsec.policy", &policies, Effect::Workers);
}
