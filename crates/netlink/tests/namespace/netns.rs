//! A network namespace that is deleted at the end of a test. The tests of `bm-firewall` use it, too.

use std::process::Command;

/// A network namespace, deleted when dropped.
pub struct Namespace {
    pub name: String,
}

impl Namespace {
    /// Creates one; `None`, with a message, without root.
    pub fn new(tag: &str) -> Option<Self> {
        if bm_sys::effective_user() != 0 {
            eprintln!("skipped: {tag} needs root to make network namespaces");
            return None;
        }
        let name = format!("bm-netlink-{tag}-{}", std::process::id());
        let made = Command::new("ip").args(["netns", "add", &name]).status().unwrap();
        assert!(made.success(), "ip netns add {name} failed");
        Some(Self { name })
    }

    /// Runs `ip` in it.
    pub fn ip(&self, arguments: &str) {
        assert!(self.try_ip(arguments), "ip {arguments} failed");
    }

    /// Runs `ip` in it; returns whether it succeeded.
    pub fn try_ip(&self, arguments: &str) -> bool {
        let mut command = Command::new("ip");
        command.args(["-n", &self.name]).args(arguments.split_whitespace());
        let output = command.output().unwrap();
        if !output.status.success() {
            eprintln!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        output.status.success()
    }

    /// Runs `ip` in it; returns its output.
    pub fn ip_output(&self, arguments: &str) -> String {
        let output =
            Command::new("ip").args(["-n", &self.name]).args(arguments.split_whitespace()).output().unwrap();
        assert!(output.status.success(), "ip {arguments} failed");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command in it.
    pub fn run(&self, command: &str) -> bool {
        let mut ip = Command::new("ip");
        ip.args(["netns", "exec", &self.name]).args(command.split_whitespace());
        ip.output().unwrap().status.success()
    }

    /// Runs a shell command in it. Returns whether it succeeded, and prints its error output if not.
    pub fn shell(&self, line: &str) -> bool {
        let mut ip = Command::new("ip");
        ip.args(["netns", "exec", &self.name, "sh", "-c", line]);
        let output = ip.output().unwrap();
        if !output.status.success() {
            eprintln!("{line}: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        output.status.success()
    }

    /// Moves the calling thread into it. Each test has a thread of its own.
    pub fn enter(&self) {
        let file = std::fs::File::open(format!("/run/netns/{}", self.name)).unwrap();
        bm_sys::Namespace::Network.enter(&file).unwrap();
    }

    /// Two veth pairs `a`/`a2` and `b`/`b2`, all up; `a` has 192.0.2.1/24 and 2001:db8:a::1/64, `b` has
    /// 198.51.100.1/24 and 2001:db8:b::1/64.
    pub fn with_links(self) -> Self {
        self.ip("link set lo up");
        for (name, peer, four, six) in [
            ("a", "a2", "192.0.2.1/24", "2001:db8:a::1/64"),
            ("b", "b2", "198.51.100.1/24", "2001:db8:b::1/64"),
        ] {
            self.ip(&format!("link add name {name} type veth peer name {peer}"));
            self.ip(&format!("link set dev {peer} up"));
            self.ip(&format!("link set dev {name} up"));
            self.ip(&format!("addr add {four} dev {name}"));
            self.ip(&format!("addr add {six} dev {name} nodad"));
        }
        self
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}
