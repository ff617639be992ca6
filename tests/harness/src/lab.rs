//! Three namespaces in a row with fixed addresses, neighbors and routes.
//!
//! Neighbor `n` of a side has the last byte `n` in all its addresses; the router is neighbor 1, the interface
//! opposite to it is neighbor 2, and the others exist only in tables.

use crate::netns::Namespace;
use crate::packet;
use crate::sys::PacketSocket;
use bm_wire::Mac;
use std::time::Duration;

/// A link of the router, named after its other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// `r0`, to the source.
    Src,
    /// `r1`, to the sink.
    Snk,
    /// `r2`, to the sink by a link of 1300 bytes.
    Low,
}

/// All sides, in the order of the router's interfaces.
pub const SIDES: [Side; 3] = [Side::Src, Side::Snk, Side::Low];
/// MTU of `r2`.
pub const LOW_MTU: usize = 1300;

impl Side {
    /// The router's interface.
    pub fn router(self) -> &'static str {
        ["r0", "r1", "r2"][self as usize]
    }

    /// The interface at the other end.
    pub fn host(self) -> &'static str {
        ["s0", "k0", "k1"][self as usize]
    }

    /// Which of the two namespaces is at the other end.
    fn far<'a>(self, src: &'a str, snk: &'a str) -> &'a str {
        if self == Side::Src { src } else { snk }
    }

    /// MAC of neighbor `n`.
    pub fn mac(self, n: u8) -> Mac {
        Mac([2, 0, 0, 0, self as u8, n])
    }

    /// IPv4 address of neighbor `n`.
    pub fn v4(self, n: u8) -> String {
        format!("{}.{n}", ["192.0.2", "198.51.100", "203.0.113"][self as usize])
    }

    /// IPv6 address of neighbor `n`.
    pub fn v6(self, n: u8) -> String {
        format!("2001:db8:{}::{n:x}", self as u8 + 1)
    }

    /// The frame in which neighbor 2 sends a packet to the router.
    pub fn to_router(self, packet: &[u8]) -> Vec<u8> {
        packet::ip_frame(self.mac(1), self.mac(2), packet)
    }

    /// The frame in which the router sends a packet to neighbor `n`.
    pub fn to_neighbor(self, n: u8, packet: &[u8]) -> Vec<u8> {
        packet::ip_frame(self.mac(n), self.mac(1), packet)
    }
}

/// Routes of every lab. The last one of each family is the reverse path to sources behind `s0`.
const ROUTES: &str = "\
route add 10.0.0.0/8 via 198.51.100.2
route add 10.1.0.0/16 via 198.51.100.3
route add 10.1.1.0/24 via 198.51.100.4
route add 10.1.1.128/25 via 198.51.100.5
route add 10.1.1.200/32 via 198.51.100.6
route add 10.2.0.0/16 via 203.0.113.2
route add 172.16.0.0/16 via 192.0.2.2
route add 2001:db8:a000::/36 via 2001:db8:2::2
route add 2001:db8:a100::/40 via 2001:db8:2::3
route add 2001:db8:a101::/48 via 2001:db8:2::4
route add 2001:db8:a101:1::/64 via 2001:db8:2::5
route add 2001:db8:a101:1::200/128 via 2001:db8:2::6
route add 2001:db8:b000::/36 via 2001:db8:3::2
route add 2001:db8:c000::/36 via 2001:db8:1::2
";

/// Settings of the router that make runs quiet and reproducible.
const ROUTER_SETTINGS: [(&str, &str); 18] = [
    ("net.ipv4.ip_forward", "1"),
    ("net.ipv6.conf.all.forwarding", "1"),
    ("net.ipv6.conf.default.forwarding", "1"),
    ("net.ipv6.conf.all.accept_dad", "0"),
    ("net.ipv6.conf.default.accept_dad", "0"),
    ("net.ipv6.conf.default.router_solicitations", "0"),
    ("net.ipv6.conf.default.accept_ra", "0"),
    // Every error is sent; the tests of the rate limit switch it on again. The mask is used, since a limit of 0 would
    // also empty the budget that Linux keeps per source for unreachable routes: five, then one per second. That one
    // is not a setting of a namespace, so each case about it uses its own source.
    ("net.ipv4.icmp_ratemask", "0"),
    ("net.ipv4.icmp_ratelimit", "0"),
    ("net.ipv4.icmp_msgs_per_sec", "1000000"),
    ("net.ipv4.icmp_msgs_burst", "1000000"),
    ("net.ipv6.icmp.ratelimit", "0"),
    ("net.ipv4.conf.all.rp_filter", "0"),
    ("net.ipv4.conf.default.rp_filter", "0"),
    ("net.ipv4.conf.all.accept_source_route", "0"),
    ("net.ipv4.conf.all.send_redirects", "0"),
    ("net.ipv4.conf.default.send_redirects", "0"),
    ("net.ipv4.ip_default_ttl", "64"),
];

