//! What a plan refuses, and what it suggests instead.

use super::*;

#[test]
fn errors_say_what_is_wrong_and_how_to_fix_it() {
    let rows: &[Row<'_, &str>] = &[
        ("tap:x=kernel", "", SAME, "tap:x: the kernel path needs Linux interfaces: use --path user"),
        (
            "eth0=kernel",
            HOOK,
            SAME,
            "hook acl needs the user path, but the ports use the kernel path: start with",
        ),
        (
            "eth0=kernel",
            APP,
            SAME,
            "app guard needs the user path, but the ports use the kernel path: start with",
        ),
        (
            "eth0 eth1=user",
            "[[app]]\nname = 'guard'\nmodule = 'guard.lua'\n[[link]]\nfrom = 'eth0.output'\nto = 'guard.input'\n",
            SAME,
            "the [[link]] on line 10 takes packets from eth0, which uses the kernel path: set path",
        ),
        (
            "eth0",
            HOOK,
            |machine| {
                machine.scripts.hooks = [("acl.lua".into(), "line 3: unexpected symbol".into())].into();
            },
            "f.toml, line 4: hook acl: line 3: unexpected symbol",
        ),
        (
            "eth0",
            APP,
            |machine| {
                machine.scripts.apps = vec![("guard".into(), "no class".into())];
            },
            "f.toml, line 4: app guard: no class",
        ),
        ("eth0", APP, |machine| machine.scripts.unchecked = Some("out of memory".into()), "out of memory"),
        (
            "eth0",
            "[lua]\npath = ['x']\n",
            |machine| machine.scripts.missing = vec!["x".into()],
            "f.toml, line 5: `path` in [lua]: no such directory: x",
        ),
        (
            "eth0",
            &(APP.to_string() + "core = 9\n"),
            SAME,
            "f.toml, line 4: app guard: core 9 does not exist; online cores: 0, 1, 2",
        ),
        (
            "eth0",
            &(APP.to_string() + "core = 1\n[daemon]\ncores = [1]\n"),
            SAME,
            "f.toml, line 4: app guard: `cores` in [daemon] gives core 1 to worker 0: use another core",
        ),
        (
            "eth0",
            &(APP.to_string() + "[[link]]\nfrom = 'eth0.output'\nto = 'gard.input'\n"),
            SAME,
            "f.toml, line 7: gard.input: unknown app or port gard",
        ),
        (
            "eth0",
            "[[filter.rule]]\nport = 'eth7'\naction = 'drop'\n",
            SAME,
            "a [[filter.rule]] names the port eth7, which does not exist: add it as a [[port]]",
        ),
        (
            "eth0=kernel",
            "[daemon]\nworkers = 2\n",
            SAME,
            "workers in [daemon] or on the command line has no effect",
        ),
        (
            "eth0=kernel",
            "[daemon]\ncores = [1]\n",
            SAME,
            "cores in [daemon] or on the command line has no effect",
        ),
        (
            "eth0",
            "[daemon]\nrebalance = 'on'\n",
            SAME,
            "rebalance in [daemon] or on the command line has no effect",
        ),
        (
            "eth0=kernel",
            "[daemon]\nidle = 'busy'\n",
            SAME,
            "idle = \"busy\" in [daemon] or on the command line has no",
        ),
        (
            "eth0=kernel",
            "zero_copy = 'on'\n",
            SAME,
            "zero_copy of port xdp:eth0 has no effect on the kernel path: remove",
        ),
        ("eth0=kernel", "queues = 2\n", SAME, "queues of port xdp:eth0 has no effect on the kernel path"),
        (
            "eth0=kernel",
            "queue_workers = [0]\n",
            SAME,
            "queue_workers of port xdp:eth0 has no effect on the kernel",
        ),
        (
            "eth0=kernel",
            "checksum_completion = 'off'\n",
            SAME,
            "checksum_completion of port xdp:eth0 has no effect",
        ),
        (
            "eth0=user",
            "queue_workers = [1]\n",
            SAME,
            "queue_workers gives queue 0 of eth0 to worker 1, but worker 0 sends",
        ),
        (
            "eth0=user",
            "queue_workers = [0, 1, 2, 3, 9]\n",
            SAME,
            "queue_workers gives queue 4 of eth0 to worker 9, but the last worker is 3",
        ),
        (
            "eth0=user",
            "[daemon]\nslot_size = 8192\n",
            SAME,
            "slot_size = 8192, but AF_XDP on eth0 needs slots of 2048",
        ),
        (
            "eth0",
            &("[daemon]\nslot_size = 8192\n".to_string() + CLAIM),
            SAME,
            "slot_size = 8192, but AF_XDP on eth0",
        ),
        (
            "one0",
            "[daemon]\nworkers = 2\n",
            SAME,
            "2 workers, but one0 has only 1 queue(s), and each worker needs",
        ),
        ("eth0", "queues = 2\n[daemon]\nworkers = 3\n", SAME, "3 workers, but eth0 has only 2 queue(s)"),
        (
            "eth0",
            "[daemon]\nworkers = 5\n",
            SAME,
            "5 workers, but eth0 has only 4 queue(s), and each worker needs a",
        ),
        (
            "dpdk:0000:01:00.0",
            "",
            |machine| machine.dpdk = false,
            "dpdk:0000:01:00.0: this build has no DPDK. Build it",
        ),
        (
            "eth0",
            "",
            |machine| machine.net_admin = false,
            "permission denied: run as root, or with CAP_NET_ADMIN",
        ),
    ];
    let mut wrong = Vec::new();
    for (names, more, edit, expected) in rows {
        let text = ports(names) + more;
        let parsed = Config::parse(Path::new("f.toml"), &text).map(|_| planned(&text, *edit));
        let result = parsed.unwrap_or_else(|error| Err(error.to_string()));
        if !result.as_ref().is_err_and(|why| why.starts_with(expected)) {
            wrong.push(format!("{names} {more}: {result:?}"));
        }
    }
    assert_eq!(wrong, [""; 0]);
}
