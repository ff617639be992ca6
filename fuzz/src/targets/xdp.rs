//! The kernel path's program, run by the kernel itself (BPF_PROG_TEST_RUN), compared with the router of the user path.
//!
//! Checks: a frame that the program redirects equals the one that the router sends, byte by byte; a frame that it
//! drops is dropped by a filter or a blackhole route of the router, too; and a frame that it leaves to Linux is unchanged.

use std::cell::RefCell;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use bm_fastpath::{Configuration, Filters, Interface, Kernel, Verdict};
use bm_fib::memory::Part;
use bm_fib::next_hop::{Action, Gateway, NextHopWriter};
use bm_fib::published::Readers;
use bm_fib::{BuildFib, Change, Chunk17, NextHop, Range6};
use bm_filter::{Action as Say, Flat, Rule, Tree};
use bm_forward::filter::{FilterSet, RuleCounts};
use bm_forward::testing::Lab;

use super::router::framed;
use crate::input::Input;

/// MAC addresses of the interface `in`, of the other one, and of the two neighbors.
const IN: [u8; 6] = [2, 0, 0, 0, 0, 1];
const OUT: [u8; 6] = [2, 0, 0, 0, 0, 2];
const NEIGHBORS: [[u8; 6]; 2] = [[2, 0, 0, 0, 2, 7], [2, 0, 0, 0, 2, 8]];
/// The same for the router in memory.
const LINES: &str = "
    interface in 0 02:00:00:00:00:01 192.0.2.1/24 2001:db8:1::1/64
    interface out 1 02:00:00:00:00:02 198.51.100.1/24 2001:db8:2::1/64
    neighbor 198.51.100.7 out 02:00:00:00:02:07
    neighbor 2001:db8:2::7 out 02:00:00:00:02:07
    neighbor 198.51.100.8 out 02:00:00:00:02:08
    neighbor 2001:db8:2::8 out 02:00:00:00:02:08
    route 8.0.0.0/8 via 198.51.100.7 out
    route 8.8.0.0/16 via 198.51.100.8 out
    route 9.0.0.0/8 blackhole
    route 2001:db8:8::/48 via 2001:db8:2::7 out
    route 2001:db8:8:8::/64 via 2001:db8:2::8 out
    route 2001:db8:9::/48 blackhole";

/// Both paths with the same tables and filters.
struct Both {
    kernel: Kernel,
    ifindex: u32,
    router: Lab,
    /// The tables that the program reads.
    _tables: (NextHopWriter, Chunk17, Range6),
}

/// Combinations of filters, a bit each; each has its own pair of paths, since loading a program takes a while.
const CHOICES: [u8; 3] = [0, 0b0111, 0b1111];

thread_local! {
    static BOTH: RefCell<[Option<Both>; CHOICES.len()]> = const { RefCell::new([const { None }; CHOICES.len()]) };
    static IFINDEX: u32 = interface();
}

/// The reason why this cannot run here, if there is one.
pub fn missing() -> Option<&'static str> {
    // SAFETY: takes nothing and returns a number.
    let root = unsafe { libc::geteuid() } == 0;
    (!root).then_some("needs root for a network namespace and BPF")
}

/// The first byte selects the filters and how the rest becomes a frame.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let chosen = input.byte();
    let frame = match chosen >> 6 {
        0 => input.rest().to_vec(),
        how => framed(0, input.rest(), how & 1 == 1),
    };
    // The kernel accepts no frame without a whole Ethernet header, and a device none that is longer.
    if !(14..=1518).contains(&frame.len()) {
        return;
    }
    let chosen = usize::from(chosen & 0x0f) % CHOICES.len();
    BOTH.with_borrow_mut(|pairs| {
        pairs[chosen].get_or_insert_with(|| Both::new(CHOICES[chosen])).compare(&frame)
    });
}

/// Creates the interface `in`, in a new network namespace of this thread.
fn interface() -> u32 {
    // SAFETY: takes a number; only this thread's network namespace is another one from here on.
    let unshared = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    assert_eq!(unshared, 0, "a network namespace: {}", std::io::Error::last_os_error());
    bm_bpf::testing::own_bpffs().expect("a mount namespace with a bpffs");
    ip("link add name in address 02:00:00:00:00:01 type veth peer name far");
    ip("link set dev in up");
    ip("link set dev far up");
    // SAFETY: the name is a string with its zero.
    unsafe { libc::if_nametoindex(c"in".as_ptr()) }
}

impl Both {
    fn new(chosen: u8) -> Self {
        let ifindex = IFINDEX.with(|ifindex| *ifindex);
        let mut kernel = Kernel::load(Duration::ZERO).expect("the program is loaded");
        let tables = tables(&mut kernel);
        let filters = (chosen != 0).then(|| Arc::new(filters(chosen)));
        let configuration = Configuration { filters: filters.clone(), ..configuration(ifindex) };
        kernel.publish(&configuration).expect("the kernel takes new tables");
        let set = filters.map(|filters| {
            Arc::new(FilterSet {
                filters,
                checks: Vec::new(),
                unknown: [false; 2],
                ports: vec![true; 2],
                counts: Arc::new(RuleCounts::new().expect("memory for counters")),
                rates: None,
            })
        });
        let mut router = Lab::new(LINES);
        let with_filters = router.tables().with_filters(set);
        router.publish(with_filters);
        Self { kernel, ifindex, router, _tables: tables }
    }

