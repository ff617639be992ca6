//! `brickmoon doctor`: what on this machine keeps packets off the fast path, each with the command that changes it.
//!
//! ```text
//! configuration, kernel, /proc/sys, interfaces, firewall ─► Facts ─► findings (a pure function) ─► text or JSON
//! ```
//!
//! It asks no daemon and changes nothing.

use std::fmt::Write as _;

use bm_cli::Failure;
use bm_control::config::{Config, Firewall};
use bm_daemon::Options;
use bm_daemon::plan::machine::Machine;
use bm_daemon::plan::{self, Request};
use bm_firewall::{LinuxOnlyOptions, LinuxOnlyWatch};
use bm_sys::{Interfaces, Offload};
use serde::Serialize;

/// The oldest kernel that the tests run on.
const KERNEL_MIN: (u32, u32) = (6, 1);
/// Huge pages of 2 MiB that hold the frames of a usual configuration.
const HUGE_PAGES: u64 = 64;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// As it should be.
    Ok,
    /// It works, but less well, or otherwise than one may expect.
    Note,
    /// Packets are not forwarded, or the daemon does not start.
    Problem,
}

/// Something that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub severity: Severity,
    pub what: String,
    /// The command or setting that changes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Finding {
    fn ok(what: impl Into<String>) -> Self {
        Self { severity: Severity::Ok, what: what.into(), fix: None }
    }

    fn note(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { severity: Severity::Note, what: what.into(), fix: Some(fix.into()) }
    }

    fn problem(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { severity: Severity::Problem, what: what.into(), fix: Some(fix.into()) }
    }
}

/// What findings depend on.
#[derive(Clone, Debug, Default)]
struct Facts {
    /// Version of the kernel, such as `6.12.3-amd64`.
    kernel: String,
    /// Whether the kernel has type information.
    btf: bool,
    net_admin: bool,
    /// IPv4 and IPv6 forwarding.
    forwarding: [bool; 2],
    /// Free huge pages, if workers need any.
    huge_pages: Option<u64>,
    /// The interfaces of ports, each with what is wrong with it and its reverse path filter.
    ports: Vec<PortFacts>,
    /// Packets left to Linux for its firewall, IPsec policies and traffic control, with the settings in `[firewall]`.
    linux_only: Vec<(String, &'static str)>,
    /// What the plan for the configuration warns of, or refuses.
    warnings: Vec<String>,
    refused: Option<String>,
}

#[derive(Clone, Debug, Default)]
struct PortFacts {
    name: String,
    exists: bool,
    ethernet: bool,
    /// Why the kernel path cannot use it.
    obstacle: Option<String>,
    /// The greater of `rp_filter` of the interface and of all.
    rp_filter: u8,
    /// Whether its card merges received packets.
    lro: bool,
    /// Whether its card strips VLAN tags, and VLAN interfaces need them.
    strips_tags: bool,
}

/// Looks at the machine for the configuration that `up` would have with these options; prints what it found.
///
/// # Errors
/// A configuration that cannot be read, or any problem.
pub fn run(options: &Options, json: bool) -> Result<(), Failure> {
    let findings = findings(&facts(options)?);
    let text = match json {
        true => serde_json::to_string(&findings).map_err(Failure::failed)? + "\n",
        false => text(&findings),
    };
    crate::output::write(&text)?;
    match findings.iter().filter(|finding| finding.severity == Severity::Problem).count() {
        0 => Ok(()),
        problems => Err(Failure::Failed(bm_cli::counted(problems as u64, "problem"))),
    }
}

fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let mark = match finding.severity {
            Severity::Ok => "ok",
            Severity::Note => "note",
            Severity::Problem => "problem",
        };
        let _written = writeln!(text, "{mark:7}  {}", finding.what);
        if let Some(fix) = &finding.fix {
            let _written = writeln!(text, "         -> {fix}");
        }
    }
    text
}

fn findings(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![kernel(&facts.kernel)];
    findings.push(match facts.btf {
        true => Finding::ok("the kernel has type information (BTF): `show drops` can show what Linux drops"),
        false => Finding::note(
            "the kernel has no type information (BTF): `show drops` cannot show what Linux drops",
            "use a kernel with CONFIG_DEBUG_INFO_BTF=y, as distributions have them",
        ),
    });
    if !facts.net_admin {
        findings.push(Finding::problem(
            "this process has no CAP_NET_ADMIN, which all ports need",
            "run it as root",
        ));
    }
    let settings = ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"];
    for (family, (setting, on)) in ["IPv4", "IPv6"].iter().zip(settings.into_iter().zip(facts.forwarding)) {
        findings.push(match on {
            true => Finding::ok(format!("{family} is forwarded")),
            false => Finding::problem(format!("{family} is not forwarded"), format!("sysctl -w {setting}=1")),
        });
    }
    if let Some(free) = facts.huge_pages.filter(|free| *free < HUGE_PAGES) {
        findings.push(Finding::note(
            format!("{free} huge pages are free: the frames of workers use normal pages, which are slower"),
            format!("sysctl -w vm.nr_hugepages={HUGE_PAGES}"),
        ));
    }
    facts.ports.iter().for_each(|facts| findings.extend(port(facts)));
    if facts.linux_only.is_empty() {
        findings.push(Finding::ok("no firewall, IPsec policy or traffic control concerns forwarded packets"));
    }
    for (why, setting) in &facts.linux_only {
        findings.push(Finding::note(
            format!("packets are left to Linux: {why}"),
            format!("remove it from Linux if it is not needed, or set {setting} = \"bypass\" in [firewall]"),
        ));
    }
    let check = "brickmoon check FILE";
    findings.extend(facts.warnings.iter().map(|warning| Finding::note(warning.clone(), check)));
    findings.extend(facts.refused.iter().map(|why| Finding::problem(why.clone(), check)));
    findings
}

