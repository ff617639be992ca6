//! `brickmoon cluster demo` with real daemons: its figures, and what it leaves behind.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn is_skipped(test: &str) -> bool {
    let id = Command::new("id").arg("-u").output().expect("coreutils are there");
    let skipped = id.stdout != b"0\n";
    if skipped {
        eprintln!("skipped {test}: needs root");
    }
    skipped
}

/// One at a time: both use the same names.
static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn demo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_brickmoon"));
    command.args(["cluster", "demo"]).args(arguments);
    command
}

fn assert_clean() {
    let names = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let left = names.filter(|entry| entry.file_name().to_string_lossy().starts_with("bm-cluster-"));
    assert_eq!(left.count(), 0, "namespaces are left");
    assert!(!Path::new("/run/bm-cluster").exists());
}

#[test]
fn loads_are_those_of_direct_vlb() {
    if is_skipped("loads_are_those_of_direct_vlb") {
        return;
    }
    let _one = ONE.lock();
    bm_bpf::testing::own_bpffs().expect("root may mount");
    let done = demo(&["--rate", "1000", "--seconds", "2", "--json"]).output().expect("cargo has built it");
    let [said, errors] = [&done.stdout, &done.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    assert!(done.status.success(), "{errors}");
    let rows: Vec<serde_json::Value> =
        said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let matrix = |name: &str| {
        rows.iter().find(|row| row["matrix"] == name).unwrap_or_else(|| panic!("{name}: {said}"))
    };
    let number = |value: &serde_json::Value| value.as_f64().expect("a number");
    for name in ["uniform", "hot", "permutation", "adversarial"] {
        let row = matrix(name);
        assert!(number(&row["lost"]) <= number(&row["sent"]) / 100.0, "{row}");
        assert!(row["c"].as_array().expect("nodes").iter().all(|c| number(c) < 3.1), "{row}");
    }
    let share = |name: &str| {
        let (direct, other) = (number(&matrix(name)["direct"]), number(&matrix(name)["intermediate"]));
        direct / (direct + other)
    };
    // A machine that is busy makes bursts of packets, so figures may be off; the two are far apart.
    assert!(share("uniform") > 0.8 && share("permutation") < 0.75, "{said}");
    let events: Vec<_> = rows.iter().filter(|row| row["event"].is_string()).collect();
    let has_etcd = Command::new("etcd").arg("--version").stdout(Stdio::null()).status().is_ok();
    assert_eq!(events.len(), 5 + usize::from(has_etcd), "{said}");
    for event in events {
        assert!(number(&event["others"]["lost"]) < number(&event["others"]["sent"]) / 10.0, "{event}");
    }
    assert_clean();
}

fn interrupt(child: &Child) {
    let done = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(done.expect("there is `kill`").success());
}

#[test]
fn an_interrupted_demo_leaves_nothing() {
    if is_skipped("an_interrupted_demo_leaves_nothing") {
        return;
    }
    let _one = ONE.lock();
    bm_bpf::testing::own_bpffs().expect("root may mount");
    for after in [100, 4000] {
        let mut command = demo(&["--rate", "500"]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("cargo has built it");
        // It looks at signals from before its first namespace on.
        let began = Instant::now();
        while !Path::new("/run/netns/bm-cluster-n0").exists() && began.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(10));
        }
        std::thread::sleep(Duration::from_millis(after));
        interrupt(&child);
        let done = child.wait_with_output().expect("it ends");
        let errors = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(1), "{errors}");
        assert!(errors.contains("interrupted"), "{errors}");
        assert_clean();
    }
}
