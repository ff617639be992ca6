//! Two gateways with a net between them, and a host behind each.
//!
//! ```text
//! host a ─ lan, gateway 1, wan ═ m1, the net, m2 ═ wan, gateway 2, lan ─ host b
//! 10.1.0.2     192.0.2.1                            198.51.100.1       10.2.0.2
//! ```

use bm_tests::netns::Namespace;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

pub const ESP: u8 = 50;

/// The hosts, the gateways and the net between these, with IPv4; and a folder for files of the test.
pub struct Gateways {
    pub test: &'static str,
    pub a: Namespace,
    pub b: Namespace,
    pub gateways: [Namespace; 2],
    pub net: Namespace,
    pub folder: PathBuf,
}

impl Drop for Gateways {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.folder);
    }
}

impl Gateways {
    /// `queues` is for each interface, in the words of `ip link`; `settings` are further ones of the gateways.
    pub fn new(test: &'static str, queues: &str, settings: &[(&str, &str)]) -> Self {
        let namespace = |role: &str| Namespace::new(test, role);
        let folder = std::env::temp_dir().join(format!("bm-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder for configurations");
        let (a, b, net) = (namespace("a"), namespace("b"), namespace("net"));
        let gateways = [namespace("g1"), namespace("g2")];
        for (n, host) in [&a, &b].into_iter().enumerate() {
            let (gateway, lan, wan) = (&gateways[n], n + 1, ["192.0.2", "198.51.100"][n]);
            let peer =
                |name: &str| format!("{queues} type veth peer name {name} netns {} {queues}", gateway.name());
            gateway.set(settings);
            gateway.set(&[("net.ipv4.ip_forward", "1")]);
            host.ip(&format!("link add eth0 {}", peer("lan")));
            net.ip(&format!("link add m{lan} {}", peer("wan")));
            host.ip(&format!(
                "addr add 10.{lan}.0.2/24 dev eth0\nlink set eth0 up\nroute add default via 10.{lan}.0.1"
            ));
            net.ip(&format!("addr add {wan}.9/24 dev m{lan}\nlink set m{lan} up"));
            gateway.ip(&format!(
                "link set lo up\naddr add 10.{lan}.0.1/24 dev lan\nlink set lan up\naddr add {wan}.1/24 dev wan\n\
                 link set wan up\nroute add default via {wan}.9"
            ));
            // Nobody in the net completes the checksums of hosts.
            host.run("ethtool -K eth0 tx off");
        }
        net.set(&[("net.ipv4.ip_forward", "1")]);
        Self { test, a, b, gateways, net, folder }
    }

    /// The hosts, in the order of their gateways.
    pub fn hosts(&self) -> [&Namespace; 2] {
        [&self.a, &self.b]
    }

    /// Sends from one host to the other for as long as the action takes, and a bit longer.
    pub fn ping_during(&self, action: impl FnOnce()) {
        let mut pings = self.a.command("ping");
        pings.args(["-i", "0.002", "-s", "1000", "10.2.0.2"]).stdout(Stdio::null()).stderr(Stdio::null());
        let mut pings = pings.spawn().expect("there is ping");
        std::thread::sleep(Duration::from_millis(200));
        action();
        std::thread::sleep(Duration::from_millis(300));
        pings.kill().expect("it runs");
        pings.wait().expect("it runs");
    }
}
