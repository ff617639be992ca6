//! Plans of configurations on machines, as tables: no root, no interface, no clock.

use std::path::Path;

use super::changes::{Changes, Current, reload};
use super::machine::{Interface, Machine};
use super::*;

mod errors;

type Edit = fn(&mut Machine);
/// Devices as for [`ports`], more of the configuration, what is different about the machine, and what is expected.
type Row<'a, E> = (&'a str, &'a str, Edit, E);

/// `eth0` and `eth1` can do everything, with four queues each. The others are named after what is special about them.
fn machine() -> Machine {
    let good = Interface { ethernet: true, mtu: 1500, queues: 4, ..Interface::default() };
    let no_gro = "XDP cannot send through veth0 while the other end of this veth has GRO off";
    let interfaces = [
        ("eth0", good.clone()),
        ("eth1", good.clone()),
        ("one0", Interface { queues: 1, ..good.clone() }),
        ("big0", Interface { mtu: 9000, ..good.clone() }),
        ("jumbo0", Interface { mtu: 3000, ..good.clone() }),
        ("veth0", Interface { queues: 1, cannot_send: Some(no_gro.into()), ..good.clone() }),
        ("red0", Interface { in_vrf: Some("red0.7".into()), ..good.clone() }),
        ("tun0", Interface { ethernet: false, ..good }),
    ];
    Machine {
        interfaces: interfaces.map(|(name, interface)| (name.to_string(), interface)).into(),
        cpus: 8,
        online: (0..8).collect(),
        nodes: [(1, 0), (5, 1)].into(),
        dpdk: true,
        net_admin: true,
        pins: true,
        ..Machine::default()
    }
}

/// `[[port]]` tables for words such as `eth0` and `eth1=user`.
fn ports(words: &str) -> String {
    let port = |word: &str| {
        let (device, path) = word.split_once('=').unwrap_or((word, "auto"));
        format!("[[port]]\ndevice = '{device}'\npath = '{path}'\n")
    };
    words.split_whitespace().map(port).collect()
}

