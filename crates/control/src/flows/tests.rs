//! Tests the learner with connections that are not the kernel's, and a table in memory of its own.

use std::io;
use std::time::{Duration, Instant};

use bm_api::FlowQuery;
use bm_conntrack::{Connection, Settings, Tuple, Update, status};
use bm_fastpath::{Report, ReportedConnection, ReportedTuple};
use bm_firewall::{Addresses, Match};
use bm_flows::{Key, Table};
use bm_sys::{Commit, Map};

use super::check::ESTABLISHED;
use super::learner::{Learner, STEPS};
use super::linux::{Connections, GracePeriods};
use super::ruleset::{OwnInterface, Ruleset};

const GENERATION: u32 = 7;
const LASTS: u32 = status::SEEN_REPLY | status::ASSURED | status::CONFIRMED;
const SETTINGS: Settings = Settings {
    acct: false,
    max: 1 << 18,
    tcp_timeout_established_s: 432_000,
    udp_timeout_s: 30,
    udp_timeout_stream_s: 120,
    tcp_be_liberal: false,
};

/// Connections of a kernel that does not exist.
struct Fake {
    settings: Option<Settings>,
    updates: Vec<Update>,
    refuses: Option<io::ErrorKind>,
    answer: Option<Connection>,
}

impl Connections for Fake {
    fn update(&mut self, updates: &[Update]) -> Vec<io::Result<()>> {
        self.updates.extend_from_slice(updates);
        updates.iter().map(|_| self.refuses.map_or(Ok(()), |kind| Err(kind.into()))).collect()
    }

    fn get(&mut self, _: &Tuple, _: u16) -> Option<Connection> {
        self.answer
    }

    fn tcp_timeout_s(&mut self, state: u8) -> io::Result<u32> {
        Ok(100 + u32::from(state))
    }

    fn settings(&mut self) -> io::Result<Settings> {
        self.settings.ok_or(io::ErrorKind::NotFound.into())
    }
}

/// Grace periods that pass at once.
struct AtOnce;

impl GracePeriods for AtOnce {
    fn begin(&mut self) {}

    fn has_passed(&self) -> bool {
        true
    }
}

/// A learner, and the time.
struct World {
    learner: Learner<Fake, AtOnce>,
    now: Instant,
}

fn fake() -> Fake {
    Fake { settings: Some(SETTINGS), updates: Vec::new(), refuses: None, answer: Some(established()) }
}

fn ruleset() -> Ruleset {
    let own = |ifindex: u32, name: &str| OwnInterface { ifindex, name: name.into() };
    Ruleset {
        generation: Some(GENERATION),
        families: [true, true],
        interfaces: vec![own(11, "eth0"), own(12, "eth1")],
        ..Ruleset::default()
    }
}

impl World {
    fn new() -> Self {
        Self::with(fake(), ruleset())
    }

    fn with(fake: Fake, ruleset: Ruleset) -> Self {
        let memory = Map::anonymous(bm_flows::bytes(64), Commit::OnDemand).unwrap();
        let learner = Learner::new(fake, AtOnce, Table::new(memory, 64).unwrap());
        let mut world = Self { learner, now: Instant::now() };
        world.learner.accept(ruleset, world.now);
        world.settle();
        world
    }

    /// Waits until packets that had met other rules have left.
    fn settle(&mut self) {
        self.now += Duration::from_millis(60);
        // Once for the grace period, once for what comes behind it.
        (0..2).for_each(|_| self.learner.settle(self.now));
    }

    fn learn(&mut self, reports: &[Report]) -> &mut Self {
        self.learner.learn(reports, self.now);
        self
    }

    /// A second passes; returns what connections were changed.
    fn second(&mut self) -> Vec<Update> {
        for _ in 0..STEPS {
            self.now += Duration::from_secs(1) / STEPS as u32;
            self.learner.refresh(self.now);
        }
        std::mem::take(&mut self.learner.linux.updates)
    }

    fn flows(&self) -> usize {
        self.learner.table.len()
    }

    /// How many reports were not learned for a reason.
    fn refused(&self, why: &str) -> u64 {
        self.learner.counts.not_learned().get(why).copied().unwrap_or_default()
    }

    fn ended(&self, why: &str) -> u64 {
        self.learner.counts.ended().get(why).copied().unwrap_or_default()
    }
}

fn tuple(source: [u8; 4], source_port: u16, destination: [u8; 4], destination_port: u16) -> ReportedTuple {
    ReportedTuple { source: source.into(), destination: destination.into(), source_port, destination_port }
}

