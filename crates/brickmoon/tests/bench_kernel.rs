//! `brickmoon bench kernel` with a small table: every subject forwards correctly.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// One at a time: the bench has one set of namespaces.
static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn bench(arguments: &[&str]) -> Output {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if is_root() {
        // The daemons that it starts mount a bpffs if there is none; it ends with this thread.
        bm_bpf::testing::own_bpffs().expect("root may mount");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_brickmoon"));
    command.args(["bench", "kernel"]).args(arguments).output().expect("cargo has built it")
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output().expect("every system has it");
    id.stdout == b"0\n"
}

/// Whether router and generator can have a core each; prints what is skipped if not.
fn can_measure(test: &str) -> bool {
    let threads_are_seen = std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let can = is_root() && cores >= 2 && threads_are_seen;
    if !can {
        eprintln!("skipped {test}: needs root, two cores, and kernel threads in /proc");
    }
    can
}

/// Writes 300 routes of each family with several next hops.
fn table(file: &Path) {
    let mut lines = String::new();
    for number in 0..300 {
        let hop = number % 7 + 1;
        let _ = writeln!(lines, "20.{}.{}.0/24 10.9.0.{hop}", number / 100, number % 100);
        let _ = writeln!(lines, "2001:{number:x}::/32 fd09::{hop}");
    }
    std::fs::write(file, lines).expect("the folder for temporary files is writable");
}

#[test]
fn every_subject_forwards_correctly() {
    if !can_measure("every_subject_forwards_correctly") {
        return;
    }
    let file = std::env::temp_dir().join(format!("bm-bench-kernel-{}.txt", std::process::id()));
    table(&file);
    let rib = file.to_str().expect("plain characters");
    let done = bench(&["--rib", rib, "--seconds", "1", "--case", "full-prefix-imix", "--json"]);
    std::fs::remove_file(&file).expect("it was made above");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let text = String::from_utf8_lossy(&done.stdout);
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(rows.len(), 8, "{text}");
    for row in &rows {
        assert!(row["median"].as_f64() > Some(0.0) && row["detail"]["bad"] == 0, "{row}");
        let (sent, by_linux) = (row["detail"]["sent"].as_u64(), row["detail"]["by_linux"].as_u64());
        // Linux handles neighbor discovery and the like with every subject, but not flows.
        let few = by_linux.unwrap_or(u64::MAX) * 100 < sent.unwrap_or(0);
        assert_eq!(few, row["subject"] != "linux", "{row}");
    }
}

#[test]
fn reports_what_is_wrong() {
    let wrong = bench(&["--peers"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("brickmoon bench lookup"));
    if !is_root() {
        let refused = bench(&[]);
        assert_eq!(refused.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&refused.stderr).contains("sudo"));
    }
}

#[test]
fn a_switch_is_measured_beside_linux() {
    if !can_measure("a_switch_is_measured_beside_linux") {
        return;
    }
    let done = bench(&["--seconds", "1", "--case", "switch-1000-64", "--json"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let text = String::from_utf8_lossy(&done.stdout);
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let subjects: Vec<_> = rows.iter().map(|row| row["subject"].as_str()).collect();
    assert_eq!(subjects, [Some("linux"), Some("brickmoon")], "{text}");
    for row in &rows {
        assert!(row["median"].as_f64() > Some(0.0) && row["detail"]["bad"] == 0, "{row}");
        assert!(row["detail"]["linux_ratio_median"].as_f64() > Some(0.0), "{row}");
    }
}
