//! `[sampling]`, `[[sflow]]` and `[[ipfix]]`.

use super::*;
use crate::config::ExportFormat;

#[test]
fn without_collectors_nothing_is_sampled() {
    assert_eq!(read("[sampling]\none_in = 10\n").sample_one_in(), 0);
    assert_eq!(read("[[sflow]]\ncollector = '192.0.2.1:6343'\n").sample_one_in(), 1024);
}

#[test]
fn collectors_are_read() {
    let config = read(
        "[sampling]\none_in = 10\ncounters_s = 0\nagent = '2001:db8::9'\n\
         [[ipfix]]\ncollector = '[2001:db8::1]:4739'\n[[sflow]]\ncollector = '192.0.2.1:6343'\n\
         [[sflow]]\ncollector = '192.0.2.2:6343'\n",
    );
    let collectors = config.export.collectors.iter();
    let shown: Vec<_> =
        collectors.map(|one| format!("{:?} {} line {}", one.format, one.address, one.line)).collect();
    assert_eq!(
        shown,
        ["Sflow 192.0.2.1:6343 line 7", "Sflow 192.0.2.2:6343 line 9", "Ipfix [2001:db8::1]:4739 line 5"]
    );
    assert_eq!((config.sample_one_in(), config.export.counters), (10, Duration::ZERO));
    assert_eq!(config.export.agent, Some("2001:db8::9".parse().unwrap()));
    assert_eq!(ExportFormat::Ipfix.name(), "ipfix");
}

#[test]
fn collectors_that_cannot_be_are_refused_with_their_lines() {
    let text = "[sampling]\none_in = 0\nagent = 'me'\n[[sflow]]\n[[sflow]]\ncollector = 'host:1'\n\
                [[ipfix]]\ncollector = '192.0.2.1:1'\n[[ipfix]]\ncollector = '192.0.2.1:1'\n";
    let problems = refused(text);
    for expected in [
        "line 2: `one_in` in [sampling] is 0",
        "line 3: `agent` in [sampling] is \"me\"",
        "line 4: `collector` in [[sflow]] is missing: write collector = \"192.0.2.1:6343\"",
        "line 6: `collector` in [[sflow]] is \"host:1\"",
        "line 9: duplicate collector 192.0.2.1:1, first on line 7",
    ] {
        assert!(problems.contains(expected), "{expected}: {problems}");
    }
}

#[test]
fn a_change_of_collectors_needs_no_restart() {
    let one = read("[[sflow]]\ncollector = '192.0.2.1:6343'\n");
    let two = read("[sampling]\none_in = 5\n[[sflow]]\ncollector = '192.0.2.2:6343'\n");
    let changed = one.diff(&two);
    assert!(changed.iter().all(|changed| changed.effect == Effect::Live), "{changed:?}");
    let keys: Vec<_> = changed.iter().map(|changed| changed.key.as_str()).collect();
    assert_eq!(keys, ["sampling.one_in", "sflow.192.0.2.1:6343", "sflow.192.0.2.2:6343"]);
}