/// From 10.0.0.2 behind a masquerade to a server; and the way back.
fn both(protocol: u8) -> [Report; 2] {
    let original = tuple([10, 0, 0, 2], 4000, [192, 0, 2, 1], 443);
    let reply = tuple([192, 0, 2, 1], 443, [198, 51, 100, 1], 62_000);
    let connection = ReportedConnection {
        acknowledged: None,
        original,
        reply,
        zone: 0,
        own_zone: 0,
        is_reply: false,
        mark: 0,
        status: LASTS,
        timeout_s: 100,
        tcp_state: if protocol == 6 { ESTABLISHED } else { 0 },
    };
    let forth = Report {
        protocol,
        connection: Some(connection),
        sent: reply.reversed(),
        input: 11,
        output: 12,
        mark: 0,
        generation: GENERATION,
        jiffies: 1000,
    };
    let back = Report {
        connection: Some(ReportedConnection { is_reply: true, ..connection }),
        sent: original.reversed(),
        input: 12,
        output: 11,
        ..forth
    };
    [forth, back]
}

/// The connection of [`both`].
fn connection(protocol: u8) -> Connection {
    let of = |tuple: ReportedTuple| {
        let ReportedTuple { source, destination, source_port, destination_port } = tuple;
        Tuple { source, destination, source_port, destination_port, protocol }
    };
    let known = both(protocol)[0].connection.unwrap();
    Connection {
        original: of(known.original),
        reply: of(known.reply),
        zones: [0; 2],
        id: 1,
        status: LASTS,
        mark: 0,
        timeout_s: None,
        tcp_state: None,
        liberal: None,
        has_helper: false,
    }
}

fn established() -> Connection {
    Connection { tcp_state: Some(ESTABLISHED), ..connection(6) }
}

/// A report whose connection is changed.
fn changed(change: impl FnOnce(&mut ReportedConnection)) -> Report {
    let [mut report, _] = both(6);
    change(report.connection.as_mut().unwrap());
    report
}

#[test]
fn both_directions_of_a_connection_become_flows() {
    let mut world = World::new();
    world.learn(&both(6));
    assert_eq!((world.flows(), world.learner.known.len()), (2, 1));
    // Linux is told once before packets go by flow, and once when they do.
    let liberal = Update {
        original: connection(6).original,
        zone: 0,
        timeout_s: Some(432_000),
        liberal: true,
        status: None,
    };
    assert_eq!(world.learner.linux.updates, [liberal, Update { timeout_s: None, ..liberal }]);
    let lookup = world.learner.table.lookup();
    let forth = Key {
        source: [10, 0, 0, 2].into(),
        destination: [192, 0, 2, 1].into(),
        source_port: 4000,
        destination_port: 443,
        protocol: 6,
        interface: 0,
    };
    assert!(lookup.find(&forth).is_some());
    assert!(lookup.find(&Key { interface: 1, ..forth }).is_none());
    let query = FlowQuery { filter: Some("src host 198.51.100.1".into()), ..FlowQuery::default() };
    let shown = world.learner.flows(&query, world.now).unwrap();
    assert_eq!((shown.matching, shown.flows.len(), shown.state.flows), (1, 1, 2));
    let flow = &shown.flows[0];
    assert_eq!((&*flow.protocol, &*flow.input, &*flow.output), ("tcp", "eth0", "eth1"));
    assert_eq!(flow.leaves.unwrap().source_port, 62_000);
    // Seen again, nothing changes. Linux may have forgotten the connection meanwhile, so it is told again to keep it.
    world.learn(&both(6));
    assert_eq!((world.flows(), world.learner.counts.learned), (2, 2));
    assert_eq!(world.learner.linux.updates[2..], [liberal]);
}

#[test]
fn what_does_not_last_or_is_not_plain_is_not_learned() {
    let mut world = World::new();
    let of_status = |bits: u32| changed(|of| of.status = bits);
    let [forth, _] = both(6);
    let sent_by = |port| Report { sent: ReportedTuple { source_port: port, ..forth.sent }, ..forth };
    for (report, why) in [
        (of_status(LASTS & !status::ASSURED), "state"),
        (of_status(LASTS & !status::SEEN_REPLY), "state"),
        (of_status(LASTS & !status::CONFIRMED), "state"),
        (of_status(LASTS | status::DYING), "state"),
        (changed(|of| of.tcp_state = 4), "state"),
        (of_status(LASTS | status::SEQ_ADJUST), "helper"),
        (of_status(LASTS | 1 << 13), "helper"),
        (of_status(LASTS | status::FIXED_TIMEOUT), "timeout"),
        (sent_by(1), "translation"),
        (Report { input: 99, ..forth }, "interface"),
        (Report { output: 0, ..forth }, "interface"),
        (Report { generation: 6, ..forth }, "rules"),
        (Report { connection: None, ..forth }, "untracked"),
        (Report { protocol: 132, ..forth }, "state"),
    ] {
        let before = world.refused(why);
        world.learn(&[report]);
        assert_eq!((world.flows(), world.refused(why)), (0, before + 1), "{why}: {report:?}");
    }
    assert!(world.learner.linux.updates.is_empty(), "Linux keeps them as it does");
}

