//! The metrics page, the dashboard and the alert rules name exactly the metrics that exist.
//!
//! What exists is found by a scrape with a counter of every kind and a fabric link. Families of links, workers and the slow
//! path are those that have a help text.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use bm_api::{Account, Collector, Collectors, FabricLink, FlowsState, Status};
use bm_stats::{Entry, Scope};

/// A family of metrics as a scrape describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Family {
    kind: String,
    labels: String,
    help: String,
}

/// A counter of each kind of scope and name.
fn counters() -> Vec<(String, u64)> {
    let account: Vec<_> = Entry::NAMES.into_iter().chain(["drop/no_route"]).collect();
    let of = |kind: &str| {
        let names = bm_serve::metrics::FAMILIES.iter().filter_map(|(name, _)| name.strip_prefix(kind));
        names.collect::<Vec<_>>()
    };
    let of_apps = of("worker_app_");
    let of_workers: Vec<_> = of("worker_").into_iter().filter(|name| !name.starts_with("app_")).collect();
    let scopes = [
        (Scope::PortReceive { port: "eth0", queue: 0 }, account),
        (Scope::PortDevice { port: "eth0", queue: 0 }, vec!["receive_no_frame"]),
        (Scope::Link { worker: 0, link: "a.output -> b.input" }, of("link_")),
        (Scope::Worker { worker: 0 }, of_workers),
        (Scope::Time { worker: 0, app: "router" }, of_apps),
        (Scope::Slow, of("slow_")),
        (Scope::Linux { port: "eth0" }, vec!["left/mtu", "dropped/no_route"]),
        (Scope::Filter { rule: "no-telnet" }, vec!["packets"]),
        (Scope::Hook { hook: "acl", worker: Some(0) }, vec!["calls", "jit/heap_bytes"]),
        (Scope::Other("app"), vec!["seen"]),
    ];
    let names = |(scope, names): &(Scope<'_>, Vec<&str>)| {
        names.iter().map(|name| format!("{scope}/{name}")).collect::<Vec<_>>()
    };
    scopes.iter().flat_map(names).map(|name| (name, 1)).collect()
}

/// A link to another node of a cluster, with a counter of each kind.
fn fabric_link() -> FabricLink {
    let counters = |name: &str| BTreeMap::from([(name.to_string(), 1)]);
    FabricLink {
        device: "fab1".into(),
        peer: "b".into(),
        state: "up".into(),
        counters: counters("transit"),
        account: Account { drops: counters("epoch"), ..Account::default() },
        ..FabricLink::default()
    }
}

/// A collector that has been told something.
fn collectors() -> Collectors {
    Collectors { collectors: vec![Collector::default()], ..Collectors::default() }
}

/// Every family of a scrape by the name of its series.
fn families() -> BTreeMap<String, Family> {
    let flows = FlowsState {
        max: 1,
        ended: BTreeMap::from([("idle".to_string(), 1)]),
        not_learned: BTreeMap::from([("state".to_string(), 1)]),
        ..FlowsState::default()
    };
    let hooks = BTreeMap::from([("acl".to_string(), true)]);
    let status = Status { hooks, flows, ..Status::default() };
    let text = bm_serve::metrics::render(&status, &counters(), &[fabric_link()], &collectors());
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut help = "";
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').expect("a text").1.trim_end_matches('.');
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type");
            let name = if kind == "counter" { format!("{name}_total") } else { name.into() };
            families.insert(name, Family { kind: kind.into(), help: help.into(), ..Family::default() });
        } else if let Some((name, rest)) = line.split_once('{') {
            let labels = rest.split("=\"").filter_map(|part| part.rsplit(['{', ',']).next());
            let labels: Vec<_> =
                labels.filter(|label| !label.contains('}')).map(|label| format!("`{label}`")).collect();
            families.get_mut(name).unwrap_or_else(|| panic!("{line}")).labels = labels.join(", ");
        }
    }
    families
}

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The rows of the page's tables: the family, and its unit.
fn documented() -> BTreeMap<String, (Family, String)> {
    let page = read("docs/metrics.md");
    let row = |line: &str| {
        let cells: Vec<_> =
            line.strip_prefix("| `brickmoon_")?.trim_end_matches('|').split(" | ").map(str::trim).collect();
        let [name, kind, labels, unit, help] = cells[..] else { panic!("five columns: {line}") };
        let family = Family { kind: kind.into(), labels: labels.into(), help: help.into() };
        Some((format!("brickmoon_{}", name.trim_end_matches('`')), (family, unit.to_string())))
    };
    page.lines().filter_map(row).collect()
}

