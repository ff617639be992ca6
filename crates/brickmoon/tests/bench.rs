//! `brickmoon bench` with options that it would not look at: they are refused before anything is measured.

use std::process::Command;

#[test]
fn refuses_options_of_another_bench() {
    for (arguments, words) in [
        (&["lookup", "--strategy", "masks"][..], "--strategy is for `brickmoon bench batch` alone"),
        (&["forward", "--peers"], "--peers is for `brickmoon bench lookup` alone"),
        (&["batch", "--structure", "dir18"], "--structure is for `brickmoon bench lookup` alone"),
        (&["ports", "--soak", "1m"], "--soak is for `brickmoon bench lua` alone"),
        (&["lookup", "--sizes", "imix"], "--sizes is for `brickmoon bench forward|ports` alone"),
        (
            &["lua", "--rib", "r.txt"],
            "--rib is for `brickmoon bench lookup|forward|batch|workers|ports|kernel` alone",
        ),
        (
            &["loss", "--rib", "r.txt"],
            "--rib is for `brickmoon bench lookup|forward|batch|workers|ports|kernel` alone",
        ),
        (&["kernel", "--case", "switch", "--rib", "r.txt"], "--rib has no effect on cases with \"switch\""),
        (&["forward", "--case", "one", "--rib", "r.txt"], "--rib has no effect on cases with \"one\""),
        (&["lua", "--soak", "1m", "--plot", "x.svg"], "leave --plot out"),
        (&["lua", "--soak", "1m", "--seconds", "9"], "leave --seconds out"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_brickmoon"));
        let done = command.arg("bench").args(arguments).output().expect("cargo has built it");
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
}