/// What the ends do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// No end answers: frames are created and captured here, and the router's neighbors 2 to 9 are permanent.
    Silent,
    /// No end answers, and the router has no neighbors: a test that answers for them brings its own code.
    Unknown,
    /// Linux hosts with addresses and a default route, for real programs.
    Hosts,
}

/// The namespaces and a raw socket at each of the three ends.
pub struct Lab {
    /// Where traffic comes from.
    pub src: Namespace,
    /// Where the router is.
    pub rtr: Namespace,
    /// Where traffic goes to.
    pub snk: Namespace,
    sockets: [PacketSocket; 3],
}

impl Lab {
    /// Switches generic receive offload on at the far end of a link.
    pub fn receive_offload(&self, side: Side) {
        self.host(side).run(&format!("ethtool -K {} gro on", side.host()));
    }

    /// Builds what the picture in `lib.rs` shows. `test` becomes part of the namespaces' names.
    pub fn new(test: &str, ends: Ends) -> Self {
        Self::with_queues(test, ends, 0)
    }

    /// The same with this many queues on every interface, in each direction; 0 for the kernel's default.
    pub fn with_queues(test: &str, ends: Ends, queues: u32) -> Self {
        let [src, rtr, snk] = ["src", "rtr", "snk"].map(|role| Namespace::new(test, role));
        for host in [&src, &snk] {
            host.set(&host_settings(ends));
        }
        rtr.set(&ROUTER_SETTINGS);
        rtr.ip(&wires(src.name(), snk.name(), queues));
        rtr.ip(&router_lines(ends));
        src.ip(&host_lines(&[Side::Src], ends));
        snk.ip(&host_lines(&[Side::Snk, Side::Low], ends));
        let [s0, k0, k1] = [(&src, "s0"), (&snk, "k0"), (&snk, "k1")];
        let sockets = [s0, k0, k1].map(|(namespace, name)| namespace.packet_socket(name));
        let lab = Self { src, rtr, snk, sockets };
        lab.set_offloads(ends == Ends::Hosts, false);
        lab
    }

    /// The namespace at the far end of a side.
    pub fn host(&self, side: Side) -> &Namespace {
        if side == Side::Src { &self.src } else { &self.snk }
    }

    /// The raw socket at the far end of a side.
    pub fn socket(&self, side: Side) -> &PacketSocket {
        &self.sockets[side as usize]
    }

    /// All raw sockets, in the order of [`SIDES`].
    pub fn sockets(&self) -> [&PacketSocket; 3] {
        self.sockets.each_ref()
    }

    /// Sends a frame towards the router.
    pub fn send(&self, side: Side, frame: &[u8]) {
        let sent = self.socket(side).send(frame);
        sent.unwrap_or_else(|error| panic!("sending {} bytes at {side:?}: {error}", frame.len()));
    }

    /// Checks that a packet from the source to this address leaves to this neighbor of the sink.
    #[track_caller]
    pub fn leaves_by(&self, to: &str, mac: u8) {
        let packet = packet::Ip4::udp("192.0.2.2", to, 20).bytes();
        let expected = Side::Snk.to_neighbor(mac, &packet::routed(&packet));
        self.drain();
        self.send(Side::Src, &Side::Src.to_router(&packet));
        let found = self.await_frame(Side::Snk, Duration::from_secs(2), |frame| frame == expected);
        assert!(found.is_some(), "{to} does not leave by neighbor {mac:x}");
    }