#[test]
fn the_page_lists_every_metric_as_it_is() {
    let (exported, documented) = (families(), documented());
    let wrong: Vec<_> = exported
        .iter()
        .filter(|(name, family)| documented.get(*name).is_none_or(|(other, _)| other != *family))
        .map(|(name, Family { kind, labels, help })| {
            format!("| `{name}` | {kind} | {labels} | UNIT | {help} |")
        })
        .collect();
    assert!(wrong.is_empty(), "docs/metrics.md needs these rows:\n{}", wrong.join("\n"));
    let gone: Vec<_> = documented.keys().filter(|name| !exported.contains_key(*name)).collect();
    assert!(gone.is_empty(), "docs/metrics.md has metrics that do not exist: {gone:?}");
    assert!(documented.values().all(|(_, unit)| !unit.is_empty()), "each has a unit, or -");
}

/// Words that begin with `brickmoon_`.
fn names_in(text: &str) -> BTreeSet<&str> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    words.filter(|word| word.starts_with("brickmoon_")).collect()
}

#[test]
fn dashboard_and_rules_use_metrics_and_labels_that_exist() {
    let exported = families();
    for path in ["packaging/grafana/brickmoon.json", "packaging/prometheus/brickmoon.rules.yml"] {
        let text = read(path);
        let names = names_in(&text);
        assert!(names.len() > 10, "{path}: {names:?}");
        let unknown: Vec<_> = names.iter().filter(|name| !exported.contains_key(**name)).collect();
        assert!(unknown.is_empty(), "{path}: there are no metrics {unknown:?}");
        for (before, selector) in text.split('{').zip(text.split('{').skip(1)) {
            let name = before.rsplit(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').next();
            let Some(family) = name.and_then(|name| exported.get(name)) else { continue };
            let selector = selector.split('}').next().unwrap_or_default().replace("\\\"", "\"");
            for label in selector.split("\",").filter_map(|part| part.split(['=', '!']).next()) {
                let known = ["instance", "job"].contains(&label.trim())
                    || family.labels.contains(&format!("`{}`", label.trim()));
                assert!(known, "{path}: {name:?} has no label {label:?}");
            }
        }
    }
}

/// A dashboard that Grafana can import: panels with queries, titles and units, each at a place of its own.
#[test]
fn the_dashboard_is_complete() {
    let dashboard: serde_json::Value =
        serde_json::from_str(&read("packaging/grafana/brickmoon.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let mut places = BTreeSet::new();
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let title = panel["title"].as_str().expect("a title");
        assert!(panel["targets"].as_array().is_some_and(|targets| !targets.is_empty()), "{title}: no query");
        assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{title}: no unit");
        assert!(panel["description"].is_string(), "{title}: no description");
        let place = &panel["gridPos"];
        assert!(places.insert((place["x"].as_u64(), place["y"].as_u64())), "{title}: another panel is there");
    }
    assert!(panels.len() > 10);
}

/// Prometheus accepts the rules, if its tool is there.
#[test]
fn prometheus_accepts_the_rules() {
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/prometheus/brickmoon.rules.yml");
    let Ok(check) = std::process::Command::new("promtool").args(["check", "rules"]).arg(rules).output()
    else {
        return eprintln!("skipped: there is no promtool, which is in the package prometheus");
    };
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
}