#[test]
fn rules_for_each_packet_keep_flows_from_being_learned() {
    let addresses = Addresses::Ipv4("198.51.100.1/32".parse().ok(), None);
    let each_packet = vec![Match { addresses, ..Match::default() }];
    let mut world = World::with(fake(), Ruleset { each_packet, ..ruleset() });
    // One direction has this source when it leaves.
    world.learn(&both(6));
    assert_eq!((world.flows(), world.refused("each_packet")), (1, 1));
    let one = Ruleset { families: [false, true], ..ruleset() };
    let mut world = World::with(fake(), one);
    world.learn(&both(6));
    assert_eq!((world.flows(), world.refused("rules")), (0, 2));
}

#[test]
fn what_linux_refuses_is_not_learned() {
    for (kind, why) in [
        (io::ErrorKind::NotFound, "gone"),
        (io::ErrorKind::PermissionDenied, "timeout"),
        (io::ErrorKind::InvalidInput, "refused"),
    ] {
        let mut world = World::with(Fake { refuses: Some(kind), ..fake() }, ruleset());
        world.learn(&both(6));
        assert_eq!((world.flows(), world.learner.known.len(), world.refused(why)), (0, 0, 2));
    }
}

/// It was closed before Linux was told to keep it for days.
#[test]
fn a_connection_that_closes_meanwhile_gets_the_timeout_of_its_state() {
    let closes = Connection { tcp_state: Some(7), ..established() };
    let mut world = World::with(Fake { answer: Some(closes), ..fake() }, ruleset());
    world.learn(&both(6));
    assert_eq!((world.flows(), world.refused("state")), (0, 2));
    let timeouts: Vec<_> = world.learner.linux.updates.iter().map(|update| update.timeout_s).collect();
    assert_eq!(timeouts, [Some(432_000), Some(107)]);
    world.learner.linux.answer = None;
    world.learn(&both(6));
    assert_eq!((world.flows(), world.refused("gone")), (0, 2));
}

#[test]
fn flows_that_programs_have_ended_are_forgotten() {
    let mut world = World::new();
    world.learn(&both(6));
    let (index, _) = world.learner.table.iter().next().unwrap();
    world.learner.table.lookup().end(index);
    assert_eq!(world.flows(), 2);
    world.second();
    assert_eq!((world.flows(), world.learner.known.len(), world.ended("closed")), (1, 1, 1));
    world.learn(&both(6));
    assert_eq!((world.flows(), world.learner.known.len()), (2, 1));
}

#[test]
fn a_flow_whose_connection_has_another_mark_is_learned_anew() {
    let mut world = World::new();
    world.learn(&both(6)[..1]);
    world.learn(&[changed(|of| of.mark = 5)]);
    assert_eq!((world.flows(), world.ended("changed"), world.learner.counts.learned), (1, 1, 2));
}

#[test]
fn timeouts_are_those_of_connections_whose_packets_linux_sees() {
    let mut world = World::new();
    world.learn(&both(17)[..1]);
    world.learner.linux.updates.clear();
    let (index, _) = world.learner.table.iter().next().unwrap();
    let mut packets = 0;
    let mut use_flow = |world: &mut World| {
        packets += 1;
        world.learner.known.flow_mut(index).unwrap().packets = u64::MAX - packets;
        world.second()
    };
    // Used all the time: every quarter of two minutes.
    let timeouts: Vec<_> = (0..62).flat_map(|_| use_flow(&mut world)).map(|one| one.timeout_s).collect();
    assert_eq!(timeouts, [Some(120), Some(120)]);
    // No longer used: what is left of it, once.
    use_flow(&mut world);
    let left: Vec<_> = (0..20).flat_map(|_| world.second()).collect();
    assert_eq!(left.len(), 1);
    assert!((118..=119).contains(&left[0].timeout_s.unwrap()), "{left:?}");
    assert!(!left[0].liberal);
    // Linux has none any more.
    world.learner.linux.refuses = Some(io::ErrorKind::NotFound);
    use_flow(&mut world);
    world.second();
    assert_eq!((world.flows(), world.ended("connection")), (0, 1));
}