fn kernel(version: &str) -> Finding {
    let mut numbers = version.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let (Some(major), Some(minor)) = (numbers.next(), numbers.next()) else {
        return Finding::note(
            format!("the version of the kernel is {version:?}, which is not a number"),
            "uname -r",
        );
    };
    let (least_major, least_minor) = KERNEL_MIN;
    match (major, minor) < KERNEL_MIN {
        true => Finding::problem(
            format!("Linux {version} is older than {least_major}.{least_minor}, the oldest that is tested"),
            "install a newer kernel",
        ),
        false => Finding::ok(format!("Linux {version}")),
    }
}

fn port(facts: &PortFacts) -> Vec<Finding> {
    let PortFacts { name, exists, ethernet, obstacle, rp_filter, lro, strips_tags } = facts;
    if !exists {
        return vec![Finding::problem(format!("interface {name} does not exist"), "ip link")];
    }
    if !ethernet {
        return vec![Finding::problem(plan::not_ethernet(name), format!("ip -d link show {name}"))];
    }
    let mut findings = Vec::new();
    match obstacle {
        None => findings.push(Finding::ok(format!("{name} can be on the kernel path"))),
        Some(why) => {
            // The text names the command where there is one.
            let fix =
                why.split('`').nth(1).map_or_else(|| format!("brickmoon up --path {name}=user"), Into::into);
            findings.push(Finding::note(format!("{name} cannot be on the kernel path: {why}"), fix));
        }
    }
    if *rp_filter == 1 {
        findings.push(Finding::note(
            format!("{name} has a strict reverse path filter: each source address is looked up, and packets that come from another interface are dropped"),
            format!("sysctl -w net.ipv4.conf.{name}.rp_filter=0 net.ipv4.conf.all.rp_filter=0"),
        ));
    }
    if *lro {
        findings.push(Finding::note(
            format!("{name} merges received TCP packets (LRO): merged packets cannot be forwarded unchanged, and many drivers refuse XDP while LRO is on"),
            format!("ethtool -K {name} lro off"),
        ));
    }
    if *strips_tags {
        findings.push(Finding::note(
            format!("{name} has VLAN interfaces, but strips VLAN tags before XDP sees them; `up` turns that off if the driver allows it"),
            format!("ethtool -K {name} rxvlan off"),
        ));
    }
    findings
}

fn facts(options: &Options) -> Result<Facts, Failure> {
    let (config, machine) = bm_daemon::described(options)?;
    let request = Request { file: options.config.as_deref(), named: &options.ports, may_grow: true };
    let (workers, warnings, refused) = match plan::plan(&config, &machine, &request) {
        // Those about ports are found again below, with their commands.
        Ok(plan) => {
            let others = plan.warnings.into_iter().filter(|warning| !warning.starts_with("port "));
            (plan.workers.is_some(), others.collect(), None)
        }
        Err(why) => (false, Vec::new(), Some(why.to_string())),
    };
    Ok(Facts {
        kernel: read("/proc/sys/kernel/osrelease"),
        btf: std::path::Path::new("/sys/kernel/btf/vmlinux").exists(),
        net_admin: machine.net_admin,
        forwarding: [
            read("/proc/sys/net/ipv4/ip_forward") == "1",
            read("/proc/sys/net/ipv6/conf/all/forwarding") == "1",
        ],
        huge_pages: workers.then(free_huge_pages),
        ports: ports(&config, &machine),
        linux_only: linux_only(),
        warnings,
        refused,
    })
}

fn free_huge_pages() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("HugePages_Free:"));
    line.and_then(|free| free.trim().parse().ok()).unwrap_or(0)
}

/// A file of the kernel with one line; empty if it cannot be read.
fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_string()
}

fn rp_filter(name: &str) -> u8 {
    read(&format!("/proc/sys/net/ipv4/conf/{name}/rp_filter")).parse().unwrap_or(0)
}

