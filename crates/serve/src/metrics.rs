//! Metrics for Prometheus from the counters in shared memory.
//!
//! A scrape reads every counter once and assigns it to a metric family by its name; nothing is kept between scrapes,
//! so the packet path knows nothing about metrics. The names of counters are paths:
//!
//! ```text
//! port/eth0/0/receive/received        an account's entry   -> brickmoon_frames_total{app, entry}
//! port/eth0/0/receive/received_bytes  the same in bytes    -> brickmoon_bytes_total{app, entry}
//! router/0/eth0/drop/no_route         an account's drop    -> brickmoon_dropped_frames_total{app, reason}
//! port/eth0/0/device/receive_no_frame a device's own count -> brickmoon_device_frames_total{port, queue, kind}
//! link/0/eth0.output -> router.eth0/.. what went through   -> brickmoon_link_*_total{worker, link}
//! kernel/eth0/sent                    the account of a port in the kernel, as any other
//! linux/eth0/left/mtu              left to Linux, by cause   -> brickmoon_left_to_linux_frames_total{port, cause}
//! linux/eth0/dropped/no_route      dropped by Linux          -> brickmoon_linux_dropped_frames_total{port, reason}
//! filter/no-telnet/packets                                 -> brickmoon_filter_packets_total{rule}
//! time/0/router/ns                                         -> brickmoon_worker_app_ns_total{worker,app}
//! worker/0/breaths                                         -> brickmoon_worker_*_total{worker}
//! slow/resolve_asked                  the slow path's own  -> brickmoon_slow_*_total
//! hook/acl/0/count/denied             a hook's own         -> brickmoon_hook_total{hook, worker, counter}
//! hook/acl/0/jit/heap_bytes           its Lua state        -> brickmoon_hook_lua{hook, worker, kind}
//! lines/read                          anything else        -> brickmoon_counter_total{group, counter}
//! ```
//!
//! Links to other nodes of a cluster are no counters in shared memory: they come from the reply to `show cluster`, as
//! `brickmoon_fabric_*{link, peer}`.
//!
//! Each frame is in exactly one account: frames that hooks count as dropped are not added to the dropped frames,
//! because the account of their app contains them.

mod help;

pub use help::FAMILIES;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

use bm_api::{Collectors, FabricLink, FlowsState, Status};
use bm_stats::{Entry, Scope};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

