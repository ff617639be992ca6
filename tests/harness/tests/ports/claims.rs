//! Claims: workers and their hooks get the claimed packets of a port on the kernel path, and no others.

use bm_tests::lab::{Ends, Lab, SIDES, Side};
use bm_tests::packet::{Ip4, Ip6, routed};
use bm_tests::subject::{Router, Subject};

const CLAIM: &str = "[[claim]]\nname = 'dns'\nprotocol = 'udp'\ndestination_ports = 53\n";

/// A router with these claims and a hook that counts the packets it gets. The daemon chooses the path.
fn with_claims(test: &str, more: &str, action: impl Fn(&Lab, &mut Router)) {
    let Some(subject) = Subject::kernel(test) else { return };
    let lab = Lab::new(test, Ends::Silent);
    let mut router = subject.start(&lab);
    router.end(&[]);
    let file = std::env::temp_dir().join(format!("bm-claims-{test}-{}.lua", std::process::id()));
    let script = "local seen = require('brickmoon.hook').counter('seen')\n\
        return function (burst) seen:add(burst.count) end\n";
    std::fs::write(&file, script).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let hook = format!("[[hook]]\nname = 'watch'\nfile = '{}'\nstage = 'ingress'\n", file.display());
    router.restart_choosing(&SIDES.map(|side| side.router()), &format!("{more}{hook}"));
    action(&lab, &mut router);
    router.settle();
    router.stop();
    let _gone = std::fs::remove_file(file);
}

fn query(router: &Router, what: &[&str]) -> String {
    let (verb, rest) = what.split_first().expect("a command");
    let reply = router.ask(verb, rest).expect("a daemon");
    String::from_utf8_lossy(&reply.stdout).into_owned()
}

fn shown(router: &Router, what: &str) -> serde_json::Value {
    serde_json::from_str(&query(router, &["show", what, "--json"])).expect("show prints JSON")
}

/// UDP to a port.
fn udp(destination: &str, port: u16) -> Vec<u8> {
    Ip4::udp_ports("192.0.2.2", destination, 4000, port, &[7; 20]).bytes()
}

/// Whether a packet from the source comes out where it should, and only once.
fn passes(lab: &Lab, to: Side, packet: &[u8]) -> bool {
    let expected = to.to_neighbor(2, &routed(packet));
    let heard = lab.exchange(&[(Side::Src, Side::Src.to_router(packet))], 1, true);
    heard.complete && heard.seen.iter().filter(|seen| seen.side == to && seen.frame == expected).count() == 1
}

/// A counter of the first port's XDP program.
fn counted(router: &Router, name: &str) -> u64 {
    shown(router, "ports")["ports"][0]["kernel_counters"][name].as_u64().unwrap_or(0)
}

fn seen_by_hook(router: &Router) -> u64 {
    let text = query(router, &["show", "hooks"]);
    let line = text.lines().find_map(|line| line.strip_prefix("watch counted seen "));
    line.map_or(0, |count| count.trim().replace(',', "").parse().expect("a number"))
}

