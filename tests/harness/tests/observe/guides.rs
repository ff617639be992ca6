//! The guides of docs/guides: their commands are run in namespaces, and what they print is compared with the page.
//!
//! `<!-- lab: NAME: HOST INTERFACE, HOST INTERFACE -->` is a link, or a switch if more than two are on it. A block
//! ```` ```console ```` has commands after `HOST# `, each followed by its output; a block ```` ```toml HOST:/etc/FILE ````
//! is a file (of any language). tests/README.md says what may differ.

use bm_tests::binary::binary;
use bm_tests::command::{self, has};
use bm_tests::netns::Namespace;
use bm_tests::report;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a command is repeated until it prints what the page says.
const PATIENCE: Duration = Duration::from_secs(40);
/// Folders that each host has for itself.
const FOLDERS: [&str; 7] =
    ["/etc/frr", "/run", "/etc/brickmoon", "/etc/keepalived", "/etc/bird", "/etc/dnsmasq.d", "/var/lib/misc"];

/// Stands for systemd, which no namespace has: starts what a unit would, and ends it.
const SYSTEMCTL: &str = r#"#!/bin/sh
[ "$1" = enable ] && shift
[ "$1" = --now ] && shift && set -- start "$@"
# private FOLDER..: mounts empty folders that only this host sees.
private() {
    for folder in "$@"; do mkdir -p $folder && mount -t tmpfs tmpfs $folder || exit 1; done
}
# start COMMANDS READY: starts daemons, and waits until READY succeeds. They and what they start (containers, virtual
# machines) are in a process namespace of their own, and end with it even after `kill -9`.
start() {
    unshare --pid --fork --kill-child --mount-proc sh -c "$1; :" >/run/daemon.log 2>&1 &
    for try in $(seq 300); do
        $2 >/dev/null 2>&1 && exit 0
        sleep 0.1
    done
    cat /run/daemon.log
    exit 1
}
case "$1:$2" in
start:brickmoon)
    brickmoon up >/run/brickmoon.log 2>&1 &
    for try in $(seq 300); do
        grep -q '^ready: ' /run/brickmoon.log && exit 0
        sleep 0.1
    done
    cat /run/brickmoon.log
    exit 1 ;;
start:keepalived) exec keepalived -f /etc/keepalived/keepalived.conf -p /run/keepalived.pid ;;
stop:keepalived) exec kill "$(cat /run/keepalived.pid)" ;;
start:bird) mkdir -p /run/bird && exec bird -c /etc/bird/bird.conf ;;
start:frr)
    mkdir -p /run/frr && chown frr:frr /run/frr
    for daemon in zebra ospfd; do
        /usr/lib/frr/$daemon -d -f /etc/frr/frr.conf -i /run/frr/$daemon.pid || exit 1
    done ;;
start:dnsmasq) exec dnsmasq -C /etc/dnsmasq.d/lan.conf --user=root -x /run/dnsmasq.pid ;;
start:docker)
    private /etc/docker /var/lib/docker
    start "dockerd --cgroup-parent bm-guide" "docker version" ;;
start:libvirtd)
    private /etc/libvirt /var/lib/libvirt /var/log/libvirt /var/cache/libvirt
    printf 'security_driver = "none"\ncgroup_controllers = []\n' >/etc/libvirt/qemu.conf
    start "virtlogd -d; libvirtd" "virsh version" ;;
reload:brickmoon) exec brickmoon reload ;;
*) echo "systemctl $*: the test does not know this" >&2; exit 1 ;;
esac
"#;

/// A host of a guide: a network namespace, with a process that keeps a mount namespace.
struct Host {
    namespace: Namespace,
    holder: Child,
}