    /// What [`Lab::new`] does, for a shell script: the role of a namespace, a command there, and the lines that it reads.
    /// The namespaces' names are in the variables `src`, `rtr` and `snk`.
    pub fn script(ends: Ends) -> Vec<(String, &'static str, String)> {
        let settings = |list: &[(&str, &str)]| {
            list.iter().map(|(name, value)| format!("{name}={value}\n")).collect::<String>()
        };
        let hosts = settings(&host_settings(ends));
        let off = |name: &str| format!("ethtool -K {name} tx off tso off gso off gro on\n");
        let all = |role: &str| {
            SIDES.iter().filter(|side| side.far("src", "snk") == role).copied().collect::<Vec<_>>()
        };
        let mut script = vec![("rtr".into(), "sysctl -qp -", settings(&ROUTER_SETTINGS))];
        script.extend(["src", "snk"].map(|role| (role.into(), "sysctl -qp -", hosts.clone())));
        script.push(("rtr".into(), "ip -batch -", wires("$src", "$snk", 0)));
        for role in ["src", "snk"] {
            let offloads = all(role).iter().map(|side| off(side.host())).collect();
            script.push((role.into(), "sh", offloads));
        }
        script.push(("rtr".into(), "sh", SIDES.iter().map(|side| off(side.router())).collect()));
        script.push(("rtr".into(), "ip -batch -", router_lines(ends)));
        script.extend(["src", "snk"].map(|role| (role.into(), "ip -batch -", host_lines(&all(role), ends))));
        script
    }

    /// The line of `ip` in the router's namespace that makes a link to the namespace `far`.
    pub fn wire_line(side: Side, far: &str) -> String {
        wire(side, far, side.mac(1), "")
    }

    /// The lines of `ip` that bring up a link of the router, with its addresses, neighbors and routes.
    pub fn port_lines(side: Side, ends: Ends) -> String {
        side_lines(side, ends) + &routes_by(side)
    }

    /// Deletes a link of the router with its other end, and so everything that depends on it in Linux's tables.
    pub fn delete(&self, side: Side) {
        self.rtr.ip(&format!("link del {}", side.router()));
    }

    /// Creates a deleted link again, as with [`Ends::Silent`], with another MAC address at the router's end: its last
    /// byte. Sockets on the previous one are useless.
    pub fn make_again(&self, side: Side, last: u8) {
        self.make_again_down(side, last);
        self.bring_up(side);
    }

    /// The first half of [`Lab::make_again`]: the other end is up, the router's end is not.
    pub fn make_again_down(&self, side: Side, last: u8) {
        let far = side.far(self.src.name(), self.snk.name());
        self.rtr.ip(&wire(side, far, side.mac(last), ""));
        self.host(side).ip(&host_lines(&[side], Ends::Silent));
    }

    /// The second half: the router's end is up, with its addresses, neighbors and routes.
    pub fn bring_up(&self, side: Side) {
        self.rtr.ip(&(side_lines(side, Ends::Silent) + &routes_by(side)));
        for (namespace, name) in [(self.host(side), side.host()), (&self.rtr, side.router())] {
            namespace.run(&format!("ethtool -K {name} tx off tso off gso off"));
        }
        self.receive_offload(side);
    }

    /// Makes addresses, neighbors and routes of the router again if they were lost, as with [`Ends::Silent`], and those
    /// of these lines of `ip`. What is there stays.
    pub fn complete(&self, lines: &str) {
        self.rtr.ip(&(router_lines(Ends::Silent) + lines).replace(" add ", " replace "));
    }

    /// Switches checksum and segmentation offload of the hosts' and the router's ends.
    pub fn set_offloads(&self, hosts: bool, router: bool) {
        let words = |on: bool| if on { "tx on tso on gso on" } else { "tx off tso off gso off" };
        for side in SIDES {
            self.host(side).run(&format!("ethtool -K {} {}", side.host(), words(hosts)));
            self.rtr.run(&format!("ethtool -K {} {}", side.router(), words(router)));
        }
    }
}

