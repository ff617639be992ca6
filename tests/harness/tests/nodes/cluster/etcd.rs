//! etcd in a namespace of its own, which all routers of a mesh reach over an interface `mgmt`.

use crate::cluster::mesh::{Mesh, NODES};
use bm_tests::netns::Namespace;
use bm_tests::{report, sys};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// etcd with TLS. It ends when this is dropped.
pub struct Etcd {
    namespace: Namespace,
    folder: PathBuf,
    child: Option<Child>,
}

impl Etcd {
    /// Connects it to the routers and starts it; `None`, with a message, if it is not installed.
    pub fn start(test: &str, mesh: &Mesh) -> Option<Self> {
        if Command::new("etcd").arg("--version").stdout(Stdio::null()).status().is_err() {
            report::skip(test, "needs etcd (Debian: etcd-server)");
            return None;
        }
        let namespace = Namespace::new(test, "etcd");
        namespace.ip("link set lo up\nlink add br0 up type bridge\naddr add 10.9.0.254/24 dev br0\n");
        for n in 0..NODES {
            let far = mesh.routers[n].name();
            namespace.ip(&format!("link add m{n} up master br0 type veth peer name mgmt netns {far}\n"));
            mesh.routers[n].ip(&format!("link set mgmt up\naddr add 10.9.0.{}/24 dev mgmt\n", n + 1));
        }
        certificates(&mesh.folder);
        let mut etcd = Self { namespace, folder: mesh.folder.clone(), child: None };
        etcd.resume();
        Some(etcd)
    }

    /// The section of the configuration that names it.
    pub fn section(&self) -> String {
        let ca = self.folder.join("ca.pem");
        format!(
            "[cluster.store]\netcd = ['https://10.9.0.254:2379']\nca = '{}'\nprefix = '/test/'\n",
            ca.display()
        )
    }

    /// Starts it, with the data that it had.
    pub fn resume(&mut self) {
        let log = File::create(self.folder.join("etcd.log")).unwrap();
        let file = |name: &str| self.folder.join(name);
        let mut command = self.namespace.command("etcd");
        command.arg("--data-dir").arg(file("etcd")).args([
            "--listen-client-urls",
            "https://10.9.0.254:2379",
            "--advertise-client-urls",
            "https://10.9.0.254:2379",
            "--listen-peer-urls",
            "http://127.0.0.1:2380",
        ]);
        command.arg("--cert-file").arg(file("etcd.pem")).arg("--key-file").arg(file("etcd.key"));
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.child = Some(command.spawn().unwrap());
    }

    /// Kills it, as a crash would.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            sys::signal(child.id(), libc::SIGKILL).unwrap();
            child.wait().unwrap();
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ended = child.kill();
            let _reaped = child.wait();
        }
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.folder.join("etcd.log")).unwrap_or_default();
            eprintln!("etcd said:\n{}", log.lines().rev().take(20).collect::<Vec<_>>().join("\n"));
        }
    }
}

/// A certificate for etcd, signed by a CA of our own.
fn certificates(folder: &Path) {
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    std::fs::write(folder.join("ext"), "subjectAltName=IP:10.9.0.254\nbasicConstraints=CA:FALSE\n").unwrap();
    for line in [
        format!("req -x509 {key} -keyout ca.key -out ca.pem -subj /CN=ca -days 2"),
        format!("req -new {key} -keyout etcd.key -out etcd.csr -subj /CN=etcd"),
        "x509 -req -in etcd.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out etcd.pem"
            .into(),
    ] {
        let output = Command::new("openssl").args(line.split(' ')).current_dir(folder).output().unwrap();
        assert!(output.status.success(), "openssl {line}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
