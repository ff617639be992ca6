//! `cargo xtask instructions`: counts instructions per packet, and compares the count with the record.
//!
//! Time on a busy machine says little about a change of a few instructions; callgrind counts them all. It presents a
//! CPU with AVX2 and without AVX-512 to programs, so the count is the same on every machine that has AVX2. The
//! record, `xtask/instructions.toml`, is a ratchet: a higher count fails, a lower one should be recorded (`--record`).

use std::fs;
use std::path::Path;
use std::process::Command;

/// What is counted: its name in the record, and the arguments of `breaths`, for some 20,000 packets.
const CASES: [(&str, [&str; 3]); 5] = [
    ("ipv4", ["ipv4", "100", "256"]),
    ("ipv4-32", ["ipv4", "400", "32"]),
    ("ipv6", ["ipv6", "100", "256"]),
    ("ipv6-32", ["ipv6", "400", "32"]),
    (RING, ["net_ring", "100", "256"]),
];
/// IPv4 on a DPDK port: counted only in a build with DPDK.
const RING: &str = "net_ring";
/// The function whose instructions are counted, with everything that it calls.
const COUNTED: &str = "--toggle-collect=bm_graph::engine::Engine::breathe*";
/// Percentage by which a count may increase: compilers differ slightly.
const MARGIN_PERCENT: f64 = 2.0;
const RECORD: &str = "xtask/instructions.toml";
const HEAD: &str = "# Instructions per packet: 60-byte frames through the whole router, bursts of 256 and of 32, AVX2;\n\
                    # net_ring: IPv4 on DPDK's ring, bursts of 256.\n\
                    # `cargo xtask instructions` compares, `cargo xtask instructions --record` writes.\n";

/// Counts, and compares with the record or writes it.
pub fn run(root: &Path, record: bool) -> Result<String, Vec<String>> {
    if let Some(why) = cannot_count() {
        return Ok(format!("instructions: skipped, since {why}"));
    }
    let features = crate::suites::features(root)?;
    let program = build(root, &features)?;
    let mut counts = Vec::new();
    let mut printed = Vec::new();
    for (name, arguments) in CASES {
        if name == RING && !crate::suites::has(&features, "brickmoon/dpdk") {
            printed.push(format!("{name} skipped, since there is no DPDK to build with"));
        } else {
            counts.push((name, count(&program, name, arguments)?));
        }
    }
    let mut recorded = read_record(root)?;
    if record {
        let file = format!("{HEAD}{}", lines(&recorded, &counts));
        fs::write(root.join(RECORD), file).map_err(|error| one(RECORD, &error))?;
        recorded = read_record(root)?;
    }
    let mut findings = Vec::new();
    for (name, count) in counts {
        let before = recorded.get(name).and_then(toml::Value::as_float).unwrap_or(0.0);
        match verdict(before, count) {
            Verdict::Same => printed.push(format!("{name} {count:.1} of {before:.1}")),
            Verdict::Less => printed.push(format!("{name} {count:.1} of {before:.1}, so record it with --record")),
            Verdict::More => findings.push(format!(
                "instructions: {name} takes {count:.1} a packet, {before:.1} were recorded in {RECORD}. Find what \
                 was added (valgrind --tool=callgrind, docs/performance.md); if it is worth that, say so in the \
                 commit and run: cargo xtask instructions --record"
            )),
        }
    }
    if findings.is_empty() {
        Ok(format!("instructions per packet: {}", printed.join("; ")))
    } else {
        Err(findings)
    }
}

/// The record with these counts; what was not counted stays as it was.
fn lines(recorded: &toml::Table, counts: &[(&str, f64)]) -> String {
    let count_of = |name| counts.iter().find(|(other, _)| *other == name).map(|&(_, count)| count);
    let count_of = |name| count_of(name).or_else(|| recorded.get(name)?.as_float());
    let line = |name| Some(format!("{name} = {:.1}\n", count_of(name)?));
    CASES.iter().filter_map(|&(name, _)| line(name)).collect()
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Less,
    Same,
    More,
}

fn verdict(recorded: f64, found: f64) -> Verdict {
    match (found - recorded) / recorded.max(1.0) * 100.0 {
        percent if percent > MARGIN_PERCENT => Verdict::More,
        percent if percent < -MARGIN_PERCENT => Verdict::Less,
        _ => Verdict::Same,
    }
}

