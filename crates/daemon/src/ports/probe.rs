//! Reads what plans depend on of the machine.

use std::collections::BTreeMap;

use bm_bpf::Bpffs;
use bm_control::config::Config;
use bm_netlink::{Kind, Link};

use crate::plan::machine::{Interface, Machine, Scripts};
use crate::plan::scripts::before_apps;
use crate::workers::apps;

/// Bits of capabilities in `/proc/self/status`.
const CAP_NET_ADMIN: u32 = 12;
const CAP_SYS_ADMIN: u32 = 21;

/// The machine for a configuration.
pub fn machine(config: &Config) -> Machine {
    let machine = without_scripts(config);
    Machine { scripts: scripts(config, &machine.online), ..machine }
}

/// The machine without what is wrong with Lua files, which takes longer to find out.
pub fn without_scripts(config: &Config) -> Machine {
    let links = links();
    let fabric = config.fabric_devices();
    let names = config.ports.iter().filter_map(|port| port.device.interface());
    let names = names.chain(fabric.iter().map(String::as_str));
    let interfaces = names.filter_map(|name| Some((name.to_string(), read(name, &links)?)));
    let cores = config.daemon.cores.iter();
    Machine {
        interfaces: interfaces.collect(),
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        online: online(),
        nodes: cores.filter_map(|&core| Some((core, bm_frame::node_of_core(core as usize)?))).collect(),
        dpdk: cfg!(feature = "dpdk"),
        net_admin: has_capability(CAP_NET_ADMIN),
        pins: Bpffs::find().is_some() || has_capability(CAP_SYS_ADMIN),
        ..Machine::default()
    }
}

/// One interface; `None` if it does not exist.
pub fn interface(name: &str) -> Option<Interface> {
    read(name, &links())
}

fn read(name: &str, links: &[Link]) -> Option<Interface> {
    if !bm_fastpath::is_there(name) {
        return None;
    }
    let ethernet = bm_fastpath::is_ethernet(name);
    Some(Interface {
        ethernet,
        mtu: bm_port_xdp::mtu(name).unwrap_or_default(),
        queues: bm_port_xdp::queues(name) as usize,
        in_vrf: in_vrf(links, name),
        cannot_send: if ethernet { bm_fastpath::why_no_frames(name) } else { None },
    })
}

fn links() -> Vec<Link> {
    Link::list().unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot tell which interfaces are in a VRF");
        Vec::new()
    })
}

/// Name of the interface, or of a VLAN on it, if that is in a VRF.
fn in_vrf(links: &[Link], interface: &str) -> Option<String> {
    let own = links.iter().find(|link| &*link.name == interface)?;
    let on_top =
        links.iter().filter(|link| link.lower == Some(own.ifindex) && link.lower_namespace.is_none());
    let mut all = std::iter::once(own).chain(on_top);
    let in_vrf = all.find(|link| {
        let master = links.iter().find(|other| Some(other.ifindex) == link.master);
        // A master that is neither of these is a VRF, or one whose members cannot be ports on any path.
        master.is_some_and(|master| master.kind != Kind::Bridge && master.kind != Kind::Other("bond".into()))
    });
    in_vrf.map(|link| String::from(&*link.name))
}

/// The online cores, from 0; empty if that is unknown.
fn online() -> Vec<u32> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let mut cores = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) {
            cores.extend(first..=last);
        }
    }
    cores
}

/// Whether this process has a capability; yes if that is unknown.
fn has_capability(bit: u32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_none_or(|mask| mask >> bit & 1 == 1)
}

/// What is wrong with the Lua files. Modules of apps are run for the schemas of their classes, unless links or cores are
/// wrong already.
pub fn scripts(config: &Config, online: &[u32]) -> Scripts {
    let mut hooks = BTreeMap::new();
    for hook in &config.hooks {
        if let Err(error) = bm_lua::hook::check(&hook.file) {
            hooks.insert(hook.file.clone(), error.to_string());
        }
    }
    let missing: Vec<_> = config.lua.path.iter().filter(|folder| !folder.is_dir()).cloned().collect();
    let (mut apps, mut unchecked) = (Vec::new(), None);
    if hooks.is_empty() && before_apps(config, &missing, online).is_empty() {
        match bm_lua::apps::check(&apps::spec(config)) {
            Ok(found) => apps = found,
            Err(error) => unchecked = Some(error.to_string()),
        }
    }
    Scripts { hooks, missing, apps, unchecked }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn vlans_in_a_vrf_are_found() {
        let link = |ifindex, name: &str, kind| Link { ifindex, name: name.into(), kind, ..Link::default() };
        let vlan = |ifindex, name, lower| Link {
            lower: Some(lower),
            ..link(ifindex, name, Kind::Vlan { id: 7, protocol: 0x8100 })
        };
        let of = |master, link| Link { master: Some(master), ..link };
        let links = [
            link(1, "eth0", Kind::Device),
            vlan(5, "eth0.7", 1),
            link(2, "eth1", Kind::Veth),
            of(9, vlan(6, "eth1.7", 2)),
            of(10, link(3, "eth2", Kind::Device)),
            of(9, link(4, "eth3", Kind::Device)),
            of(11, link(7, "eth4", Kind::Device)),
            // On an interface with this index in another namespace.
            Link { lower_namespace: Some(0), ..of(9, vlan(8, "far.7", 1)) },
            link(9, "red", Kind::Vrf { table: 10 }),
            link(10, "br0", Kind::Bridge),
            link(11, "bond0", Kind::Other("bond".into())),
        ];
        let found = ["eth0", "eth1", "eth2", "eth3", "eth4", "gone"].map(|name| in_vrf(&links, name));
        assert_eq!(found, [None, Some("eth1.7".into()), None, Some("eth3".into()), None, None]);
    }

    #[test]
    fn missing_module_folders_and_hooks_are_found() {
        let text = "[lua]\npath = ['x', '/']\n[[hook]]\nfile = 'gone.lua'\n";
        let config = Config::parse(std::path::Path::new("/none/b.toml"), text).expect("readable");
        let found = scripts(&config, &[]);
        assert_eq!(found.missing, [PathBuf::from("/none/x")]);
        let why = &found.hooks[std::path::Path::new("/none/gone.lua")];
        assert!(why.starts_with("/none/gone.lua: No such file"), "{why}");
    }

    #[test]
    fn this_machine_is_read() {
        let text = "[[port]]\ndevice = 'lo'\n[[port]]\ndevice = 'bm-none0'\n";
        let config = Config::parse(std::path::Path::new("test.toml"), text).expect("readable");
        let machine = without_scripts(&config);
        let names: Vec<_> = machine.interfaces.keys().map(String::as_str).collect();
        assert_eq!(names, ["lo"], "the other one does not exist");
        assert!(!machine.interfaces["lo"].ethernet && machine.interfaces["lo"].obstacle().is_none());
        assert!(machine.cpus > 0 && (machine.online.contains(&0) || machine.online.is_empty()));
    }
}