fn config(text: &str) -> Config {
    Config::parse(Path::new("f.toml"), text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn request() -> Request<'static> {
    Request { file: Some(Path::new("f.toml")), named: &[], may_grow: true }
}

fn planned(text: &str, edit: Edit) -> Result<Plan, String> {
    let mut machine = machine();
    edit(&mut machine);
    plan(&config(text), &machine, &request()).map_err(|failure| failure.to_string())
}

fn right(text: &str, edit: Edit) -> Plan {
    planned(text, edit).unwrap_or_else(|why| panic!("{text}: {why}"))
}

/// The path of each port with its reason, such as `kernel: nothing in use needs workers`.
fn paths_of(plan: &Plan) -> Vec<String> {
    let of_port = |port: &path::PortPath| {
        let path = if port.in_kernel { "kernel" } else { "user" };
        format!("{path}: {}", port.reason.as_deref().unwrap_or("as configured"))
    };
    plan.paths.0.iter().map(of_port).collect()
}

const HOOK: &str = "[[hook]]\nfile = 'acl.lua'\n";
const APP: &str = "[[app]]\nname = 'guard'\nmodule = 'guard.lua'\n";
const CLAIM: &str = "[[claim]]\nprotocol = 'udp'\n";
const SAME: Edit = |_| {};

#[test]
fn each_port_has_a_path_and_a_reason() {
    let kernel = "kernel: nothing in use needs workers";
    let claimed = "kernel: workers get only claimed packets";
    let rows: &[Row<'_, &[&str]>] = &[
        ("", "", SAME, &[]),
        ("eth0", "", SAME, &[kernel]),
        ("eth0 eth1", "", SAME, &[kernel, kernel]),
        ("eth0=user", "", SAME, &["user: as configured"]),
        ("eth0=kernel", "", SAME, &["kernel: as configured"]),
        ("eth0", "[daemon]\npath = 'user'\n", SAME, &["user: as configured"]),
        ("eth0", "[daemon]\npath = 'kernel'\n", SAME, &["kernel: as configured"]),
        (
            "eth0 eth1=kernel",
            "[daemon]\npath = 'user'\n",
            SAME,
            &["user: as configured", "kernel: as configured"],
        ),
        ("eth0", HOOK, SAME, &["user: hooks run on workers"]),
        ("eth0", APP, SAME, &["user: apps run on workers"]),
        ("eth0", "[daemon]\nworkers = 2\n", SAME, &["user: workers or cores are configured"]),
        ("eth0", "[daemon]\ncores = [1]\n", SAME, &["user: workers or cores are configured"]),
        ("eth0", "[daemon]\nidle = 'busy'\n", SAME, &["user: busy polling needs workers"]),
        ("eth0 tap:vm0", "", SAME, &[kernel, "user: tap:vm0 is not a Linux interface"]),
        ("eth0 dpdk:0000:01:00.0", "", SAME, &[kernel, "user: dpdk:0000:01:00.0 is not a Linux interface"]),
        (
            "eth0 red0",
            "",
            SAME,
            &[kernel, "user: red0.7 is in a VRF, which the kernel path does not support"],
        ),
        ("eth0 veth0", "", SAME, &[kernel, kernel]),
        // Linux forwards what fits into no slot.
        (
            "red0 big0",
            "",
            SAME,
            &["user: red0.7 is in a VRF, which the kernel path does not support", kernel],
        ),
        ("big0 veth0", "", SAME, &[kernel, kernel]),
        ("veth0=kernel", "", SAME, &["kernel: as configured"]),
        ("gone0", "", SAME, &[kernel]),
        ("tun0", "", SAME, &[kernel]),
        // One port on the user path gets the hooks and apps; the others need not move there.
        (
            "eth0 tap:vm0=user eth1=kernel",
            HOOK,
            SAME,
            &[kernel, "user: as configured", "kernel: as configured"],
        ),
        ("eth0", CLAIM, SAME, &[claimed]),
        ("eth0", &(HOOK.to_string() + CLAIM), SAME, &[claimed]),
        ("eth0", &(APP.to_string() + CLAIM), SAME, &[claimed]),
        ("eth0=kernel", &("[daemon]\nworkers = 1\n".to_string() + CLAIM), SAME, &["kernel: as configured"]),
        ("veth0 eth0", &(HOOK.to_string() + CLAIM), SAME, &[claimed, claimed]),
        (
            "eth0 tap:vm0 eth1=kernel",
            "",
            |machine| machine.no_kernel_path = Some("no BPF here".into()),
            &["user: no BPF here", "user: tap:vm0 is not a Linux interface", "user: no BPF here"],
        ),
    ];
    for (names, more, edit, expected) in rows {
        assert_eq!(paths_of(&right(&(ports(names) + more), *edit)), *expected, "{names} {more}");
    }
}

#[test]
fn command_line_settings_are_checked() {
    let (mut machine, empty) = (machine(), Config::default());
    let up = Request { may_grow: false, ..request() };
    let result = |config: &Config, machine: &Machine, request: &Request<'_>| {
        plan(config, machine, request).map(drop).map_err(|failure| failure.to_string())
    };
    let why = result(&empty, &machine, &up).expect_err("no port");
    assert!(why.starts_with("no port to forward on: name one with --port IF"), "{why}");
    assert_eq!(result(&empty, &machine, &request()), Ok(()), "a file may get ports later");
    let named = ["gone0".to_string()];
    let named = Request { named: &named, ..request() };
    let why = result(&config(&ports("gone0")), &machine, &named).expect_err("mistyped");
    assert!(why.starts_with("interface \"gone0\" does not exist: `ip link` lists interfaces"), "{why}");
    machine.interfaces.insert("gone0".into(), machine.interfaces["eth0"].clone());
    assert_eq!(result(&config(&ports("gone0")), &machine, &named), Ok(()));
    let mut none = config(&ports("eth0"));
    none.daemon.workers = Some(0);
    assert_eq!(result(&none, &machine, &up), Err("0 workers: use at least one".into()));
    let mut switch = config("[[switch]]\nname = 'lan'\nports = ['veth*']\n");
    switch.ports.push(Port::new(Device::Xdp("veth1".into())));
    let why =
        "veth1 is a port of switch lan, so it cannot be a port of the router: remove it from one of them";
    assert_eq!(result(&switch, &machine, &up), Err(why.into()));
}