fn cannot_count() -> Option<&'static str> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        return Some("there is no valgrind (tools/setup test installs it)");
    }
    #[cfg(target_arch = "x86_64")]
    let has_avx2 = is_x86_feature_detected!("avx2");
    #[cfg(not(target_arch = "x86_64"))]
    let has_avx2 = false;
    (!has_avx2).then_some("this CPU has no AVX2, and the record is of code that uses it")
}

/// Builds the program to measure, and returns its path.
fn build(root: &Path, features: &[String]) -> Result<String, Vec<String>> {
    // The whole workspace, like the tests: then they share compiled code.
    let arguments = ["build", "--release", "--locked", "--workspace", "--example", "breaths"];
    let mut command = crate::suites::cargo();
    command.args(arguments).args(features).arg("--message-format=json-render-diagnostics");
    let built = command.current_dir(root).output();
    let built = built.map_err(|error| one("cargo build", &error))?;
    let text = String::from_utf8_lossy(&built.stdout);
    executable(&text).ok_or_else(|| {
        let why = String::from_utf8_lossy(&built.stderr).into_owned();
        vec![format!("instructions: the example `breaths` of bm-eval was not built:\n{why}")]
    })
}

/// The last executable that cargo's messages name.
fn executable(messages: &str) -> Option<String> {
    let key = "\"executable\":\"";
    let (_, rest) = messages.rsplit_once(key)?;
    rest.split_once('"').map(|(path, _)| path.to_string())
}

/// Instructions a packet.
fn count(program: &str, name: &str, arguments: [&str; 3]) -> Result<f64, Vec<String>> {
    let file = std::env::temp_dir().join(format!("bm-instructions-{}-{name}", std::process::id()));
    let to = format!("--callgrind-out-file={}", file.display());
    let run = Command::new("valgrind")
        .args(["--tool=callgrind", COUNTED, &to, program])
        .args(arguments)
        .output()
        .map_err(|error| one("valgrind", &error))?;
    let counted = fs::read_to_string(&file).map_err(|error| one("callgrind's output", &error));
    // It does not matter if this fails.
    let _removed = fs::remove_file(&file);
    let packets = String::from_utf8_lossy(&run.stdout);
    let packets = packets.split_whitespace().next().and_then(|word| word.parse::<f64>().ok());
    match (packets, total(&counted?)) {
        (Some(packets), Some(total)) if packets > 0.0 && total > 0.0 => Ok(total / packets),
        _ => {
            let printed = String::from_utf8_lossy(&run.stderr).into_owned();
            Err(vec![format!("instructions: `breaths {name}` under valgrind counted nothing:\n{printed}")])
        }
    }
}

/// The instructions in callgrind's output.
fn total(output: &str) -> Option<f64> {
    output.lines().find_map(|line| line.strip_prefix("totals: ")?.trim().parse().ok())
}

fn read_record(root: &Path) -> Result<toml::Table, Vec<String>> {
    let text = fs::read_to_string(root.join(RECORD)).map_err(|error| one(RECORD, &error))?;
    text.parse().map_err(|error| one(RECORD, &error))
}

fn one(what: &str, error: &dyn std::fmt::Display) -> Vec<String> {
    vec![format!("instructions: {what}: {error}")]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rises_by_more_than_the_margin_fail() {
        assert_eq!(verdict(200.0, 203.9), Verdict::Same);
        assert_eq!(verdict(200.0, 204.1), Verdict::More);
        assert_eq!(verdict(200.0, 195.9), Verdict::Less);
        assert_eq!(verdict(0.0, 100.0), Verdict::More);
    }

    #[test]
    fn a_record_keeps_what_was_not_counted() {
        let recorded = "ipv4 = 150.0\nnet_ring = 160.04".parse().unwrap();
        assert_eq!(
            lines(&recorded, &[("ipv4", 140.0), ("ipv6", 3.0)]),
            "ipv4 = 140.0\nipv6 = 3.0\nnet_ring = 160.0\n"
        );
    }

    #[test]
    fn reads_output_of_cargo_and_callgrind() {
        let messages =
            "{\"executable\":null}\n{\"executable\":\"/x/breaths\",\"fresh\":true}\n{\"success\":true}";
        assert_eq!(executable(messages).as_deref(), Some("/x/breaths"));
        assert_eq!(executable("{\"success\":false}"), None);
        assert_eq!(total("events: Ir\nsummary: 12\n\ntotals: 12\n"), Some(12.0));
        assert_eq!(total("events: Ir\n"), None);
    }
}
