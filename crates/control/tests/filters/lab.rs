//! The same tables and filters for the program of the kernel path and for workers.

use crate::{LOCAL, LOCAL6, MAC, RULES, run};
use bm_fastpath::{AttachChoice, Configuration, Filters, Kernel, PortVlan, Verdict};
use bm_fib::memory::Part;
use bm_fib::next_hop::{Action as Hop, Gateway, NextHopWriter};
use bm_fib::published::Readers;
use bm_fib::sets::SetWriter;
use bm_fib::{BuildFib, Change, Chunk17, NextHop, Range6};
use bm_filter::UNMATCHED;
use bm_forward::filter::{FilterSet, RuleCounts, SourceRates};
use bm_forward::tables::{Feasible, Interface, PortInterfaces, Settings, Tables, Vrf};
use bm_wire::{ReversePath, Vlan};
use std::sync::Arc;
use std::time::Duration;

/// One set of tables that both paths read.
pub struct Lab {
    pub kernel: Kernel,
    ifindex: u32,
    configuration: Configuration,
    pub counts: Arc<RuleCounts>,
    rates: Arc<SourceRates>,
    pub readers: Readers,
    hops: NextHopWriter,
    ipv4: Chunk17,
    ipv6: Range6,
    ways4: (Chunk17, SetWriter),
    ways6: (Range6, SetWriter),
}

/// Tables of their own, in the namespace of this process.
pub fn lab() -> Lab {
    run("link add name in address 02:00:00:00:00:01 type veth peer name far");
    run("link set dev in up");
    run("link set dev far up");
    let mut kernel = Kernel::load(Duration::from_secs(60)).unwrap();
    let ifindex = kernel.attach("in", AttachChoice::Xdp).unwrap().ifindex;
    let readers = Readers::new();
    let source = kernel.source(Part::NextHops).unwrap();
    let mut hops = NextHopWriter::with_room_in(1 << 16, 18, &readers, &source).unwrap();
    let mut chunk = |part| {
        let source = kernel.source(part).unwrap();
        (Chunk17::build_in(&mut [].into_iter(), &readers, &source).unwrap(), source)
    };
    let (mut ipv4, _) = chunk(Part::Ipv4);
    let (mut ways4, source4) = chunk(Part::Sources4);
    let mut range = |part| {
        let source = kernel.source(part).unwrap();
        (Range6::build_in(&mut [].into_iter(), &readers, &source).unwrap(), source)
    };
    let (mut ipv6, _) = range(Part::Ipv6);
    let (mut ways6, source6) = range(Part::Sources6);
    let mut sets4 = SetWriter::with_width_in(bm_fastpath::INTERFACES, &readers, &source4).unwrap();
    let mut sets6 = SetWriter::with_width_in(bm_fastpath::INTERFACES, &readers, &source6).unwrap();

    let mut add = |action, interface| hops.add(action, Gateway { address: None, interface }, 0).unwrap();
    let out = |interface| Hop::Forward { mac: [2; 6], interface };
    let [to0, to1, to2] = [0, 1, 2].map(|interface| add(out(interface), u32::from(interface)));
    let (host, resolve, blackhole) = (add(Hop::Host, 0), add(Hop::Resolve, 1), add(Hop::Blackhole, 0));
    let group = hops.add_group(&[(to2, 7), (to1, 1)]).unwrap();
    let local = hops.add_local().unwrap();
    let routes4: [(&str, NextHop); 10] = [
        ("0.0.0.0/0", to2),
        ("192.0.2.0/24", to0),
        ("192.0.2.128/25", to1),
        ("192.0.2.254/32", host),
        ("192.0.3.0/24", group),
        ("198.51.100.0/24", resolve),
        ("203.0.113.0/24", blackhole),
        ("10.0.0.0/8", host),
        ("10.128.0.0/9", local),
        ("127.0.0.0/8", host),
    ];
    let routes4 = routes4.map(|(prefix, hop)| Change::Set(prefix.parse().unwrap(), hop));
    ipv4.apply(&routes4).unwrap();
    let routes6: [(&str, NextHop); 5] = [
        ("2001:db8:1::/48", to0),
        ("2001:db8:1::fe/128", host),
        ("2001:db8:1::8000/113", local),
        ("2001:db8:2::/48", group),
        ("2001:db8:1::ffff/128", resolve),
    ];
    ipv6.apply(&routes6.map(|(prefix, hop)| Change::Set(prefix.parse().unwrap(), hop))).unwrap();
    let sets: [(&str, &[u16]); 4] =
        [("0.0.0.0/0", &[0, 2]), ("192.0.2.0/24", &[]), ("203.0.113.0/24", &[1, 2]), ("10.0.0.0/8", &[0])];
    for (prefix, ways) in sets {
        ways4.apply(&[Change::Set(prefix.parse().unwrap(), sets4.take(ways))]).unwrap();
    }
    ways6.apply(&[Change::Set("2001:db8:9::/48".parse().unwrap(), sets6.take(&[0, 1]))]).unwrap();

    let interface = |index, ifindex, tag: Option<PortVlan>| bm_fastpath::Interface {
        index,
        ifindex,
        vlan: tag,
        mac: MAC,
        mtu: 1500,
        forward: [true; 2],
        sends: true,
        looked_at: true,
        ..bm_fastpath::Interface::default()
    };
    let tag = PortVlan { port: ifindex, vlan: Vlan { protocol: 0x8100, id: 7 } };
    let interfaces = vec![interface(0, ifindex, None), interface(1, 70, Some(tag)), interface(2, 77, None)];
    let (local_ipv4, local_ipv6) = (vec![LOCAL], vec![LOCAL6]);
    let configuration =
        Configuration { interfaces, local_ipv4, local_ipv6, feasible: true, ..Configuration::default() };
    let counts = Arc::new(RuleCounts::new().unwrap());
    let rates = Arc::new(SourceRates::new(7).unwrap());
    let _no_sockets = kernel.take_claims(1536).unwrap();
    let (ways4, ways6) = ((ways4, sets4), (ways6, sets6));
    Lab { kernel, ifindex, configuration, counts, rates, readers, hops, ipv4, ipv6, ways4, ways6 }
}

