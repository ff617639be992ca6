//! `brickmoon bench` rejects options that have no effect, before it measures anything.

use std::process::Command;

#[test]
fn refuses_options_of_another_bench() {
    for (arguments, words) in [
        (&["lookup", "--strategy", "masks"][..], "--strategy is only for `brickmoon bench batch`"),
        (&["forward", "--peers"], "--peers is only for `brickmoon bench lookup`"),
        (&["batch", "--structure", "dir18"], "--structure is only for `brickmoon bench lookup`"),
        (&["ports", "--soak", "1m"], "--soak is only for `brickmoon bench lua`"),
        (&["lookup", "--sizes", "imix"], "--sizes is only for `brickmoon bench forward|ports`"),
        (
            &["lua", "--rib", "r.txt"],
            "--rib is only for `brickmoon bench lookup|forward|batch|workers|ports|kernel`",
        ),
        (
            &["loss", "--rib", "r.txt"],
            "--rib is only for `brickmoon bench lookup|forward|batch|workers|ports|kernel`",
        ),
        (&["kernel", "--case", "switch", "--rib", "r.txt"], "--rib has no effect on cases with \"switch\""),
        (&["forward", "--case", "one", "--rib", "r.txt"], "--rib has no effect on cases with \"one\""),
        (&["lua", "--soak", "1m", "--plot", "x.svg"], "remove --plot"),
        (&["lua", "--soak", "1m", "--seconds", "9"], "remove --seconds"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_brickmoon"));
        let done = command.arg("bench").args(arguments).output().expect("cargo has built it");
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
}