#[test]
fn a_hook_gets_only_claimed_packets() {
    with_claims("claim", CLAIM, |lab, router| {
        let path = "path kernel (workers get only claimed packets), 1 worker,";
        assert!(query(router, &["status"]).contains(path), "{}", query(router, &["status"]));
        for port in [53, 54, 53, 5353, 53] {
            assert!(passes(lab, Side::Snk, &udp("10.9.9.9", port)), "port {port}");
        }
        // A packet that leaves by another kernel port, one that the slow path answers, and one that is not UDP.
        assert!(passes(lab, Side::Low, &udp("10.2.3.4", 53)));
        let udp = Ip4::udp_ports("192.0.2.2", "10.9.9.9", 4000, 53, &[7; 20]);
        let spent = Ip4 { ttl: 1, ..udp };
        let heard = lab.exchange(&[(Side::Src, Side::Src.to_router(&spent.bytes()))], 1, true);
        assert!(heard.seen.iter().any(|seen| seen.side == Side::Src && seen.frame.get(34) == Some(&11)));
        assert!(passes(lab, Side::Snk, &Ip4::tcp_syn("192.0.2.2", "10.9.9.9", 4000, 53).bytes()));
        assert!(passes(
            lab,
            Side::Snk,
            &Ip6::new("2001:db8:1::2", "2001:db8:a000::9", 253, vec![0; 8]).bytes()
        ));
        assert_eq!(seen_by_hook(router), 5);
        // The port's account includes claimed packets.
        let account = &shown(router, "ports")["ports"][0]["account"];
        let number = |name: &str| account[name].as_u64().expect("a number");
        let came = number("received") + number("originated");
        let went = ["sent", "host", "held", "consumed", "dropped"].map(number).iter().sum::<u64>();
        assert_eq!((number("passed"), went), (0, came), "{account}");
        assert!(number("originated") == 1 && number("received_bytes") > number("sent_bytes"), "{account}");
        assert_eq!((counted(router, "claimed"), counted(router, "forwarded") >= 4), (5, true));
        let filters = shown(router, "filters");
        assert_eq!(
            (&filters["claims"][0]["name"], &filters["claims"][0]["packets"]),
            (&"dns".into(), &5.into())
        );
    });
}

#[test]
fn an_app_gets_only_claimed_packets() {
    let file = std::env::temp_dir().join(format!("bm-claimed-{}.lua", std::process::id()));
    // Drops packets to 10.9.8.0/24, and lets all others pass.
    let script = "local Guard = {}\n\
        function Guard:new () return setmetatable({}, { __index = Guard }) end\n\
        function Guard:push ()\n\
           local input, output = self.input.input, self.output.output\n\
           for _ = 1, link.nreadable(input) do\n\
              local p = link.receive(input)\n\
              if p.data[32] == 8 then packet.free(p) else link.transmit(output, p) end\n\
           end\n\
        end\n\
        return { Guard = Guard }\n";
    std::fs::write(&file, script).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let app = format!(
        "{CLAIM}[[app]]\nname = 'guard'\nmodule = '{}'\n\
         [[link]]\nfrom = 'r0.output'\nto = 'guard.input'\n\
         [[link]]\nfrom = 'guard.output'\nto = 'router.r0'\n",
        file.display()
    );
    with_claims("claim-app", &app, |lab, router| {
        assert!(query(router, &["status"]).contains("path kernel"), "{}", query(router, &["status"]));
        assert!(passes(lab, Side::Snk, &udp("10.9.9.9", 53)));
        assert!(!passes(lab, Side::Snk, &udp("10.9.8.9", 53)), "the app must drop it");
        assert!(passes(lab, Side::Snk, &udp("10.9.8.9", 54)), "the app must not get it");
        assert_eq!((seen_by_hook(router), counted(router, "claimed")), (1, 2));
        assert!(counted(router, "forwarded") >= 1);
    });
    let _gone = std::fs::remove_file(file);
}

#[test]
fn filters_come_before_claims() {
    let rules = "[[filter.rule]]\naction = 'drop'\nprotocol = 'udp'\ndestination = '10.9.9.0/24'\n";
    with_claims("claim-drop", &format!("{rules}{CLAIM}"), |lab, router| {
        assert!(!passes(lab, Side::Snk, &udp("10.9.9.9", 53)));
        assert!(passes(lab, Side::Snk, &udp("10.9.8.9", 53)));
        assert_eq!((seen_by_hook(router), counted(router, "drop_filter")), (1, 1));
    });
}

