//! `brickmoon demo` with the real daemon: it starts on both paths and forwards.

use std::process::Command;

#[test]
fn runs_with_the_daemon() {
    let id = Command::new("id").arg("-u").output().expect("coreutils are there");
    if id.stdout != b"0\n" {
        return eprintln!("skipped runs_with_the_daemon: needs root");
    }
    // The daemons that it starts mount a bpffs if there is none; it ends with this thread.
    bm_bpf::testing::own_bpffs().expect("root may mount");
    let mut command = Command::new(env!("CARGO_BIN_EXE_brickmoon"));
    let done = command.args(["demo", "--routes", "2000", "--seconds", "0.4", "--json"]).output();
    let done = done.expect("cargo has built it");
    let [message, errors] =
        [&done.stdout, &done.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    assert!(done.status.success(), "{errors}");
    let rows: Vec<serde_json::Value> =
        message.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    for subject in ["linux", "brickmoon", "brickmoon-kernel"] {
        let rows: Vec<_> =
            rows.iter().filter(|row| row["subject"] == subject && row["unit"] == "mpps").collect();
        assert_eq!(rows.len(), 5, "{subject}: {message}");
        for row in rows {
            assert!(row["median"].as_f64() > Some(0.0) && row["detail"]["bad"] == 0, "{row}");
        }
    }
}