    fn compare(&mut self, frame: &[u8]) {
        let (verdict, out) = self.kernel.trial(self.ifindex, frame).expect("the kernel runs the program");
        let before = self.drops();
        let answer = self.router.exchange(0, frame);
        self.router.check();
        // Drops packets that wait for a neighbor, so that rate limits and queues are reset for the next input.
        self.router.pass(4000);
        self.router.answer();
        let dropped = self.drops() - before;
        match verdict {
            Verdict::Redirect => {
                assert_eq!(answer.sent, [(1, out)], "the router sends it differently: {frame:02x?}");
                assert_eq!(dropped, 0, "the router drops {frame:02x?}");
            }
            Verdict::Drop => {
                assert_eq!(dropped, 1, "only the program drops it: {frame:02x?} {answer:02x?}");
            }
            Verdict::Linux => assert_eq!(out, frame, "Linux gets another frame"),
        }
    }

    /// What the router has dropped for the reasons that the program has.
    fn drops(&self) -> u64 {
        use bm_stats::Reason::{Blackhole, Filter, TinyFragment};
        [Filter, TinyFragment, Blackhole].map(|reason| self.router.dropped(reason)).iter().sum()
    }
}

fn ip(arguments: &str) {
    let done = Command::new("ip").args(arguments.split(' ')).status();
    assert!(done.is_ok_and(|status| status.success()), "ip {arguments}");
}

fn configuration(ifindex: u32) -> Configuration {
    let input = Interface {
        index: 0,
        ifindex,
        mac: IN,
        mtu: 1500,
        forward: [true, true],
        sends: true,
        looked_at: true,
        ..Interface::default()
    };
    let output = Interface { index: 1, ifindex: 77, mac: OUT, forward: [false, false], ..input.clone() };
    let address = |text: &str| text.parse().expect("an address");
    Configuration {
        interfaces: vec![input, output],
        local_ipv4: vec![address("192.0.2.1"), address("198.51.100.1")],
        local_ipv6: ["2001:db8:1::1", "2001:db8:2::1"].map(|text| text.parse().expect("an address")).into(),
        ..Configuration::default()
    }
}

/// The routes of [`LINES`], in tables that the program reads.
fn tables(kernel: &mut Kernel) -> (NextHopWriter, Chunk17, Range6) {
    const ROOM: &str = "memory for small tables";
    let readers = Readers::new();
    let mut source = |part| kernel.source(part).expect(ROOM);
    let (of_hops, of_ipv4, of_ipv6) = (source(Part::NextHops), source(Part::Ipv4), source(Part::Ipv6));
    let mut hops = NextHopWriter::with_room_in(1 << 16, 18, &readers, &of_hops).expect(ROOM);
    let mut ipv4 = Chunk17::build_in(&mut [].into_iter(), &readers, &of_ipv4).expect(ROOM);
    let mut ipv6 = Range6::build_in(&mut [].into_iter(), &readers, &of_ipv6).expect(ROOM);
    let mut hop = |action| hops.add(action, Gateway::default(), 0).expect(ROOM);
    let [one, other] = NEIGHBORS.map(|mac| hop(Action::Forward { mac, interface: 1 }));
    let (host, blackhole) = (hop(Action::Host), hop(Action::Blackhole));
    let set4 = |prefix: &str, hop: NextHop| Change::Set(prefix.parse().expect("a prefix"), hop);
    let set6 = |prefix: &str, hop: NextHop| Change::Set(prefix.parse().expect("a prefix"), hop);
    let four = [
        set4("8.0.0.0/8", one),
        set4("8.8.0.0/16", other),
        set4("9.0.0.0/8", blackhole),
        set4("198.51.100.7/32", one),
        set4("192.0.2.1/32", host),
        set4("198.51.100.1/32", host),
    ];
    let six = [
        set6("2001:db8:8::/48", one),
        set6("2001:db8:8:8::/64", other),
        set6("2001:db8:9::/48", blackhole),
        set6("2001:db8:2::7/128", one),
        set6("2001:db8:1::1/128", host),
    ];
    ipv4.apply(&four).expect(ROOM);
    ipv6.apply(&six).expect(ROOM);
    (hops, ipv4, ipv6)
}

fn filters(chosen: u8) -> Filters {
    let drop = Rule { action: Say::Drop, ..Rule::default() };
    let dns = Rule { protocol: Some(17), destination_ports: Some(53..=53), ..drop.clone() };
    let net = Rule { source: "192.0.2.128/25".parse().ok(), ..drop.clone() };
    let six = Rule { destination: "2001:db8:8:8::/64".parse().ok(), protocol: Some(6), ..drop };
    let rules = [dns, net, six].into_iter().zip(0u16..).filter(|(_, at)| chosen >> at & 1 == 1);
    let flat = rules.flat_map(|(rule, at)| Flat::from_rule(&rule, at, None)).collect();
    let tree = Tree::grow(flat).expect("there is room for three");
    Filters { tree, drop_tiny_fragments: chosen & 8 != 0, ..Filters::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The comparison would always succeed if the program left everything to Linux.
    #[test]
    fn plain_packets_are_redirected_and_filtered_ones_dropped() {
        if let Some(missing) = missing() {
            eprintln!("skipped: {missing}");
            return;
        }
        let verdicts = |chosen: u8| {
            let mut both = Both::new(chosen);
            let mut verdict = |name: &str| {
                let file = concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/xdp/");
                let input = std::fs::read(format!("{file}{name}")).expect("it is in the corpus");
                let (verdict, _) =
                    both.kernel.trial(both.ifindex, &framed(0, &input[1..], true)).expect("it runs");
                verdict
            };
            ["udp", "six", "dns", "local"].map(&mut verdict)
        };
        use Verdict::{Drop, Linux, Redirect};
        assert_eq!(verdicts(0), [Redirect, Redirect, Redirect, Linux]);
        assert_eq!(verdicts(0b0111), [Drop, Drop, Drop, Linux]);
    }
}