#[test]
fn workers_get_queues_rings_and_memory() {
    // Number of workers, queues of each port, ring, slots.
    type Expected<'a> = (usize, &'a [usize], u32, usize);
    let rows: &[Row<'_, Expected<'_>>] = &[
        ("eth0=user eth1=user", "", SAME, (4, &[4, 4], 8192, 106_496)),
        ("eth0=user eth1=user", "", |machine| machine.cpus = 1, (1, &[1, 1], 16_384, 49_152)),
        ("eth0 eth1", "[daemon]\nworkers = 2\n", SAME, (2, &[2, 2], 16_384, 90_112)),
        ("eth0 one0", "[daemon]\npath = 'user'\n", SAME, (1, &[1, 1], 16_384, 49_152)),
        ("eth0=user tap:vm0", "", SAME, (1, &[1, 1], 16_384, 34_816)),
        ("eth0=user gone0=user", "", SAME, (4, &[4, 4], 8192, 106_496)),
        ("gone0=user", "", SAME, (1, &[1], 16_384, 28_672)),
        // More queues than workers, which move between them.
        ("eth0", "queues = 4\n[daemon]\nworkers = 2\n", SAME, (2, &[4], 16_384, 90_112)),
        ("eth0", "queues = 2\n[daemon]\npath = 'user'\n", SAME, (2, &[2], 16_384, 49_152)),
        ("eth0", "[daemon]\nworkers = 1\nring = 4096\n", SAME, (1, &[1], 4096, 16_384)),
        ("eth0", "[daemon]\nworkers = 1\nslots = 65536\n", SAME, (1, &[1], 16_384, 65_536)),
        ("eth0", CLAIM, SAME, (4, &[4], 16_384, 90_112)),
        // The memory of a running daemon stays as it is, so rings become smaller.
        ("eth0=user eth1=user", "", |machine| machine.slots = Some(60_000), (4, &[4, 4], 4096, 60_000)),
    ];
    for (names, more, edit, (count, queues, ring, slots)) in rows {
        let plan = right(&(ports(names) + more), *edit);
        let workers = plan.workers.unwrap_or_else(|| panic!("{names} {more}: no workers"));
        let got = (workers.count, &*workers.queues, workers.ring, workers.slots);
        assert_eq!(got, (*count, *queues, *ring, *slots), "{names} {more}");
    }
    assert_eq!(right(&ports("eth0 eth1"), SAME).workers, None, "the kernel path needs none");
    let cores = right(&(ports("eth0") + "[daemon]\nworkers = 2\ncores = [5, 1]\n"), SAME);
    assert_eq!(cores.workers.map(|workers| workers.nodes), Some(vec![1, 0]));
}

#[test]
fn the_kernel_path_is_loaded_if_ports_use_it_or_may_move_to_it() {
    let without: Edit = |machine| machine.no_kernel_path = Some("no BPF here".into());
    for (text, edit, loaded) in [
        ("", SAME, true),
        ("[daemon]\npath = 'user'\n", SAME, false),
        ("[daemon]\nworkers = 2\n", SAME, false),
        ("[[port]]\ndevice = 'eth0'\n", SAME, true),
        ("[[port]]\ndevice = 'eth0'\n", without, false),
        ("", without, false),
        ("[[port]]\ndevice = 'tap:x'\n", SAME, false),
    ] {
        assert_eq!(right(text, edit).with_kernel, loaded, "{text}");
    }
}