type Labels = Vec<(&'static str, String)>;
type Counters = Family<Labels, Counter>;
type Gauges = Family<Labels, Gauge<u64, AtomicU64>>;

/// The text of a scrape; `fabric` are the links to other nodes of a cluster.
pub fn render(
    status: &Status,
    counters: &[(String, u64)],
    fabric: &[FabricLink],
    collectors: &Collectors,
) -> String {
    let mut registry = Registry::with_prefix("brickmoon");
    let frames = counter(&mut registry, "frames", "Frames by app and by what happened to them");
    let bytes = counter(&mut registry, "bytes", "Bytes received from and sent to the wire");
    let drops = counter(&mut registry, "dropped_frames", "Dropped frames, by app and reason");
    let held = gauge(&mut registry, "held_frames", "Frames currently held by an app");
    let device = counter(&mut registry, "device_frames", "Frames lost in a device, by its own count");
    let linux = of_linux(&mut registry);
    let filters = counter(&mut registry, "filter_packets", "Packets by the filter rule that they matched");
    let hooks = counter(&mut registry, "hook", "Counters of Lua hooks, by the name that the hook gives them");
    let lua = gauge(&mut registry, "hook_lua", "LuaJIT statistics of the Lua state of a hook");
    let rest = counter(&mut registry, "counter", "Counters of Lua programs and other groups");
    let mut others: BTreeMap<String, Counters> = BTreeMap::new();
    for (name, value) in counters {
        let (scope, name) = Scope::parse(name);
        if let Some((family, labels)) = of_thread(&scope) {
            add(other(&mut others, &mut registry, &format!("{family}_{name}")), labels, *value);
            continue;
        }
        let app = || ("app", scope.to_string());
        match scope {
            Scope::PortDevice { port, queue } => {
                let labels = vec![("port", port.into()), ("queue", queue.to_string()), ("kind", name.into())];
                add(&device, labels, *value);
            }
            Scope::Hook { hook, worker } => {
                let worker = worker.map_or("slow".into(), |worker| worker.to_string());
                let labels = vec![("hook", hook.into()), ("worker", worker)];
                add_hook(&hooks, &lua, labels, name, *value);
            }
            Scope::Linux { port } => add_linux(&linux, port, name, *value),
            Scope::Filter { rule } => add(&filters, vec![("rule", rule.into())], *value),
            _ => match (name.strip_prefix("drop/"), Entry::named(name)) {
                // Most reasons never happen: a series appears with its first frame.
                (Some(_), _) if *value == 0 => {}
                (Some(reason), _) => add(&drops, vec![app(), ("reason", reason.into())], *value),
                (None, Some(Entry::Held)) => set(&held, vec![app()], *value),
                (None, Some(Entry::ReceivedBytes)) => {
                    add(&bytes, vec![app(), ("entry", "received".into())], *value);
                }
                (None, Some(Entry::SentBytes)) => {
                    add(&bytes, vec![app(), ("entry", "sent".into())], *value);
                }
                (None, Some(_)) => add(&frames, vec![app(), ("entry", name.into())], *value),
                (None, None) => {
                    let labels = vec![("group", scope.to_string()), ("counter", name.into())];
                    add(&rest, labels, *value);
                }
            },
        }
    }
    export(&mut registry, collectors);
    daemon(&mut registry, status, fabric);
    let mut text = String::new();
    // Writing into a String cannot fail.
    let _written = encode(&mut text, &registry);
    text
}

/// What the names of families begin with whose counters have a name each: those of workers and the slow path.
fn of_thread(scope: &Scope<'_>) -> Option<(&'static str, Labels)> {
    let of = |worker: &usize| ("worker", worker.to_string());
    match scope {
        Scope::Link { worker, link } => Some(("link", vec![of(worker), ("link", (*link).into())])),
        Scope::Worker { worker } => Some(("worker", vec![of(worker)])),
        Scope::Time { worker, app } => Some(("worker_app", vec![of(worker), ("app", (*app).into())])),
        Scope::Slow => Some(("slow", Vec::new())),
        _ => None,
    }
}

/// A counter of a hook, or a statistic of its Lua state.
fn add_hook(hooks: &Counters, lua: &Gauges, mut labels: Labels, name: &str, value: u64) {
    if let Some(kind) = name.strip_prefix("jit/") {
        labels.push(("kind", kind.into()));
        set(lua, labels, value);
    } else {
        labels.push(("counter", name.into()));
        add(hooks, labels, value);
    }
}

/// What Linux was left, and what it dropped.
fn of_linux(registry: &mut Registry) -> [Counters; 2] {
    let left = "Frames that the kernel path left to Linux, by cause";
    let dropped = "Frames of ports that Linux dropped, by reason";
    [counter(registry, "left_to_linux_frames", left), counter(registry, "linux_dropped_frames", dropped)]
}

fn add_linux([left, dropped]: &[Counters; 2], port: &str, name: &str, value: u64) {
    let (family, label, why) = match name.split_once('/') {
        Some(("left", cause)) => (left, "cause", cause),
        Some(("dropped", reason)) => (dropped, "reason", reason),
        _ => return,
    };
    add(family, vec![("port", port.into()), (label, why.into())], value);
}

/// What collectors of sFlow and IPFIX have been told.
fn export(registry: &mut Registry, reply: &Collectors) {
    if reply.collectors.is_empty() {
        return;
    }
    let taken = counter(registry, "samples", "Packets that were sampled for sFlow and IPFIX");
    add(&taken, Vec::new(), reply.samples);
    let lost = counter(registry, "samples_lost", "Samples lost because the daemon did not read them in time");
    add(&lost, Vec::new(), reply.lost);
    let samples = counter(registry, "export_samples", "Samples put into datagrams for a collector");
    let unfit = counter(registry, "export_unfit_samples", "Samples that the format cannot describe");
    let datagrams =
        counter(registry, "export_datagrams", "Datagrams for a collector, by whether they could be sent");
    let refused =
        counter(registry, "export_refused", "Datagrams that were answered with ICMP port unreachable");
    for one in &reply.collectors {
        let labels = vec![("collector", one.address.clone()), ("format", one.format.clone())];
        add(&samples, labels.clone(), one.samples);
        add(&unfit, labels.clone(), one.unfit);
        add(&refused, labels.clone(), one.refused);
        for (result, count) in [("sent", one.sent), ("full", one.full), ("failed", one.failed)] {
            let with = labels.iter().cloned().chain([("result", result.into())]);
            add(&datagrams, with.collect(), count);
        }
    }
}

fn fabric(registry: &mut Registry, links: &[FabricLink]) {
    if links.is_empty() {
        return;
    }
    let frames =
        counter(registry, "fabric_frames", "Frames received on a fabric link, by what happened to them");
    let drops =
        counter(registry, "fabric_dropped_frames", "Frames received on a fabric link and dropped, by reason");
    let bytes = counter(
        registry,
        "fabric_bytes",
        "Bytes received on a fabric link, and bytes sent over it by workers",
    );
    let sent = counter(registry, "fabric_sent_frames", "Frames that workers sent over a fabric link");
    let lost =
        counter(registry, "fabric_lost_frames", "Frames that the other node sent and that did not arrive");
    let failures = counter(registry, "fabric_failures", "Times that a fabric link was found down");
    let up = gauge(registry, "fabric_up", "1 if frames sent over a fabric link reach the other node, else 0");
    let round_trip = gauge(registry, "fabric_round_trip_microseconds", "Round-trip time of the last probe");
    let timeout = gauge(
        registry,
        "fabric_timeout_microseconds",
        "Time without a reply to a probe after which a fabric link counts as down",
    );
    for link in links {
        let labels = vec![("link", link.device.clone()), ("peer", link.peer.clone())];
        let with = |label, value: &str| labels.iter().cloned().chain([(label, value.into())]).collect();
        for (name, count) in &link.counters {
            // These count some of the frames of another kind again.
            if !matches!(name.as_str(), "sampled" | "reordered") {
                add(&frames, with("kind", name), *count);
            }
        }
        for (reason, count) in &link.account.drops {
            add(&drops, with("reason", reason), *count);
        }
        add(&bytes, with("entry", "received"), link.account.received_bytes);
        add(&bytes, with("entry", "sent"), link.sent_bytes);
        add(&sent, labels.clone(), link.sent);
        add(&failures, labels.clone(), link.failures);
        add(&lost, labels.clone(), link.from_peer.map_or(0, |from_peer| from_peer.lost));
        set(&up, labels.clone(), u64::from(matches!(link.state.as_str(), "up" | "no-daemon")));
        set(&round_trip, labels.clone(), link.round_trip_us.unwrap_or(0));
        set(&timeout, labels.clone(), link.timeout_us);
    }
}

/// The table of flows; nothing if there is none.
fn flows(registry: &mut Registry, state: &FlowsState) {
    if state.max == 0 {
        return;
    }
    set(&gauge(registry, "flows", "Flows that brickmoon forwards as Linux decided"), Vec::new(), state.flows);
    set(&gauge(registry, "flows_max", "How many flows the table can hold"), Vec::new(), state.max);
    add(&counter(registry, "flows_learned", "Flows learned from Linux"), Vec::new(), state.learned);
    add(&counter(registry, "flows_full", "Flows that found no room in the table"), Vec::new(), state.full);
    let ended = counter(registry, "flows_ended", "Flows that have ended, by reason");
    for (reason, count) in &state.ended {
        add(&ended, vec![("reason", reason.clone())], *count);
    }
    let not_learned = counter(
        registry,
        "flows_not_learned",
        "Reports of packets that Linux forwarded and no flow was made of, by reason",
    );
    for (reason, count) in &state.not_learned {
        add(&not_learned, vec![("reason", reason.clone())], *count);
    }
}

fn daemon(registry: &mut Registry, status: &Status, links: &[FabricLink]) {
    fabric(registry, links);
    flows(registry, &status.flows);
    let running = gauge(registry, "hook_running", "1 if a version of the Lua hook runs, else 0");
    for (hook, runs) in &status.hooks {
        set(&running, vec![("hook", hook.clone())], u64::from(*runs));
    }
    let routes = gauge(registry, "routes", "Routes in the lookup tables");
    set(&routes, vec![("family", "ipv4".into())], status.routes_ipv4 as u64);
    set(&routes, vec![("family", "ipv6".into())], status.routes_ipv6 as u64);
    for (name, help, value) in [
        (
            "routes_refused",
            "Routes and neighbors left to Linux because the tables cannot hold them",
            status.routes_refused as u64,
        ),
        ("next_hops", "Next hops in use", status.next_hops as u64),
        ("next_hops_max", "How many next hops the table can hold", status.next_hops_max as u64),
        ("neighbors", "Entries of the kernel's neighbor tables on ports", status.neighbors as u64),
        ("resident_memory_bytes", "Resident memory of the daemon in bytes", status.memory_bytes),
        ("tables_bytes", "Memory of the lookup structures in bytes", status.tables_bytes),
        ("uptime_seconds", "Seconds since the daemon started", status.uptime_s),
        ("silent_threads", "Threads of the daemon that make no progress", u64::from(status.silent_threads)),
        (
            "unfiltered_ports",
            "Ports whose packets Linux forwards unfiltered, although filters are configured",
            u64::from(status.unfiltered_ports),
        ),
        (
            "nftables_ports",
            "Ports whose packets Linux forwards, filtered by nftables with the rules of [filter]",
            u64::from(status.nftables_ports),
        ),
        (
            "ipsec_exhausted_sas",
            "Outbound SAs without a sequence number left, which send nothing",
            u64::from(status.exhausted_sas),
        ),
        ("ready", "1 if the ports forward packets, else 0", u64::from(status.ready)),
        ("mirror_in_step", "1 if the tables match the kernel's, else 0", u64::from(status.mirror.synced)),
    ] {
        set(&gauge(registry, name, help), Vec::new(), value);
    }
    for (name, help, value) in [
        ("mirror_messages", "Netlink messages received", status.mirror.messages),
        ("mirror_changes", "Changes made to the mirror of the kernel's tables", status.mirror.changes),
        (
            "mirror_overruns",
            "Times that netlink messages were lost because the receive buffer was full",
            status.mirror.overruns,
        ),
        ("mirror_resyncs", "Times that all of the kernel's tables were read again", status.mirror.resyncs),
        ("mirror_malformed", "Malformed netlink messages", status.mirror.malformed),
        ("mirror_unread", "Times that settings in /proc/sys/net could not be read", status.mirror.unread),
        (
            "mirror_repaired",
            "Differences that the periodic comparison found and corrected",
            status.mirror.repaired,
        ),
    ] {
        add(&counter(registry, name, help), Vec::new(), value);
    }
}

fn counter(registry: &mut Registry, name: &str, help: &str) -> Counters {
    let family = Counters::default();
    registry.register(name, help, family.clone());
    family
}

fn gauge(registry: &mut Registry, name: &str, help: &str) -> Gauges {
    let family = Gauges::default();
    registry.register(name, help, family.clone());
    family
}

fn other<'a>(
    others: &'a mut BTreeMap<String, Counters>,
    registry: &mut Registry,
    name: &str,
) -> &'a Counters {
    others.entry(name.into()).or_insert_with(|| counter(registry, name, help::of(name)))
}