/// Settings of the hosts.
fn host_settings(ends: Ends) -> [(&'static str, &'static str); 6] {
    let off = if ends == Ends::Hosts { "0" } else { "1" };
    [
        ("net.ipv6.conf.default.disable_ipv6", off),
        ("net.ipv4.conf.all.rp_filter", "0"),
        ("net.ipv4.conf.default.rp_filter", "0"),
        ("net.ipv6.conf.all.accept_dad", "0"),
        ("net.ipv6.conf.default.accept_dad", "0"),
        ("net.ipv6.conf.default.accept_ra", "0"),
    ]
}

fn wires(src: &str, snk: &str, queues: u32) -> String {
    let queues = match queues {
        0 => String::new(),
        count => format!(" numtxqueues {count} numrxqueues {count}"),
    };
    SIDES.map(|side| wire(side, side.far(src, snk), side.mac(1), &queues)).concat()
}

/// A link of the router to the namespace `far`.
fn wire(side: Side, far: &str, mac: Mac, queues: &str) -> String {
    let mtu = if side == Side::Low { LOW_MTU } else { 1500 };
    let (router, host) = (side.router(), side.host());
    format!(
        "link add {router} mtu {mtu} address {mac}{queues} type veth peer name {host} mtu {mtu} address {} netns {far}{queues}\n",
        side.mac(2),
    )
}

/// The routes of a lab that lead out of a link, as lines of `ip`.
fn routes_by(side: Side) -> String {
    let is_by = |line: &&str| {
        let via = line.rsplit(' ').next().unwrap_or_default();
        (2..10).any(|n| via == side.v4(n) || via == side.v6(n))
    };
    ROUTES.lines().filter(is_by).map(|line| format!("{line}\n")).collect()
}

fn router_lines(ends: Ends) -> String {
    let sides = SIDES.map(|side| side_lines(side, ends)).concat();
    format!("link set lo up\n{sides}{ROUTES}")
}

/// A link of the router, up and with addresses and neighbors.
fn side_lines(side: Side, ends: Ends) -> String {
    let (name, v4, v6) = (side.router(), side.v4(1), side.v6(1));
    let mut lines = format!("link set {name} addrgenmode none\nlink set {name} up\n");
    lines += &format!("addr add {v4}/24 brd + dev {name}\naddr add {v6}/64 dev {name} nodad\n");
    lines += &format!("addr add fe80::1/64 dev {name} scope link nodad\n");
    for n in (2..10).filter(|_| ends == Ends::Silent) {
        let mac = side.mac(n);
        for address in [side.v4(n), side.v6(n), format!("fe80::{n}")] {
            lines += &format!("neigh replace {address} lladdr {mac} dev {name} nud permanent\n");
        }
    }
    lines
}

fn host_lines(sides: &[Side], ends: Ends) -> String {
    let mut lines = String::from("link set lo up\n");
    for &side in sides {
        let (name, v4, v6) = (side.host(), side.v4(2), side.v6(2));
        lines += &format!("link set {name} up\n");
        if ends == Ends::Hosts {
            lines += &format!("addr add {v4}/24 brd + dev {name}\naddr add {v6}/64 dev {name} nodad\n");
        } else {
            lines += &format!("link set {name} arp off\n");
        }
    }
    if ends == Ends::Hosts {
        let side = sides[0];
        lines += &format!("route add default via {}\nroute add default via {}\n", side.v4(1), side.v6(1));
    }
    lines
}

/// Packets that Linux has forwarded in the router. Quick, since it starts no process.
pub fn by_linux(lab: &Lab) -> u64 {
    lab.rtr.within(|| {
        let read =
            |file: &str| std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).expect("counters");
        let ipv4 = read("snmp");
        let mut lines = ipv4.lines().filter(|line| line.starts_with("Ip:")).map(str::split_whitespace);
        let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
        let ipv4 = names.zip(values).find(|(name, _)| *name == "ForwDatagrams").map(|(_, value)| value);
        let ipv6 = read("snmp6");
        let ipv6 = ipv6.lines().find_map(|line| line.strip_prefix("Ip6OutForwDatagrams"));
        let count =
            |text: Option<&str>| text.and_then(|text| text.trim().parse::<u64>().ok()).expect("a count");
        count(ipv4) + count(ipv6)
    })
}