#[test]
fn warnings_name_waiting_ports_and_packets_left_to_linux() {
    let rows: &[Row<'_, &[&str]>] = &[
        ("eth0 eth1=user", "", SAME, &[]),
        (
            "gone0",
            "",
            SAME,
            &["port gone0: interface gone0 does not exist; the port is used as soon as it appears"],
        ),
        (
            "tun0",
            "",
            SAME,
            &["port tun0 is waiting: tun0 is not an Ethernet interface: Linux forwards its packets"],
        ),
        (
            "veth0=kernel",
            "attach = 'xdp'\n",
            SAME,
            &[
                "port veth0: XDP cannot send through veth0 while the other end of this veth has GRO off: Linux forwards packets that leave there",
            ],
        ),
        (
            "jumbo0=user big0",
            "",
            SAME,
            &[
                "port jumbo0: Linux forwards packets that fit into no slot: jumbo0 has an MTU of 3000, but a slot of 2048 bytes has room for at most 1514: set slot_size = 4096 in [daemon], or lower the MTU with `ip link set dev jumbo0 mtu 1514`",
            ],
        ),
        (
            "big0",
            CLAIM,
            SAME,
            &[
                "port big0: Linux forwards packets that fit into no slot: big0 has an MTU of 9000, but a slot of 2048 bytes has room for at most 1514: lower the MTU with `ip link set dev big0 mtu 1514`",
            ],
        ),
        (
            "eth0=user eth1=kernel",
            "[filter]\nrate_packets = 10\n",
            SAME,
            &[
                "port eth0: while no worker receives its packets, all that Linux would forward are dropped, since nftables cannot limit rates in the same way: path = \"kernel\" filters without workers",
            ],
        ),
        ("eth0=user", "[filter]\nrate_packets = 10\nfail = 'open'\n", SAME, &[]),
        ("veth0=kernel", "attach = 'tc'\n", SAME, &[]),
        ("veth0=user", "", SAME, &[]),
        (
            "eth0",
            "",
            |machine| machine.pins = false,
            &[
                "the kernel path will end with the daemon: there is no bpffs, and this process may not mount one (CAP_SYS_ADMIN)",
            ],
        ),
        ("eth0=user", "", |machine| machine.pins = false, &[]),
    ];
    for (names, more, edit, expected) in rows {
        assert_eq!(right(&(ports(names) + more), *edit).warnings, *expected, "{names}");
    }
}

/// Plans a reload from one text to another, of a daemon with the kernel path, and hooks and apps if it has workers.
fn reloaded(old: &str, new: &str, edit: Edit) -> Result<Changes, String> {
    let (before, plan) = (config(old), right(old, SAME));
    let workers = plan.workers.as_ref().map(|_| !before.apps.is_empty());
    let current = Current {
        config: &before,
        plan: &plan,
        takes_claims: plan.paths.claims(&before),
        has_hooks: workers.is_some(),
        apps: workers,
    };
    let mut machine = machine();
    machine.slots = plan.workers.as_ref().map(|workers| workers.slots);
    edit(&mut machine);
    reload(&current, config(new), &machine, None).map_err(|error| error.to_string())
}

