//! FRR's zebra and bgpd in a namespace, with their own files, independent of any FRR on the machine.

use crate::PATIENCE;
use crate::command::Running;
use crate::netns::Namespace;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Where Debian puts the daemons.
const FOLDER: &str = "/usr/lib/frr";
/// Receive buffer of zebra's netlink sockets: the default overruns at full speed.
const NETLINK_BUFFER: &str = "90000000";
/// Both daemons; dropping it ends them and removes their files. The routes that they added stay.
pub struct Frr {
    // Before the folder, which must outlive the daemons.
    _bgpd: Running,
    _zebra: Running,
    _folder: Folder,
}

/// A folder that is removed when this is dropped.
struct Folder(PathBuf);

impl Frr {
    /// The reason why FRR cannot run here, if there is one.
    pub fn missing() -> Option<String> {
        let paths = ["zebra", "bgpd"].map(|name| Path::new(FOLDER).join(name));
        let missing = paths.iter().find(|path| !path.is_file())?;
        Some(format!("no {} (Debian package frr)", missing.display()))
    }

    /// Starts both; bgpd gets these lines below `router bgp`.
    pub fn start(namespace: &Namespace, autonomous_system: u32, lines: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("bm-frr-{}", std::process::id()));
        // FRR's daemons change to a user of their own, which must be able to write here.
        let all = std::fs::Permissions::from_mode(0o777);
        let made = std::fs::create_dir_all(&folder).and_then(|()| std::fs::set_permissions(&folder, all));
        made.unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let kept = Folder(folder.clone());
        let configuration = format!("router bgp {autonomous_system}\n{lines}\n");
        let zebra = start(namespace, &folder, "zebra", "", &["-s", NETLINK_BUFFER]);
        await_socket(&folder.join("zserv.api"), &folder.join("zebra.log"));
        let bgpd = start(namespace, &folder, "bgpd", &configuration, &[]);
        await_socket(&folder.join("bgpd.vty"), &folder.join("bgpd.log"));
        Self { _bgpd: bgpd, _zebra: zebra, _folder: kept }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn start(namespace: &Namespace, folder: &Path, name: &str, configuration: &str, more: &[&str]) -> Running {
    let file = folder.join(format!("{name}.conf"));
    std::fs::write(&file, configuration).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let log = folder.join(format!("{name}.log"));
    let mut command = namespace.command(Path::new(FOLDER).join(name));
    command.arg("-f").arg(file).arg("-i").arg(folder.join(format!("{name}.pid")));
    command.arg("-z").arg(folder.join("zserv.api")).arg("--vty_socket").arg(folder);
    command.args(["-P", "0", "--log"]).arg(format!("file:{}", log.display()));
    command.args(more).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Running::start(&mut command)
}

fn await_socket(path: &Path, log: &Path) {
    let deadline = Instant::now() + PATIENCE;
    while !path.exists() {
        let log = std::fs::read_to_string(log).unwrap_or_default();
        assert!(Instant::now() < deadline, "{} does not appear; the log says:\n{log}", path.display());
        std::thread::sleep(Duration::from_millis(20));
    }
}
