//! With FRR's zebra, which creates next-hop objects and deletes them again.

use super::netns::Namespace;
use super::support::{agrees, alone, settle, until, watch};
use std::fmt::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

const DAEMONS: &str = "/usr/lib/frr";
/// Few, since staticd takes seconds of CPU time to read a few thousand.
const ROUTES: usize = 200;

/// FRR's daemons in a namespace, ended when dropped.
struct Frr {
    folder: PathBuf,
}

impl Frr {
    /// `None`, with a message, if FRR is not installed.
    fn start(namespace: &Namespace, configuration: &str) -> Option<Self> {
        if !PathBuf::from(DAEMONS).join("zebra").exists() {
            eprintln!("skipped: FRR is not installed");
            return None;
        }
        let frr = Self { folder: std::env::temp_dir().join(&namespace.name) };
        std::fs::create_dir_all(&frr.folder).unwrap();
        std::fs::write(frr.folder.join("staticd.conf"), configuration).unwrap();
        std::fs::write(frr.folder.join("zebra.conf"), "").unwrap();
        // The daemons drop root privileges.
        assert!(Command::new("chown").args(["-R", "frr"]).arg(&frr.folder).status().unwrap().success());
        for daemon in ["zebra", "staticd"] {
            let folder = frr.folder.display();
            let command = format!(
                "{DAEMONS}/{daemon} -d --vty_socket {folder} -i {folder}/{daemon}.pid \
                 -z {folder}/zserv.api -f {folder}/{daemon}.conf"
            );
            assert!(namespace.run(&command), "{command}");
            // Without zebra, a daemon tries again only much later.
            let socket = frr.folder.join("zserv.api");
            (0..100)
                .take_while(|_| !socket.exists())
                .for_each(|_| std::thread::sleep(Duration::from_millis(50)));
        }
        Some(frr)
    }
}

impl Drop for Frr {
    fn drop(&mut self) {
        for (daemon, signal) in [("staticd", "-KILL"), ("zebra", "-TERM")] {
            if let Ok(id) = std::fs::read_to_string(self.folder.join(format!("{daemon}.pid"))) {
                let _ = Command::new("kill").args([signal, id.trim()]).status();
            }
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn zebra_starts_links_flap_and_zebra_ends() {
    let Some(namespace) = Namespace::new("frr").map(Namespace::with_links) else { return };
    let mut configuration = String::new();
    for index in 0..ROUTES {
        let (x, y) = (index / 256, index % 256);
        writeln!(configuration, "ip route 10.{x}.{y}.0/24 192.0.2.{}", 2 + index % 5).unwrap();
        if index % 2 == 0 {
            writeln!(configuration, "ip route 10.{x}.{y}.0/24 198.51.100.2").unwrap();
        }
        writeln!(configuration, "ipv6 route 2001:db8:{index:x}::/48 2001:db8:a::{:x}", 2 + index % 3)
            .unwrap();
    }
    namespace.enter();
    let mut watch = watch(alone());
    let before = watch.mirror().ipv4().len();
    let Some(frr) = Frr::start(&namespace, &configuration) else { return };
    until(&mut watch, "zebra's routes", |mirror| {
        mirror.ipv4().len() == before + ROUTES && mirror.ipv6().len() > ROUTES
    });
    agrees(&mut watch, "zebra");
    assert!(watch.mirror().next_hops().count() > 8);
    for command in ["link set dev b down", "link set dev b up", "link set dev a2 down", "link set dev a2 up"]
    {
        namespace.ip(command);
        agrees(&mut watch, command);
    }
    settle(&mut watch);
    drop(frr);
    until(&mut watch, "the end of zebra", |mirror| mirror.ipv4().len() == before);
    agrees(&mut watch, "the end of zebra");
}
