//! etcd in a namespace of its own, which the nodes reach over an interface `mgmt`: the store of the members.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use bm_testbed::testbed::TestbedError;
use bm_testbed::testbed::namespace::Namespace;

use super::DemoError;

const URL: &str = "http://10.9.0.254:2379";

/// etcd. Dropping it ends it.
pub struct Store {
    space: Namespace,
    folder: PathBuf,
    child: Option<Child>,
}

/// Whether etcd is installed.
pub fn is_installed() -> bool {
    let version = Command::new("etcd").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}

impl Store {
    /// Connects it to all nodes and starts it.
    ///
    /// # Errors
    /// What failed.
    pub fn up(prefix: &str, nodes: &[Namespace], folder: &Path) -> Result<Self, DemoError> {
        let space = Namespace::create(&format!("{prefix}-etcd"))?;
        space.ip_batch("link set lo up\nlink add br0 up type bridge\naddr add 10.9.0.254/24 dev br0\n")?;
        for (n, node) in nodes.iter().enumerate() {
            let far = node.name();
            space.ip_batch(&format!("link add m{n} up master br0 type veth peer name mgmt netns {far}\n"))?;
            node.ip_batch(&format!("link set mgmt up\naddr add 10.9.0.{}/24 dev mgmt\n", n + 1))?;
        }
        let mut store = Self { space, folder: folder.join("etcd"), child: None };
        store.start()?;
        Ok(store)
    }

    /// The section that names it in the configuration of node `n`.
    pub fn section(&self, n: usize) -> String {
        let copy = self.folder.with_extension(format!("copy{n}"));
        format!("[cluster.store]\netcd = ['{URL}']\nnode = {n}\ncopy = '{}'\n", copy.display())
    }

    /// Starts it, with the data that it had.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(&mut self) -> Result<(), DemoError> {
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(&self.folder);
        command.args(["--listen-client-urls", URL, "--advertise-client-urls", URL]);
        command.args(["--listen-peer-urls", "http://127.0.0.1:2380"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.space.confine(&mut command)?;
        self.child = Some(command.spawn().map_err(TestbedError::system("start etcd"))?);
        Ok(())
    }

    /// Kills it.
    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ended = child.kill();
            let _reaped = child.wait();
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.stop();
    }
}