impl Host {
    fn new(guide: &str, name: &str, tools: &Path) -> Self {
        let namespace = Namespace::new(&format!("guide-{guide}"), name);
        let mut script = String::from("mount --make-rprivate /\n");
        for folder in FOLDERS {
            let _written = writeln!(script, "mkdir -p {folder} && mount -t tmpfs tmpfs {folder}");
        }
        script += "ip link set lo up\ntouch /run/ready\nexec sleep 1000\n";
        let mut command = namespace.command("unshare");
        command.args(["--mount", "sh", "-c", &script]).stdin(Stdio::null());
        let host = Self { holder: command.spawn().expect("unshare runs"), namespace };
        let begin = Instant::now();
        while !host.run(tools, "test -e /run/ready && test -d /etc/brickmoon").0 {
            assert!(begin.elapsed() < PATIENCE, "{name} is not ready");
            std::thread::sleep(Duration::from_millis(20));
        }
        host
    }

    /// Runs a command line; returns whether it succeeded, and what it printed.
    fn run(&self, tools: &Path, line: &str) -> (bool, String) {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.holder.id().to_string(), "-m", "-n", "sh", "-c", &format!("{line} 2>&1")]);
        let path = std::env::var("PATH").unwrap_or_default();
        let own = binary().and_then(|binary| Some(binary.parent()?.to_path_buf())).unwrap_or_default();
        command.env("PATH", format!("{}:{}:{path}", tools.display(), own.display())).env("LC_ALL", "C");
        let output = command::run(line, &mut command, Duration::from_secs(60)).expect("it ends");
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Daemons that a guide has started.
        let output = Command::new("ip").args(["netns", "pids", self.namespace.name()]).output();
        let text =
            output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        for process in text.split_whitespace() {
            let _gone = Command::new("kill").args(["-9", process]).output();
        }
        let _ended = self.holder.wait();
    }
}

/// What a page has, in order.
#[derive(Debug)]
enum Step {
    File { host: String, path: String, content: String },
    Command { line: usize, host: String, command: String, output: Vec<String> },
}

/// A page, taken apart.
#[derive(Debug, Default)]
struct Guide {
    /// Names of links, and the hosts with their interfaces on each.
    links: Vec<(String, Vec<(String, String)>)>,
    steps: Vec<Step>,
}

impl Guide {
    fn parse(text: &str) -> Self {
        let mut guide = Self::default();
        let mut lines = text.lines().enumerate();
        while let Some((_, line)) = lines.next() {
            if let Some(lab) = line.strip_prefix("<!-- lab: ") {
                let (name, ends) = lab.trim_end_matches(" -->").split_once(": ").expect("NAME: ENDS");
                let end = |end: &str| end.trim().split_once(' ').map(|(host, on)| (host.into(), on.into()));
                guide.links.push((
                    name.into(),
                    ends.split(',').map(|one| end(one).expect("HOST INTERFACE")).collect(),
                ));
            }
            let Some(kind) = line.strip_prefix("```").filter(|kind| !kind.is_empty()) else { continue };
            let block = lines.by_ref().take_while(|(_, line)| *line != "```");
            if kind == "console" {
                guide.add_commands(block);
            } else if let Some((host, path)) = kind.split_once(' ').and_then(|(_, file)| file.split_once(':'))
            {
                let content = block.map(|(_, line)| line.to_string() + "\n").collect();
                guide.steps.push(Step::File { host: host.into(), path: path.into(), content });
            } else {
                block.for_each(drop);
            }
        }
        guide
    }

    fn add_commands<'a>(&mut self, block: impl Iterator<Item = (usize, &'a str)>) {
        for (at, text) in block {
            match (text.split_once("# "), self.steps.last_mut()) {
                (Some((host, command)), _) if host.chars().all(char::is_alphanumeric) => {
                    let (host, command) = (host.to_string(), command.to_string());
                    self.steps.push(Step::Command { line: at + 1, host, command, output: Vec::new() });
                }
                (_, Some(Step::Command { output, .. })) => output.push(text.into()),
                _ => panic!("line {}: output without a command", at + 1),
            }
        }
    }

    fn hosts(&self) -> Vec<&str> {
        let mut hosts: Vec<&str> =
            self.links.iter().flat_map(|(_, ends)| ends.iter().map(|(host, _)| host.as_str())).collect();
        hosts.sort_unstable();
        hosts.dedup();
        hosts
    }
}