#[test]
fn a_reload_lists_its_changes() {
    let without: Edit = |machine| machine.no_kernel_path = Some("the daemon was started without it".into());
    let [one, two, user] = [ports("eth0"), ports("eth0 eth1"), ports("eth0=user")];
    let cases: &[(String, String, Edit, [&str; 4])] = &[
        // Changed, restarted, needs a restart of the daemon, paths.
        (one.clone(), one.clone(), SAME, ["", "", "", "kernel"]),
        (one.clone(), two.clone(), SAME, ["port.xdp:eth1", "", "", "kernel"]),
        (user.clone(), ports("eth0=user eth1=user"), SAME, ["", "port.xdp:eth1", "", "user"]),
        // What was chosen stays, unless the configured path changes.
        (one.clone(), one.clone() + HOOK, SAME, ["", "", "", "error"]),
        (one.clone(), "[daemon]\npath = 'user'\n".to_string() + &one, SAME, ["", "daemon.path", "", "user"]),
        (user.clone(), ports("eth0=kernel"), without, ["", "port.xdp:eth0", "port.xdp:eth0.path", "user"]),
        (one.clone(), one.clone() + CLAIM, SAME, ["", "", "claim", "kernel"]),
        (user.clone() + HOOK, user.clone() + HOOK, SAME, ["hook", "", "", "user"]),
        (user.clone() + APP, user.clone() + APP, SAME, ["app", "", "", "user"]),
        (user.clone(), ports("eth0=user gone0=user"), SAME, ["", "port.xdp:gone0", "", "user"]),
    ];
    for (old, new, edit, [changed, restarted, needs_restart, paths]) in cases {
        match reloaded(old, new, *edit) {
            Ok(Changes { reply, plan, .. }) => {
                let keys = [reply.changed, reply.restarted, reply.needs_restart].map(|keys| keys.join(", "));
                assert_eq!(keys, [*changed, *restarted, *needs_restart], "{old} -> {new}");
                assert_eq!(plan.paths.name(), *paths, "{old} -> {new}");
            }
            Err(why) => assert_eq!(*paths, "error", "{old} -> {new}: {why}"),
        }
    }
}

#[test]
fn a_reload_is_refused_only_for_its_own_changes() {
    let user = ports("eth0=user");
    let many: String = (0..9).map(|index| format!("gone{index}=user ")).collect();
    for (new, why) in [
        (
            user.clone() + "[[port]]\ndevice = 'dpdk:0000:01:00.0'\n",
            "dpdk:0000:01:00.0: this build has no DPDK",
        ),
        (ports("eth0=user ") + &ports(&many), "10 ports and 4 workers need"),
    ] {
        let result = reloaded(&user, &new, |machine| machine.dpdk = false).expect_err(&new);
        assert!(result.starts_with(why), "{new}: {result}");
    }
    // The MTU of a port that the reload does not touch has changed since: that port waits when workers start again.
    let shrunk: Edit = |machine| {
        machine.interfaces.get_mut("eth0").expect("it is there").mtu = 9000;
    };
    assert!(reloaded(&user, &ports("eth0=user eth1=user"), shrunk).is_ok());
}

#[test]
fn the_memory_of_many_ports_is_not_a_multiple_of_that_of_few() {
    let slots = |count: usize| {
        let ports = (0..count).map(|at| format!("[[port]]\ndevice = 'bm-none{at}'\n"));
        let text = format!("[daemon]\npath = 'user'\nworkers = 1\n{}", ports.collect::<String>());
        workers::Workers::plan(&config(&text), &machine()).slots
    };
    // A ring of 4096, and 4096 frames being sent, for each port.
    assert_eq!(slots(16), 16 * (4096 + 4096) + 8192);
    // The frames being sent are shared out: 65,536 / 100.
    assert_eq!(slots(100), 100 * (2048 + 655) + 8192);
    assert_eq!(slots(1000), 1000 * (2048 + 512) + 8192);
}

