//! The Debian package that `make deb` makes: its files, its fields, and that they work in a root of their own.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

fn has(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).is_file()))
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{text}", output.status);
    output
}

fn text(command: &mut Command) -> String {
    String::from_utf8_lossy(&run(command).stdout).into_owned()
}

/// The package in `folder` whose name begins like this.
fn package(folder: &Path, start: &str) -> PathBuf {
    let entries = std::fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.path());
    let name =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(start));
    let found: Vec<_> =
        entries.filter(name).filter(|path| path.extension().is_some_and(|end| end == "deb")).collect();
    assert_eq!(found.len(), 1, "{start}: {found:?}");
    found[0].clone()
}

fn extracted(package: &Path, root: &Path) {
    run(Command::new("dpkg-deb").arg("-x").arg(package).arg(root));
}

#[test]
fn the_package_has_all_files_and_they_work() {
    if !has("dh") || !has("dpkg-deb") {
        return eprintln!("skipped: there is no debhelper; `tools/setup deb` installs it");
    }
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    // Not in a temporary folder, which may be small, or may not allow programs to run.
    let place = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let folder = Folder(place.join(format!("bm-package-{}", std::process::id())));
    let mut deb = Command::new(tree.join("tools/deb"));
    deb.arg(&folder.0).env("COMPRESS", "none");
    deb.env("BRICKMOON", env!("CARGO_BIN_EXE_brickmoon")).env("BENCH", env!("CARGO_BIN_EXE_brickmoon-bench"));
    run(&mut deb);
    let version = env!("CARGO_PKG_VERSION");
    let package = [format!("brickmoon_{version}_"), format!("brickmoon-dbgsym_{version}_")]
        .map(|start| package(&folder.0, &start));
    let root = folder.0.join("root");
    extracted(&package[0], &root);
    files_are_right(&root);
    programs_work(&root);
    scripts_are_right(&package[0], &folder.0.join("control"));
    // Without symbols in the package itself; those are in the other one.
    let sections = |path: &Path| text(Command::new("readelf").arg("-SW").arg(path));
    assert!(!sections(&root.join("usr/sbin/brickmoon")).contains(".debug_line"));
    let symbols = folder.0.join("symbols");
    extracted(&package[1], &symbols);
    for program in ["brickmoon", "brickmoon-bench"] {
        let notes = text(Command::new("readelf").arg("-n").arg(root.join("usr/sbin").join(program)));
        let id =
            notes.split_once("Build ID: ").map(|(_, rest)| rest.lines().next().unwrap_or_default().trim());
        let (folder, name) = id.and_then(|id| id.split_at_checked(2)).expect("an ID of the build");
        let file = symbols.join(format!("usr/lib/debug/.build-id/{folder}/{name}.debug"));
        assert!(sections(&file).contains(".debug_line"), "{program}: {}", file.display());
    }
}

#[track_caller]
fn files_are_right(root: &Path) {
    for file in [
        "usr/sbin/brickmoon-bench",
        "usr/lib/brickmoon/libbrickmoon-xfrm.so",
        "etc/brickmoon/brickmoon.toml",
        "usr/share/man/man8/brickmoon.8.gz",
        "usr/share/man/man8/brickmoon-show-ports.8.gz",
        "usr/share/man/man8/brickmoon-top.8.gz",
        "usr/share/bash-completion/completions/brickmoon",
        "usr/share/zsh/vendor-completions/_brickmoon",
        "usr/share/fish/vendor_completions.d/brickmoon.fish",
        "usr/share/doc/brickmoon/README.md",
        "usr/share/doc/brickmoon/docs/guide.md",
        "usr/share/doc/brickmoon/copyright",
        "usr/share/doc/brickmoon/third-party.txt",
    ] {
        assert!(root.join(file).is_file(), "{file}");
    }
    // Either place, as Debian's version has it.
    let unit = ["lib", "usr/lib"].map(|folder| root.join(folder).join("systemd/system/brickmoon.service"));
    assert!(unit.iter().any(|unit| unit.is_file()), "{unit:?}");
    let third_party =
        std::fs::read_to_string(root.join("usr/share/doc/brickmoon/third-party.txt")).expect("a list");
    assert!(
        third_party.lines().any(|line| line.starts_with("serde v1") && line.contains("MIT")),
        "{third_party}"
    );
    let complete = std::fs::read_to_string(root.join("usr/share/bash-completion/completions/brickmoon"))
        .expect("a script");
    assert!(complete.contains("--interval") && complete.contains("nexthops"), "{complete}");
}

#[track_caller]
fn programs_work(root: &Path) {
    let program = root.join("usr/sbin/brickmoon");
    let version = text(Command::new(&program).arg("--version"));
    assert_eq!(version.trim(), format!("brickmoon {}", env!("CARGO_PKG_VERSION")));
    run(Command::new(&program).arg("check").arg(root.join("etc/brickmoon/brickmoon.toml")));
    let page = text(Command::new("zcat").arg(root.join("usr/share/man/man8/brickmoon-show-routes.8.gz")));
    assert!(page.contains(".TH brickmoon-show-routes 8") && page.contains(r"\-\-vrf"), "{page}");
}

#[track_caller]
fn scripts_are_right(package: &Path, control: &Path) {
    run(Command::new("dpkg-deb").arg("-e").arg(package).arg(control));
    let read = |name: &str| {
        std::fs::read_to_string(control.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    assert_eq!(read("conffiles").trim(), "/etc/brickmoon/brickmoon.toml");
    let postinst = read("postinst");
    assert!(
        postinst.contains("brickmoon stop --keep") && postinst.contains("start 'brickmoon.service'"),
        "{postinst}"
    );
    let prerm = read("prerm");
    let stop = prerm.split_once("deb-systemd-invoke stop").map(|(before, _)| before);
    assert!(
        stop.is_some_and(|before| before.contains("\"$1\" = remove")),
        "only when it is removed:\n{prerm}"
    );
    assert!(
        read("control").contains("\nDepends: ") && read("control").contains("libc6"),
        "{}",
        read("control")
    );
}