/// Creates the links between hosts, and the namespace with the switches.
fn connect(guide: &Guide, name: &str, hosts: &BTreeMap<&str, Host>) -> Namespace {
    let switches = Namespace::new(&format!("guide-{name}"), "sw");
    for (number, (_, ends)) in guide.links.iter().enumerate() {
        switches.ip(&format!("link add br{number} type bridge\nlink set br{number} up\n"));
        for (at, (host, interface)) in ends.iter().enumerate() {
            let (port, namespace) = (format!("p{number}x{at}"), hosts[host.as_str()].namespace.name());
            switches.ip(&format!(
                "link add {port} type veth peer name {interface} netns {namespace}\nlink set {port} master br{number} up\n"
            ));
            // XDP sends to a veth only if its other end receives by NAPI.
            switches.run(&format!("ethtool -K {port} gro on"));
            hosts[host.as_str()].namespace.ip(&format!("link set {interface} up\n"));
        }
    }
    switches
}

/// Whether a printed line is the one of the page: words may differ in their digits, unless they are addresses.
fn is_same(page: &str, printed: &str) -> bool {
    let plain = |word: &str| -> String {
        if word.matches('.').count() >= 3 || word.contains("::") {
            return word.into();
        }
        let mut shape = String::new();
        for letter in word.chars() {
            let letter = if letter.is_ascii_digit() || ",.".contains(letter) { '#' } else { letter };
            if letter != '#' || !shape.ends_with('#') {
                shape.push(letter);
            }
        }
        shape
    };
    let words = |line: &str| line.split_whitespace().map(plain).collect::<Vec<_>>();
    words(page) == words(printed)
}

/// Whether the output is that of the page. A line `...` stands for any number of lines.
fn matches(page: &[String], printed: &[&str]) -> bool {
    match page.split_first() {
        None => printed.is_empty(),
        Some((line, rest)) if line == "..." => (0..=printed.len()).any(|at| matches(rest, &printed[at..])),
        Some((line, rest)) => {
            printed.split_first().is_some_and(|(first, others)| is_same(line, first) && matches(rest, others))
        }
    }
}

fn run(step: &Step, hosts: &BTreeMap<&str, Host>, tools: &Path, page: &str) {
    match step {
        Step::File { host, path, content } => {
            let host = &hosts[host.as_str()];
            let file = tools.join("file");
            std::fs::write(&file, content).expect("a file");
            let (ok, said) =
                host.run(tools, &format!("mkdir -p $(dirname {path}) && cp {} {path}", file.display()));
            assert!(ok, "{page}: {path}: {said}");
        }
        Step::Command { line, host, command, output } => {
            let host =
                hosts.get(host.as_str()).unwrap_or_else(|| panic!("{page}, line {line}: no host {host}"));
            let begin = Instant::now();
            loop {
                let (ok, said) = host.run(tools, command);
                let printed: Vec<&str> = said.lines().collect();
                // A command without output in the page may print what it likes, once.
                if output.is_empty() {
                    assert!(ok, "{page}, line {line}: `{command}` fails:\n{said}");
                    return;
                }
                if ok && matches(output, &printed) {
                    return;
                }
                let expected = output.join("\n");
                assert!(
                    begin.elapsed() < PATIENCE,
                    "{page}, line {line}: `{command}` prints\n{said}\ninstead of\n{expected}"
                );
                std::thread::sleep(Duration::from_millis(500));
            }
        }
    }
}