fn ports(config: &Config, machine: &Machine) -> Vec<PortFacts> {
    let interfaces = Interfaces::open().ok();
    let is_on = |name: &str, offload| {
        interfaces.as_ref().is_some_and(|interfaces| interfaces.offload(name, offload).unwrap_or(false))
    };
    let has_vlans = vlans_by_port(&read("/proc/net/vlan/config"));
    let mut ports = Vec::new();
    for name in config.ports.iter().filter_map(|port| port.device.interface()) {
        let interface = machine.interfaces.get(name);
        ports.push(PortFacts {
            name: name.into(),
            exists: interface.is_some(),
            ethernet: interface.is_some_and(|interface| interface.ethernet),
            obstacle: interface.and_then(|interface| interface.obstacle()),
            rp_filter: rp_filter(name).max(rp_filter("all")),
            lro: is_on(name, Offload::LargeReceive),
            strips_tags: has_vlans.iter().any(|port| port == name) && is_on(name, Offload::ReceiveVlan),
        });
    }
    ports
}

/// The interfaces that VLAN interfaces are on: the third column of /proc/net/vlan/config.
fn vlans_by_port(table: &str) -> Vec<String> {
    table.lines().skip(2).filter_map(|line| Some(line.split('|').nth(2)?.trim().to_string())).collect()
}

/// What the kernel's settings leave to Linux; nothing if they cannot be read.
fn linux_only() -> Vec<(String, &'static str)> {
    match LinuxOnlyWatch::open(LinuxOnlyOptions::default()) {
        Ok(watch) => {
            let mut all = Vec::new();
            for entry in watch.list() {
                let setting = Firewall::key(entry.feature).unwrap_or_default();
                all.push((format!("{}: {}", entry.feature, entry.why), setting));
            }
            all.dedup();
            all
        }
        Err(error) => vec![(format!("the kernel's settings cannot be read: {error}"), "nftables")],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Facts {
        let port = PortFacts { name: "r0".into(), exists: true, ethernet: true, ..PortFacts::default() };
        Facts {
            kernel: "6.12.3-amd64".into(),
            btf: true,
            net_admin: true,
            forwarding: [true; 2],
            huge_pages: Some(HUGE_PAGES),
            ports: vec![port],
            ..Facts::default()
        }
    }

    fn fixes(facts: &Facts, severity: Severity) -> Vec<String> {
        let found = findings(facts).into_iter().filter(|finding| finding.severity == severity);
        found.filter_map(|finding| finding.fix).collect()
    }

    #[test]
    fn a_good_machine_has_nothing_to_fix() {
        assert!(
            findings(&good()).iter().all(|finding| finding.severity == Severity::Ok),
            "{:?}",
            findings(&good())
        );
    }

    #[test]
    fn each_problem_has_its_command() {
        let facts = Facts { kernel: "5.10.0".into(), forwarding: [false, true], net_admin: false, ..good() };
        let found = fixes(&facts, Severity::Problem);
        assert_eq!(found, ["install a newer kernel", "run it as root", "sysctl -w net.ipv4.ip_forward=1"]);
        let missing = PortFacts { name: "r9".into(), ..PortFacts::default() };
        assert_eq!(fixes(&Facts { ports: vec![missing], ..good() }, Severity::Problem), ["ip link"]);
    }

    #[test]
    fn notes_name_the_command_of_the_reason() {
        let why = "the other end of r0 has GRO off: run `ethtool -K s0 gro on` there";
        let port = PortFacts { obstacle: Some(why.into()), rp_filter: 1, ..good().ports[0].clone() };
        let shaped = vec![("shaping: qdisc htb on r0".to_string(), "shaping")];
        let facts =
            Facts { ports: vec![port], linux_only: shaped, huge_pages: Some(0), btf: false, ..good() };
        let found = fixes(&facts, Severity::Note);
        assert_eq!(found.len(), 5, "{found:?}");
        assert_eq!(found[1], "sysctl -w vm.nr_hugepages=64");
        assert_eq!(found[2], "ethtool -K s0 gro on");
        assert!(
            found[3].contains("net.ipv4.conf.r0.rp_filter=0") && found[4].contains("shaping = \"bypass\"")
        );
    }

    #[test]
    fn offloads_that_hinder_have_their_commands() {
        let port = PortFacts { lro: true, strips_tags: true, ..good().ports[0].clone() };
        let found = fixes(&Facts { ports: vec![port], ..good() }, Severity::Note);
        assert_eq!(found, ["ethtool -K r0 lro off", "ethtool -K r0 rxvlan off"]);
        let table = "VLAN Dev name\t | VLAN ID\nName-Type: VLAN_NAME_TYPE_RAW_PLUS_VID_NO_PAD\n\
                     r0.7           | 7  | r0\n";
        assert_eq!(vlans_by_port(table), ["r0"]);
    }

    #[test]
    fn kernels_are_compared_by_number() {
        for (version, severity) in [
            ("6.1.0", Severity::Ok),
            ("6.18.44-fc", Severity::Ok),
            ("5.19.1", Severity::Problem),
            ("odd", Severity::Note),
        ] {
            assert_eq!(kernel(version).severity, severity, "{version}");
        }
    }
}