fn add(family: &Counters, labels: Labels, value: u64) {
    family.get_or_create(&labels).inc_by(value);
}

fn set(family: &Gauges, labels: Labels, value: u64) {
    family.get_or_create(&labels).set(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_counters_into_metric_families() {
        let counters = [
            ("port/eth0/0/receive/received", 7),
            ("router/0/eth0/drop/no_route", 2),
            ("router/0/eth0/drop/prohibit", 0),
            ("slow/eth0/held", 3),
            ("port/eth0/0/device/receive_no_frame", 4),
            ("link/0/eth0.output -> router.eth0/txpackets", 9),
            ("worker/0/breaths", 11),
            ("time/0/eth0/0/ns", 21),
            ("filter/no-telnet/packets", 12),
            ("linux/eth0/left/mtu", 19),
            ("linux/eth0/dropped/no_route", 20),
            ("slow/resolve_asked", 13),
            ("slow/eth0/received", 14),
            ("hook/acl/0/drop/denied", 15),
            ("hook/acl/0/count/seen", 16),
            ("hook/acl/0/jit/heap_bytes", 18),
            ("lines/read", 17),
        ]
        .map(|(name, value)| (name.to_string(), value));
        let text = render(
            &Status {
                routes_ipv4: 5,
                ready: true,
                hooks: [("acl".into(), false), ("nat".into(), true)].into(),
                ..Status::default()
            },
            &counters,
            &[],
            &Collectors::default(),
        );
        assert!(!text.contains("fabric"), "without a cluster there is nothing about one");
        for line in [
            "brickmoon_frames_total{app=\"port/eth0/0/receive\",entry=\"received\"} 7",
            "brickmoon_dropped_frames_total{app=\"router/0/eth0\",reason=\"no_route\"} 2",
            "brickmoon_held_frames{app=\"slow/eth0\"} 3",
            "brickmoon_device_frames_total{port=\"eth0\",queue=\"0\",kind=\"receive_no_frame\"} 4",
            "brickmoon_link_txpackets_total{worker=\"0\",link=\"eth0.output -> router.eth0\"} 9",
            "brickmoon_worker_breaths_total{worker=\"0\"} 11",
            "brickmoon_worker_app_ns_total{worker=\"0\",app=\"eth0/0\"} 21",
            "brickmoon_left_to_linux_frames_total{port=\"eth0\",cause=\"mtu\"} 19",
            "brickmoon_linux_dropped_frames_total{port=\"eth0\",reason=\"no_route\"} 20",
            "brickmoon_filter_packets_total{rule=\"no-telnet\"} 12",
            "brickmoon_slow_resolve_asked_total{} 13",
            "brickmoon_frames_total{app=\"slow/eth0\",entry=\"received\"} 14",
            "brickmoon_hook_total{hook=\"acl\",worker=\"0\",counter=\"drop/denied\"} 15",
            "brickmoon_hook_total{hook=\"acl\",worker=\"0\",counter=\"count/seen\"} 16",
            "brickmoon_hook_lua{hook=\"acl\",worker=\"0\",kind=\"heap_bytes\"} 18",
            "brickmoon_hook_running{hook=\"acl\"} 0",
            "brickmoon_hook_running{hook=\"nat\"} 1",
            "brickmoon_counter_total{group=\"lines\",counter=\"read\"} 17",
            "brickmoon_mirror_in_step{} 0",
            "brickmoon_mirror_malformed_total{} 0",
            "brickmoon_routes{family=\"ipv4\"} 5",
            "brickmoon_ready{} 1",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("prohibit"));
        let frames = text.lines().filter(|line| line.starts_with("brickmoon_frames_total"));
        assert_eq!(frames.count(), 2, "only what an account has is an entry\n{text}");
        assert!(!text.contains("dropped_frames_total{app=\"hook"), "{text}");
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn flows_have_metrics_if_there_is_a_table() {
        let of = |flows| render(&Status { flows, ..Status::default() }, &[], &[], &Collectors::default());
        assert!(!of(FlowsState::default()).contains("flows"));
        let ended = [("connection".to_string(), 3)].into();
        let not_learned = [("helper".to_string(), 4)].into();
        let (flows, max, learned, full) = (5, 6, 8, 1);
        let why_not = None;
        let families = Vec::new();
        let text = of(FlowsState { families, why_not, flows, max, learned, ended, not_learned, full });
        for line in [
            "flows{} 5",
            "flows_max{} 6",
            "flows_learned_total{} 8",
            "flows_full_total{} 1",
            "flows_ended_total{reason=\"connection\"} 3",
            "flows_not_learned_total{reason=\"helper\"} 4",
        ] {
            assert!(text.contains(&format!("\nbrickmoon_{line}\n")), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn fabric_links_have_metrics() {
        let counts = |all: &[(&str, u64)]| all.iter().map(|(name, count)| ((*name).into(), *count)).collect();
        let link = FabricLink {
            device: "fab1".into(),
            peer: "b".into(),
            state: "no-daemon".into(),
            round_trip_us: Some(24),
            timeout_us: 25_000,
            failures: 2,
            sent: 7,
            sent_bytes: 700,
            account: bm_api::Account {
                received_bytes: 900,
                drops: counts(&[("epoch", 3)]),
                ..bm_api::Account::default()
            },
            counters: counts(&[("transit", 4), ("sampled", 5)]),
            ..FabricLink::default()
        };
        let text = render(&Status::default(), &[], &[link], &Collectors::default());
        for line in [
            "fabric_frames_total{link=\"fab1\",peer=\"b\",kind=\"transit\"} 4",
            "fabric_dropped_frames_total{link=\"fab1\",peer=\"b\",reason=\"epoch\"} 3",
            "fabric_bytes_total{link=\"fab1\",peer=\"b\",entry=\"received\"} 900",
            "fabric_bytes_total{link=\"fab1\",peer=\"b\",entry=\"sent\"} 700",
            "fabric_sent_frames_total{link=\"fab1\",peer=\"b\"} 7",
            "fabric_failures_total{link=\"fab1\",peer=\"b\"} 2",
            "fabric_up{link=\"fab1\",peer=\"b\"} 1",
            "fabric_round_trip_microseconds{link=\"fab1\",peer=\"b\"} 24",
            "fabric_timeout_microseconds{link=\"fab1\",peer=\"b\"} 25000",
        ] {
            assert!(text.contains(&format!("\nbrickmoon_{line}\n")), "{line} is not in\n{text}");
        }
        assert!(!text.contains("sampled"), "{text}");
    }
}