/// Runs a page, if these programs are installed.
fn follow(name: &str, programs: &[&str]) {
    let test = format!("guide {name}");
    if binary().is_none() {
        return report::skip(&test, "there is no binary");
    }
    if let Some(missing) = programs.iter().find(|program| !has(program)) {
        return report::skip(&test, &format!("{missing} is not installed"));
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../docs/guides/{name}.md"));
    let text = std::fs::read_to_string(&page).unwrap_or_else(|error| panic!("{}: {error}", page.display()));
    let guide = Guide::parse(&text);
    let tools: PathBuf = std::env::temp_dir().join(format!("bm-guide-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&tools).expect("a folder");
    for (tool, script) in [("systemctl", SYSTEMCTL), ("apt", "#!/bin/sh\nexit 0\n")] {
        std::fs::write(tools.join(tool), script).expect("a file");
        let made = Command::new("chmod").arg("755").arg(tools.join(tool)).status();
        assert!(made.is_ok_and(|status| status.success()));
    }
    let hosts: BTreeMap<&str, Host> =
        guide.hosts().into_iter().map(|host| (host, Host::new(name, host, &tools))).collect();
    let _switches = connect(&guide, name, &hosts);
    guide.steps.iter().for_each(|step| run(step, &hosts, &tools, name));
    drop(hosts);
    let _gone = std::fs::remove_dir_all(&tools);
}

#[test]
fn a_router_from_bare_debian() {
    follow("debian-router", &["ping", "ethtool"]);
}

#[test]
fn dnsmasq() {
    follow("dnsmasq", &["dnsmasq", "busybox", "ethtool"]);
}

#[test]
fn keepalived() {
    follow("keepalived", &["keepalived", "ping", "ethtool"]);
}

#[test]
fn frr() {
    follow("frr", &["vtysh", "ping", "ethtool"]);
}

#[test]
fn bird() {
    follow("bird", &["bird", "birdc", "ping", "ethtool"]);
}

/// Whether a program is installed in another version than that of the page, whose output would differ.
fn differs(program: &str, version: &str) -> bool {
    let output = Command::new(program).arg("--version").output();
    output.is_ok_and(|output| !String::from_utf8_lossy(&output.stdout).contains(version))
}

/// Removes the control groups of containers when it is dropped: they stay after their processes have ended.
struct ControlGroups;

impl Drop for ControlGroups {
    fn drop(&mut self) {
        let script = "for try in $(seq 50); do
                find /sys/fs/cgroup -depth -type d -path '*/bm-guide*' -exec rmdir {} + && exit
                sleep 0.1
            done";
        let _removed = Command::new("sh").args(["-c", script]).output();
    }
}

#[test]
fn docker() {
    if differs("dockerd", "version 20.10.") {
        return report::skip("guide docker", "dockerd is not 20.10");
    }
    let _groups = ControlGroups;
    follow("docker", &["dockerd", "docker", "iptables", "busybox", "ping", "ethtool"]);
}

#[test]
fn libvirt() {
    if differs("libvirtd", " 9.0.") {
        return report::skip("guide libvirt", "libvirtd is not 9.0");
    }
    let programs =
        ["libvirtd", "virsh", "qemu-system-x86_64", "iptables", "dnsmasq", "busybox", "ping", "ethtool"];
    follow("libvirt", &programs);
}

#[test]
fn from_vpp() {
    follow("from-vpp", &["busybox", "ping", "ethtool"]);
}

#[test]
fn outputs_are_compared_with_the_page() {
    let page = |lines: &[&str]| lines.iter().map(|line| (*line).to_string()).collect::<Vec<_>>();
    assert!(matches(&page(&["...", "r0  1,094 up"]), &["PORT", "r0 7 up"]));
    assert!(!matches(&page(&["r0 up", "..."]), &["PORT", "r0 up"]));
    assert!(matches(&page(&["...", "b", "..."]), &["a", "b"]));
    assert!(
        !is_same("via 10.0.0.1", "via 10.0.0.2") && is_same("ttl 64", "ttl 63") && !is_same("up", "down")
    );
    let guide = Guide::parse(
        "<!-- lab: lan: pc eth0, r lan -->\n```console\nr# echo 1\n1\n```\n```ini r:/etc/x\ny\n```\n",
    );
    assert_eq!((guide.hosts(), guide.steps.len()), (vec!["pc", "r"], 2));
}
