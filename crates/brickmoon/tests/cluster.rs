//! `brickmoon simulate` and `brickmoon plan`, which `brickmoon-bench` runs: what they print, and what they refuse.

use std::path::Path;
use std::process::{Command, Output};

fn brickmoon(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_brickmoon")).args(arguments).output().expect("cargo has built it")
}

fn stdout(arguments: &[&str]) -> String {
    let done = brickmoon(arguments);
    assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).expect("text")
}

/// The file of RouteBricks' servers.
fn routebricks() -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../simulate/examples/routebricks.toml");
    file.to_str().expect("a path of characters").into()
}

#[test]
fn a_simulation_prints_a_row_for_each_matrix_and_quota() {
    let arguments =
        ["simulate", "--nodes", "8", "--time", "5", "--matrix", "all", "--quota", "R/N", "--quota", "2R/N"];
    let text = stdout(&arguments);
    let rows: Vec<&str> = text.lines().skip(1).collect();
    assert_eq!(rows.len(), 8, "{text}");
    assert!(rows[0].starts_with("uniform      R/N") && rows[7].starts_with("adversarial  2R/N"), "{text}");
    assert_eq!(text, stdout(&arguments), "a seed repeats a run");
}

#[test]
fn json_has_an_object_for_each_run() {
    let text = stdout(&["simulate", "--seeds", "3", "--json"]);
    let seeds: Vec<u64> = text
        .lines()
        .map(|line| {
            serde_json::from_str::<serde_json::Value>(line).expect("JSON")["seed"].as_u64().expect("a seed")
        })
        .collect();
    assert_eq!(seeds, [1, 2, 3]);
}

#[test]
fn a_plan_is_a_table_json_and_a_drawing() {
    let svg = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bm-plan-{}.svg", std::process::id()));
    let path = svg.to_str().expect("a path of characters");
    let text = stdout(&["plan", &routebricks(), "--svg", path]);
    assert!(text.contains("1 port, 5 NICs") && text.contains("mesh"), "{text}");
    let drawing = std::fs::read_to_string(&svg).expect("written");
    std::fs::remove_file(&svg).expect("removed");
    assert!(drawing.starts_with("<svg") && drawing.trim_end().ends_with("</svg>"));
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&["plan", &routebricks(), "--json"])).expect("JSON");
    assert_eq!(json["plans"][0]["mesh_ports_max"], 34);
    assert_eq!(json["plans"][0]["built"]["cables"], 496);
}

#[test]
fn rejects_invalid_options() {
    let file = routebricks();
    for (arguments, words) in [
        (&["simulate", "--nodes", "3", "--matrix", "adversarial"][..], "needs at least 4 nodes"),
        (&["simulate", "--matrix", "odd"], "use uniform, hot, permutation or adversarial, or all"),
        (&["simulate", "--quota", "3R"], "use R/N, 2R/N, classic or direct-only"),
        (&["simulate", "--load", "120"], "more is not admissible"),
        (&["simulate", "--fly", "2"], "such as 2,3"),
        (&["plan", "missing.toml"], "missing.toml: No such file"),
        (&["plan", &file, "--ports", "1"], "ports must be from 2"),
    ] {
        let done = brickmoon(arguments);
        let message = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(2), "{arguments:?}: {message}");
        assert!(message.contains(words), "{arguments:?}: {message}");
    }
}
