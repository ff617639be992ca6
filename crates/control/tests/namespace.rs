//! Tests the control thread with a real kernel, in network namespaces. Needs root and iproute2.
//!
//! Each test starts this program again inside a namespace, so that no thread has to change namespaces.

#![allow(clippy::unwrap_used)]

use bm_api::request::RouteQuery;
use bm_api::{Action, RouteState};
use bm_control::config::Config;
use bm_control::control_thread::{Control, ControlPort, ControlThread};
use bm_fastpath::{AttachChoice, Kernel};
use bm_fib::published::Readers;
use bm_forward::{Resolution, Resolver};
use bm_port::Steering;
use std::io::Write;
use std::net::{IpAddr, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Environment variable: the name of the test, in the program that runs inside.
const INSIDE: &str = "BM_CONTROL_INSIDE";

struct Namespace(String);

impl Drop for Namespace {
    fn drop(&mut self) {
        let _gone = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

/// Runs `body` in a namespace with two veth pairs: `a` (192.0.2.1/24, 2001:db8:a::1/64) and `b`.
fn inside(test: &str, body: impl FnOnce()) {
    if std::env::var(INSIDE).is_ok_and(|inside| inside == test) {
        ip("link set lo up");
        for (name, peer) in [("a", "a2"), ("b", "b2")] {
            ip(&format!("link add name {name} type veth peer name {peer}"));
            ip(&format!("link set dev {peer} up"));
            ip(&format!("link set dev {name} up"));
        }
        ip("addr add 192.0.2.1/24 dev a");
        ip("addr add 2001:db8:a::1/64 dev a nodad");
        ip("addr add 198.51.100.1/24 dev b");
        return body();
    }
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        eprintln!("skipped: {test} needs root to make a network namespace");
        return;
    }
    let namespace = Namespace(format!("bm-control-{test}-{}", std::process::id()));
    ip(&format!("netns add {}", namespace.0));
    let program = std::env::current_exe().unwrap();
    let ended = Command::new("ip")
        .args(["netns", "exec", &namespace.0])
        .arg(program)
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, test)
        .status()
        .unwrap();
    assert!(ended.success(), "{test} failed inside its namespace");
}

fn ip(arguments: &str) {
    assert!(try_ip(arguments), "ip {arguments} failed");
}

fn try_ip(arguments: &str) -> bool {
    let output = Command::new("ip").args(arguments.split_whitespace()).output().unwrap();
    if !output.status.success() {
        eprintln!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    output.status.success()
}

fn ip_batch(lines: &str) {
    let mut ip = Command::new("ip").args(["-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    ip.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    assert!(ip.wait().unwrap().success());
}

fn ifindex(name: &str) -> u32 {
    std::fs::read_to_string(format!("/sys/class/net/{name}/ifindex")).unwrap().trim().parse().unwrap()
}

/// The last settings of a port.
#[derive(Default)]
struct Said {
    macs: Vec<[u8; 6]>,
    local: Vec<IpAddr>,
    active: bool,
}

#[derive(Clone, Default)]
struct Told(Arc<Mutex<Said>>);

impl Steering for Told {
    fn set_macs(&mut self, macs: &[[u8; 6]]) -> std::io::Result<()> {
        self.0.lock().unwrap().macs = macs.to_vec();
        Ok(())
    }
    fn set_local(&mut self, addresses: &[IpAddr]) -> std::io::Result<()> {
        self.0.lock().unwrap().local = addresses.to_vec();
        Ok(())
    }
    fn set_active(&mut self, active: bool) -> std::io::Result<()> {
        self.0.lock().unwrap().active = active;
        Ok(())
    }
}

fn start(told: &Told) -> ControlThread {
    let ports = ["a", "b"].map(|name| ControlPort {
        name: name.into(),
        ifindex: Some(ifindex(name)),
        steering: Box::new(told.clone()),
        in_kernel: false,
    });
    ControlThread::start(&Config::default(), 7, &Readers::new(), ports.into(), None).unwrap()
}

fn until(what: &str, mut done: impl FnMut() -> bool) -> Duration {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < Duration::from_secs(20), "timed out: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
    started.elapsed()
}

/// Prefix, action and state of the route to an address.
fn to(thread: &ControlThread, address: &str) -> (String, Action, RouteState) {
    let query = RouteQuery { address: Some(address.into()), ..RouteQuery::default() };
    let routes = thread.handle().try_ask(move |control| control.routes(&query)).unwrap();
    let route = &routes.routes[0];
    (route.prefix.clone(), route.action, route.state)
}

fn verified(thread: &ControlThread) {
    let verify = thread.handle().verify().unwrap();
    assert!(verify.equal, "{:#?}", verify.differences);
    assert!(verify.compared > 0);
}

#[test]
fn follows_the_kernel() {
    inside("follows_the_kernel", || {
        let thread = start(&Told::default());
        assert_eq!(to(&thread, "192.0.2.1"), ("192.0.2.1/32".into(), Action::Host, RouteState::Route));
        assert_eq!(to(&thread, "192.0.2.9"), ("192.0.2.0/24".into(), Action::Resolve, RouteState::Route));
        ip("neigh add 192.0.2.9 lladdr 02:00:00:00:00:09 dev a");
        let host = ("192.0.2.9/32".to_string(), Action::Forward, RouteState::Neighbor);
        until("the neighbor's entry", || to(&thread, "192.0.2.9") == host);
        ip("route add 203.0.113.0/24 via 192.0.2.9");
        until("the route", || to(&thread, "203.0.113.1").1 == Action::Forward);
        ip("nexthop add id 7 via 192.0.2.9 dev a");
        ip("nexthop add id 8 group 7");
        ip("route add 203.0.113.64/26 nhid 8");
        until("the route by an object", || to(&thread, "203.0.113.65").0 == "203.0.113.64/26");
        ip("route add prohibit 203.0.113.128/25");
        until("the prohibit route", || to(&thread, "203.0.113.129").1 == Action::Prohibit);
        verified(&thread);
        ip("link set dev a2 down");
        until("the lost carrier", || to(&thread, "203.0.113.1").1 == Action::Host);
        ip("link set dev a2 up");
        until("the carrier again", || to(&thread, "203.0.113.1").1 != Action::Host);
        verified(&thread);
        ip("rule add from 198.51.100.0/24 lookup 77");
        until("the rule", || !thread.handle().ask(|control| control.status()).unwrap().notes.is_empty());
        ip("rule del from 198.51.100.0/24 lookup 77");
        until("the rule's end", || thread.handle().ask(|control| control.status()).unwrap().notes.is_empty());
        verified(&thread);
    });
}

#[test]
fn follows_a_hundred_thousand_changes() {
    inside("follows_a_hundred_thousand_changes", || {
        let thread = start(&Told::default());
        ip("neigh add 192.0.2.9 lladdr 02:00:00:00:00:09 dev a");
        let routes = |verb: &str| -> String {
            let prefix = |number: u32| std::net::Ipv4Addr::from(0x0b00_0000 + (number << 8));
            (0..100_000).map(|number| format!("route {verb} {}/24 via 192.0.2.9\n", prefix(number))).collect()
        };
        let total =
            |thread: &ControlThread| thread.handle().ask(|control| control.status()).unwrap().routes_ipv4;
        let before = total(&thread);
        for (verb, wanted) in [("add", before + 100_000), ("del", before)] {
            ip_batch(&routes(verb));
            let behind = until("the routes", || total(&thread) == wanted);
            println!("{verb}: 100,000 routes compiled {behind:?} after the kernel had the last");
            assert!(behind < Duration::from_secs(1), "{behind:?}");
        }
        verified(&thread);
    });
}

#[test]
fn requests_neighbors_and_reports_those_that_fail() {
    inside("requests_neighbors_and_reports_those_that_fail", || {
        let thread = start(&Told::default());
        let mut neighbor_requests = thread.handle().neighbor_requests().unwrap();
        let nobody = (ifindex("a"), "192.0.2.77".parse().unwrap());
        neighbor_requests.resolve(nobody.0, nobody.1);
        let known = |address: &str| {
            let neighbors = thread.handle().ask(|control| control.neighbors()).unwrap().neighbors;
            neighbors.into_iter().find(|neighbor| neighbor.address == address.parse::<IpAddr>().unwrap())
        };
        until("the request", || known("192.0.2.77").is_some());
        let failed = (nobody.0, nobody.1, Resolution::Failed);
        until("the failure", || neighbor_requests.next_resolution() == Some(failed));
        // The kernel makes one of a broadcast address, and announces none.
        let broadcast = IpAddr::from([192, 0, 2, 255]);
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.set_broadcast(true).unwrap();
        socket.send_to(b"x", (broadcast, 9)).unwrap();
        neighbor_requests.resolve(nobody.0, broadcast);
        let of_linux = (nobody.0, broadcast, Resolution::LeftToLinux);
        until("the kernel's own", || neighbor_requests.next_resolution() == Some(of_linux));
        // A gateway is resolved before any packet needs it, and confirmed when it is stale.
        ip("route add 203.0.113.0/24 via 192.0.2.9");
        until("the gateway", || known("192.0.2.9").is_some());
        ip("neigh replace 192.0.2.9 lladdr 02:00:00:00:00:09 dev a nud stale");
        until("the confirmation", || known("192.0.2.9").is_some_and(|neighbor| neighbor.state != "stale"));
        // Not right after it has got a MAC: Linux would ignore another one for a while.
        ip("neigh replace 192.0.2.9 lladdr 02:00:00:00:00:0a dev a nud stale");
        let asked =
            until("the other", || known("192.0.2.9").is_some_and(|neighbor| neighbor.state != "stale"));
        assert!(asked > Duration::from_secs(4), "asked after {asked:?}");
    });
}

#[test]
fn sets_the_addresses_of_linux_on_ports() {
    inside("sets_the_addresses_of_linux_on_ports", || {
        let told = Told::default();
        let thread = start(&told);
        let is_told = |what: &str, done: &dyn Fn(&Said) -> bool| {
            until(what, || done(&told.0.lock().unwrap()));
        };
        is_told("inactive at first", &|said| {
            !said.active && said.macs.len() == 1 && said.local.contains(&"192.0.2.1".parse().unwrap())
        });
        thread.handle().ask(|control| control.set_active(true)).unwrap();
        is_told("active", &|said| said.active);
        ip("addr add 203.0.113.1/32 dev b");
        is_told("the address", &|said| said.local.contains(&"203.0.113.1".parse().unwrap()));
        // `b` is updated last, and is checked here.
        ip("link set dev b address 02:00:00:00:00:66");
        is_told("the MAC", &|said| said.macs == [[2, 0, 0, 0, 0, 0x66]]);
        if try_ip("link add link b name b.7 type vlan id 7") {
            ip("link set dev b.7 address 02:00:00:00:00:77 up");
            is_told("the VLAN's MAC", &|said| said.macs.contains(&[2, 0, 0, 0, 0, 0x77]));
            let interfaces = thread.handle().ask(|control| control.interfaces()).unwrap();
            let names: Vec<_> = interfaces[1].interfaces.iter().map(|interface| &*interface.name).collect();
            assert_eq!(names, ["b", "b.7"]);
            ip("link del dev b.7");
        } else {
            eprintln!("skipped: this kernel has no VLANs");
        }
        ip("link add name br type bridge");
        ip("link set dev b master br");
        is_told("part of a bridge", &|said| !said.active);
        drop(thread);
        assert!(!told.0.lock().unwrap().active, "a control thread that ends must leave everything to Linux");
    });
}

/// A restart of workers removes all ports and adds them again. Filters must be effective all the time.
#[test]
fn ports_of_the_kernel_path_are_filtered_while_ports_change() {
    inside("ports_of_the_kernel_path_are_filtered_while_ports_change", || {
        // The other end is a separate host, in the namespace of a process.
        let far = Command::new("unshare").args(["--net", "sleep", "60"]).spawn().unwrap();
        let far = Far(far);
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        until("a namespace for the far end", || {
            std::fs::read_link(format!("/proc/{}/ns/net", far.0.id())).is_ok_and(|there| there != own)
        });
        ip(&format!("link set dev a2 netns {}", far.0.id()));
        far.run("ip addr add 192.0.2.2/24 dev a2");
        far.run("ip link set dev a2 up");
        far.run("ip route add default via 192.0.2.1");
        let mut kernel = Kernel::load(Duration::from_secs(60)).unwrap();
        let ifindex = kernel.attach("a", AttachChoice::Xdp).unwrap().ifindex;
        let text = "[[port]]\ndevice = 'a'\nreverse_path = 'strict'\n\
                    [[filter.rule]]\nname = 'all'\naction = 'drop'\n";
        let config = Config::parse(std::path::Path::new("test.toml"), text).unwrap();
        let ports = move || {
            let (name, steering) = ("a".into(), Box::new(Told::default()));
            vec![ControlPort { name, ifindex: Some(ifindex), steering, in_kernel: true }]
        };
        let thread = ControlThread::start(&config, 7, &Readers::new(), ports(), Some(kernel)).unwrap();
        let control = thread.handle();
        let is_filtered = |when: &str| {
            let count = || control.ask(|control| control.filters()).unwrap().filters[0].packets;
            let before = count();
            until(when, || {
                far.run("ping -c 1 -W 1 198.51.100.9");
                count() > before
            });
        };
        control.ask(|control| control.set_active(true)).unwrap();
        is_filtered("a drop");
        control.ask(|control| control.set_active(false)).unwrap();
        is_filtered("a drop with nothing forwarded");
        control.try_ask(Control::release_worker_ports).unwrap();
        is_filtered("a drop while workers are started again");
        control.try_ask(move |control| control.set_ports(ports(), &config)).unwrap();
        is_filtered("a drop with new ports");
        control.ask(|control| control.set_active(true)).unwrap();
        is_filtered("a drop at last");
    });
}

/// A process with its own network namespace.
struct Far(std::process::Child);

impl Far {
    fn run(&self, command: &str) {
        let target = self.0.id().to_string();
        let mut entered = Command::new("nsenter");
        entered.args(["--target", &target, "--net"]).args(command.split(' ')).stdout(Stdio::null());
        // A ping without an answer fails.
        let _status = entered.status().unwrap();
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}