#[test]
fn memory_lasts_for_three_times_the_ports_with_smaller_rings() {
    let with_ports = |count: usize| {
        let ports = (0..count).map(|at| format!("[[port]]\ndevice = 'bm-none{at}'\n"));
        config(&format!("[daemon]\nworkers = 2\n{}", ports.collect::<String>()))
    };
    let slots = workers::Workers::plan(&with_ports(3), &machine()).slots;
    let machine = Machine { slots: Some(slots), ..machine() };
    let ring = |count| workers::Workers::plan(&with_ports(count), &machine).ring;
    assert_eq!([ring(3), ring(6), ring(9)], [8192, 4096, 2048]);
    let checked =
        |config: &Config| workers::check_memory(config, &machine, slots).map_err(|error| error.to_string());
    assert_eq!(checked(&with_ports(9)), Ok(()));
    assert_eq!(
        checked(&with_ports(10)),
        Err("10 ports and 2 workers need 90112 frames, but the daemon allocated 81920 when it started: restart the daemon with this configuration to allocate more".into())
    );
    let mut fixed = with_ports(6);
    fixed.daemon.ring = Some(8192);
    assert!(checked(&fixed).is_err(), "a ring that somebody asked for stays as it is");
}

#[test]
fn possible_configurations_are_planned() {
    for (text, workers) in [
        ("", false),
        ("[[hook]]\nfile = '/dev/null'\n", false),
        ("[[filter.rule]]\nport = 'eth7'\naction = 'drop'\n", false),
        ("[[port]]\ndevice = 'tap:x'\n[[hook]]\nfile = '/dev/null'\n", true),
        ("[daemon]\nslot_size = 8192\n[[port]]\ndevice = 'tap:x'\n", true),
        ("[daemon]\nslot_size = 4096\n[[port]]\ndevice = 'jumbo0'\npath = 'user'\n", true),
        ("[[port]]\ndevice = 'big0'\n", false),
        ("[[port]]\ndevice = 'big0'\npath = 'user'\n", true),
        ("[[port]]\ndevice = 'eth0'\nzero_copy = 'off'\n", false),
        ("[[port]]\ndevice = 'gone0'\n[daemon]\nworkers = 2\n", true),
    ] {
        assert_eq!(right(text, SAME).workers.is_some(), workers, "{text}");
    }
}

/// `[cluster]` of a node with `eth0` and a link `one0` to another node.
fn cluster(more: &str) -> String {
    format!(
        "[cluster]\nname = 'a'\n{more}\n[[cluster.member]]\nname = 'a'\nnode = 0\n[[cluster.member]]\nname = 'b'\nnode = 1\n\
         [[cluster.fabric]]\ndevice = 'one0'\npeer = 'b'\n[[cluster.port]]\ndevice = 'eth0'\nnumber = 0\n"
    )
}

#[test]
fn a_cluster_that_balances_has_workers_with_a_queue_of_every_fabric_link() {
    let direct = right(&(ports("eth0") + &cluster("")), SAME);
    assert_eq!(
        (paths_of(&direct), direct.workers),
        (vec!["kernel: nothing in use needs workers".into()], None)
    );
    let text = ports("eth0") + &cluster("balancing = 'vlb'");
    let plan = right(&text, SAME);
    assert_eq!(paths_of(&plan), ["user: workers choose the intermediates of the cluster"]);
    let workers = plan.workers.unwrap();
    assert_eq!((workers.count, workers.queues), (1, vec![1]), "one0 has one queue");
    let more = right(&text, |machine| machine.interfaces.get_mut("one0").unwrap().queues = 2);
    assert_eq!(more.workers.unwrap().count, 2);
    let why = planned(&(ports("eth0=kernel") + &cluster("balancing = 'classic'")), SAME).unwrap_err();
    assert!(why.contains("no effect on the kernel path") && why.contains("balancing = \"direct\""), "{why}");
    // Hooks and apps are as usual.
    assert!(right(&(ports("eth0=user") + &cluster("")), SAME).workers.is_some());
    let old = ports("eth0=user") + &cluster("");
    let new = ports("eth0=user") + &cluster("balancing = 'vlb'");
    assert_eq!(reloaded(&old, &new, SAME).unwrap().arranged, ["cluster"], "workers are started again");
    let (old, new) = (ports("eth0") + &cluster(""), ports("eth0") + &cluster("epoch = 2"));
    assert_eq!(reloaded(&old, &new, SAME).unwrap().reply.changed, ["cluster"]);
}