/// The MTU may be above what slots hold, at the start and later.
#[test]
fn claimed_packets_that_fit_into_no_slot_are_linuxs() {
    with_claims("claim-large", CLAIM, |lab, router| {
        for mtu in [1500, 3000] {
            for side in [Side::Src, Side::Snk] {
                lab.rtr.ip(&format!("link set {} mtu {mtu}", side.router()));
                lab.host(side).ip(&format!("link set {} mtu 3000", side.host()));
            }
            router.end(&[]);
            router.restart_choosing(&SIDES.map(|side| side.router()), CLAIM);
            lab.rtr.ip(&format!("link set {} mtu 3000", Side::Src.router()));
            lab.rtr.ip(&format!("link set {} mtu 3000", Side::Snk.router()));
            router.settle();
            let large = Ip4::udp_ports("192.0.2.2", "10.9.9.9", 4000, 53, &[7; 1800]).bytes();
            assert!(passes(lab, Side::Snk, &udp("10.9.9.9", 53)) && passes(lab, Side::Snk, &large), "{mtu}");
            assert_eq!(["claimed", "linux_no_worker"].map(|name| counted(router, name)), [1, 1], "{mtu}");
            let why = shown(router, "ports")["ports"][0]["state_reason"].to_string();
            assert!(why.contains("Linux forwards packets that fit into no slot"), "{why}");
        }
    });
}

#[test]
fn rules_of_linux_come_before_claims() {
    with_claims("claim-linux", CLAIM, |lab, router| {
        let rules = |text: &str| {
            lab.rtr.feed("nft -f -", &format!("flush ruleset\n{text}")).expect("a ruleset");
            router.settle();
        };
        if !bm_tests::command::has("nft") {
            return bm_tests::report::skip("claim-linux", "there is no nft");
        }
        assert!(passes(lab, Side::Snk, &udp("10.9.9.9", 53)));
        rules(
            "table ip t { chain f { type filter hook forward priority 0; ip daddr 10.9.9.0/24 udp dport 53 drop; }\n}",
        );
        assert!(!passes(lab, Side::Snk, &udp("10.9.9.9", 53)), "Linux must drop it although it is claimed");
        assert!(passes(lab, Side::Snk, &udp("10.9.8.9", 53)), "other packets must still be claimed");
        assert_eq!(seen_by_hook(router), 2);
        // The hook does not get packets that Linux lets pass, either.
        rules(
            "table ip t { chain f { type filter hook forward priority 0; udp dport 53 ct state new accept; }\n}",
        );
        assert!(passes(lab, Side::Snk, &udp("10.9.9.9", 53)));
        assert_eq!(seen_by_hook(router), 2);
        rules("");
        assert!(passes(lab, Side::Snk, &udp("10.9.9.9", 53)));
        assert_eq!(seen_by_hook(router), 3);
    });
}

#[test]
fn claims_change_while_packets_flow() {
    with_claims("claim-reload", CLAIM, |lab, router| {
        assert!(passes(lab, Side::Snk, &udp("10.9.9.9", 53)));
        assert_eq!(seen_by_hook(router), 1);
        let file = query(router, &["status", "--json"]);
        let file: serde_json::Value = serde_json::from_str(&file).expect("status prints JSON");
        let path = file["config"].as_str().expect("a configuration file").to_string();
        let config = std::fs::read_to_string(path).expect("the configuration");
        let other = config.replace("destination_ports = 53", "destination_ports = 54");
        assert!(router.reload_with(&other).expect("a daemon").status.success());
        assert!(passes(lab, Side::Snk, &udp("10.9.9.9", 53)) && passes(lab, Side::Snk, &udp("10.9.9.9", 54)));
        assert_eq!(seen_by_hook(router), 2);
        // A hook that would get no packets is an error, and nothing changes.
        let none = config.replace(CLAIM, "");
        let refused = router.reload_with(&none).expect("a daemon");
        assert!(
            String::from_utf8_lossy(&refused.stderr).contains("select packets for workers"),
            "{refused:?}"
        );
        assert!(passes(lab, Side::Snk, &udp("10.9.9.9", 54)));
        assert_eq!(seen_by_hook(router), 3);
        // Without the hook no claim is needed: the kernel path forwards everything again.
        let (none, _) = none.split_once("[[hook]]").expect("a hook");
        assert!(router.reload_with(&format!("{none}\n")).expect("a daemon").status.success());
        let before = counted(router, "claimed");
        assert!(passes(lab, Side::Snk, &udp("10.9.9.9", 53)) && passes(lab, Side::Snk, &udp("10.9.9.9", 54)));
        assert_eq!(counted(router, "claimed"), before);
    });
}