#[test]
fn timeouts_of_rules_are_kept() {
    let mut world = World::with(fake(), Ruleset { has_timeouts: true, ..ruleset() });
    world.learn(&both(17)[..1]);
    assert_eq!(world.learner.linux.updates[0].timeout_s, Some(100), "as Linux has just set it");
    assert!(!world.learner.linux.updates[0].liberal, "only TCP has windows");
    world.learn(&both(6));
    assert_eq!((world.flows(), world.refused("timeout")), (1, 2));
}

#[test]
fn settings_of_conntrack_keep_flows_from_being_used() {
    let mut world = World::new();
    world.learn(&both(6));
    world.learner.linux.settings = Some(Settings { acct: true, ..SETTINGS });
    world.learner.read_settings(world.now);
    world.settle();
    assert_eq!((world.flows(), world.learner.table.families()), (0, [false; 2]));
    assert!(world.learner.state().why_not.is_some());
    world.learn(&both(6));
    assert_eq!(world.flows(), 0);
    world.learner.linux.settings = Some(SETTINGS);
    world.learner.read_settings(world.now);
    world.settle();
    world.learn(&both(6));
    assert_eq!((world.flows(), world.learner.state().why_not), (2, None));
}

#[test]
fn packets_that_are_not_tracked_are_flows_until_none_come() {
    let [report, _] = both(17);
    let report = Report { connection: None, ..report };
    let ruleset = Ruleset { untracked: true, ..ruleset() };
    // Without connection tracking at all.
    let mut world = World::with(Fake { settings: None, answer: None, ..fake() }, ruleset);
    world.learn(&[report]);
    assert_eq!((world.flows(), world.learner.linux.updates.len()), (1, 0));
    (0..59).for_each(|_| drop(world.second()));
    assert_eq!(world.flows(), 1);
    (0..3).for_each(|_| drop(world.second()));
    assert_eq!((world.flows(), world.ended("idle"), world.learner.known.len()), (0, 1, 0));
    // A packet that only does not fit its connection.
    world.learner.linux.answer = Some(connection(17));
    world.learn(&[report]);
    assert_eq!(world.flows(), 0);
}

#[test]
fn flows_end_with_rules_and_routes() {
    let mut world = World::new();
    world.learn(&both(6));
    world.learner.accept(ruleset(), world.now);
    world.learner.routes_changed(world.now);
    assert_eq!(world.flows(), 2, "nothing has changed that matters");
    let next = Ruleset { generation: Some(GENERATION + 1), looks_up_routes: true, ..ruleset() };
    world.learner.accept(next, world.now);
    assert_eq!((world.flows(), world.ended("rules")), (0, 2));
    world.learn(&both(6));
    world.settle();
    assert_eq!(world.learner.table.generation(), GENERATION + 1);
    world.learn(&both(6));
    assert_eq!(world.flows(), 0, "packets that had met the rules before");
    world.learn(&both(6).map(|report| Report { generation: GENERATION + 1, ..report }));
    assert_eq!(world.flows(), 2);
    world.learner.routes_changed(world.now);
    assert_eq!((world.flows(), world.ended("rules")), (0, 4));
    let unknown = Ruleset { generation: None, ..ruleset() };
    world.learner.accept(unknown, world.now);
    world.settle();
    assert_eq!(world.learner.table.families(), [false; 2]);
}

#[test]
fn connections_that_helpers_may_read_are_asked_for() {
    let expected = || changed(|of| of.status |= 1);
    let mut world = World::with(Fake { answer: None, ..fake() }, ruleset());
    world.learn(&[expected()]);
    assert_eq!((world.flows(), world.refused("helper")), (0, 1), "it is gone");
    world.learner.linux.answer = Some(Connection { has_helper: true, ..connection(6) });
    world.learn(&[expected()]);
    assert_eq!((world.flows(), world.refused("helper")), (0, 2));
    world.learner.linux.answer = Some(connection(6));
    world.learn(&[expected()]);
    assert_eq!(world.flows(), 1);
}

#[test]
fn a_full_table_evicts_and_forgets() {
    let mut world = World::new();
    for port in 0..200u16 {
        let mut reports = both(17);
        for report in &mut reports {
            let of = report.connection.as_mut().unwrap();
            of.original.source_port = 1000 + port;
            of.reply.destination_port = 1000 + port;
            report.sent = if of.is_reply { of.original.reversed() } else { of.reply.reversed() };
            report.jiffies += 10_000 * u32::from(port);
        }
        world.learn(&reports);
        world.settle();
    }
    assert!(world.flows() <= 64);
    let state = world.learner.state();
    assert_eq!(state.flows, state.learned - world.ended("room"));
    assert!(world.learner.known.len() <= world.flows());
}
