//! Checks the files of `make install`, and that the systemd unit matches them.

use std::path::Path;
use std::process::Command;

/// Exposure level of the unit according to systemd, from 0 to 10. It must not increase.
const EXPOSURE_MAX: f64 = 2.9;

#[test]
fn the_exposure_of_the_unit_does_not_increase() {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/brickmoon.service");
    let mut analyze = Command::new("systemd-analyze");
    analyze.args(["security", "--offline=yes", "--no-pager"]).arg(&unit);
    let Ok(output) = analyze.output() else {
        return eprintln!("skipped: there is no `systemd-analyze`, which is in the package systemd");
    };
    let message = String::from_utf8_lossy(&output.stdout);
    let Some((_, exposure)) = message.split_once("Overall exposure level for brickmoon.service: ") else {
        let why = String::from_utf8_lossy(&output.stderr);
        // Before version 250.
        assert!(why.contains("offline"), "{message}{why}");
        return eprintln!("skipped: this `systemd-analyze` has no option --offline");
    };
    let exposure: f64 =
        exposure.split_whitespace().next().and_then(|text| text.parse().ok()).expect("a number");
    assert!(exposure <= EXPOSURE_MAX, "{exposure}, and not {EXPOSURE_MAX}:\n{message}");
}

#[test]
fn the_unit_names_files_that_are_installed() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = std::env::temp_dir().join(format!("bm-install-{}", std::process::id()));
    let mut make = Command::new("make");
    // The binaries need not be built: `-o` uses existing files as they are.
    make.args(["-o", "build", "install", "SUDO=", "BRICKMOON=/bin/true", "BENCH=/bin/true"]);
    make.arg("XFRM_LIBRARY=/bin/true");
    make.arg(format!("DESTDIR={}", folder.display())).current_dir(&repository);
    let Ok(made) = make.env_remove("MAKEFLAGS").env_remove("MAKELEVEL").output() else {
        eprintln!("skipped: there is no `make`");
        return;
    };
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let installed = |path: &str| folder.join(path.trim_start_matches('/')).is_file();
    let unit = std::fs::read_to_string(folder.join("lib/systemd/system/brickmoon.service"));
    let unit = unit.expect("the unit");
    let values =
        |key: &'static str| unit.lines().filter_map(move |line| line.strip_prefix(key)?.strip_prefix('='));
    assert!(installed("/usr/sbin/brickmoon-bench"), "brickmoon looks for it in its own folder");
    for file in values("Documentation").filter_map(|value| value.strip_prefix("file:")) {
        assert!(installed(file), "{file} is not installed");
    }
    // Commands with full privileges are run by a shell.
    let ours = values("ExecStart").chain(values("ExecStartPre")).filter(|command| !command.starts_with('+'));
    for word in ours.flat_map(str::split_whitespace) {
        assert!(!word.starts_with('/') || installed(word), "{word} is not installed");
    }
    // Pages that the README links to are installed as well.
    let readme = folder.join("usr/share/doc/brickmoon/README.md");
    let readme = std::fs::read_to_string(readme).expect("the README");
    let pages = readme.split("](docs/").skip(1).filter_map(|rest| rest.split([')', '#']).next());
    for page in pages {
        assert!(installed(&format!("usr/share/doc/brickmoon/docs/{page}")), "docs/{page} is not installed");
    }
    for file in ["docs/openapi.json", "clients/python/pyproject.toml", "clients/python/brickmoon/__init__.py"]
    {
        assert!(installed(&format!("usr/share/doc/brickmoon/{file}")), "{file} is not installed");
    }
    // Lua programs keep their sockets and counters there, and do not end with the daemon.
    assert_eq!(values("RuntimeDirectory").next(), Some("brickmoon"));
    assert_eq!(values("RuntimeDirectoryPreserve").next(), Some("yes"));
    let _gone = std::fs::remove_dir_all(&folder);
}