impl Lab {
    /// Sets these filters in both paths; returns what workers read.
    pub fn filter(&mut self, filters: Filters, checks: [ReversePath; 3], unknown: [bool; 2]) -> Tables {
        let filters = Arc::new(filters);
        self.configuration.filters = Some(Arc::clone(&filters));
        self.configuration.unknown = unknown;
        let interfaces = self.configuration.interfaces.iter_mut();
        interfaces.zip(checks).for_each(|(interface, check)| interface.check = check);
        self.kernel.publish(&self.configuration).unwrap();
        for counter in (0..RULES).chain([UNMATCHED]) {
            self.kernel.clear_rule_count(counter).unwrap();
            self.counts.clear(counter);
        }
        let interface = |(index, vlan): (u16, Option<Vlan>)| Interface {
            name: format!("eth{index}"),
            ifindex: u32::from(index) + 1,
            port: index / 2,
            vlan,
            mac: MAC,
            ..Interface::default()
        };
        let tag = Vlan { protocol: 0x8100, id: 7 };
        let ports = vec![
            PortInterfaces { untagged: Some(0), tagged: vec![(tag, 1)] },
            PortInterfaces { untagged: Some(2), tagged: vec![] },
        ];
        let vrf = Vrf { ipv4: self.ipv4.reader(), ipv6: self.ipv6.reader() };
        let interfaces = [(0, None), (1, Some(tag)), (2, None)].map(interface).to_vec();
        let next_hops = Arc::clone(self.hops.table());
        let local = (vec![LOCAL], vec![LOCAL6]);
        let feasible = Feasible {
            ipv4: (self.ways4.0.reader(), Arc::clone(self.ways4.1.table())),
            ipv6: (self.ways6.0.reader(), Arc::clone(self.ways6.1.table())),
        };
        let set = FilterSet {
            filters,
            checks: checks.to_vec(),
            unknown,
            ports: vec![true; 2],
            counts: Arc::clone(&self.counts),
            rates: Some(Arc::clone(&self.rates)),
        };
        Tables::new(vec![vrf], interfaces, ports, next_hops, local, Settings::default())
            .with_feasible(vec![feasible])
            .with_filters(Some(Arc::new(set)))
    }

    /// What the kernel path does with a frame: the reason for dropping it or leaving it to Linux.
    pub fn in_kernel(&mut self, frame: &[u8]) -> Option<&'static str> {
        let named = |lab: &Self| -> Vec<_> { lab.kernel.counters(0).unwrap().named().collect() };
        let before = named(self);
        let (verdict, _) = self.kernel.trial(self.ifindex, frame).unwrap();
        let mut counted = before.iter().zip(named(self)).filter(|(before, after)| **before != *after);
        let name = counted.find(|(_, (name, _))| !name.ends_with("_bytes")).map_or("", |(_, (name, _))| name);
        let dropped = name.strip_prefix("drop_");
        assert_eq!(dropped.is_some(), verdict == Verdict::Drop, "{frame:02x?}");
        dropped.or((name == FIREWALL).then_some(FIREWALL))
    }
}

/// The kernel path's counter of packets that only Linux may handle.
pub const FIREWALL: &str = "linux_firewall";
