//! Functions at netfilter's hooks that belong to nothing else that is followed: modules, IPVS.
//!
//! The kernel lists its hooks if it has `NETFILTER_NETLINK_HOOK`, but sends no events for changes, so they are
//! polled. Known functions are skipped: those of nftables and iptables (their rules are read), those of connection
//! tracking (rules that need it count already), and those of security modules, which judge routed packets only by
//! labels that such rules or IPsec policies gave them.

use super::Feature;
use super::condition::Families;
use super::entries::Entries;
use super::names::Names;
use super::part::{Part, Unreadable};
use bm_netlink::attribute::{self, Attributes};
use bm_netlink::dump::{self, Dumped, is_absent};
use bm_netlink::error::{Error, Malformed};
use bm_netlink::message::Raw;
use bm_netlink::socket::Socket;
use bm_wire::Family;
use netlink_sys::protocols::NETLINK_NETFILTER;
use std::time::Duration;

/// Time between two looks.
const EVERY: Duration = Duration::from_millis(90);
/// The message type for hooks.
const HOOK: u16 = 12 << 8;
/// Fixed part of a message: `struct nfgenmsg`.
const HEADER: usize = 4;
/// Attributes.
mod nfnla {
    pub(crate) const HOOKNUM: u16 = 1;
    pub const FUNCTION: u16 = 4;
    pub const MODULE: u16 = 5;
}
/// Hooks of routed packets and of ICMP errors about them, by number.
const HOOKS: [(u32, &str); 4] = [(0, "prerouting"), (2, "forward"), (3, OUTPUT), (4, "postrouting")];
/// The hook that only ICMP errors about routed packets pass.
const OUTPUT: &str = "output";
/// Prefixes of functions whose effect is known from elsewhere.
const KNOWN: [&str; 21] = [
    "nft_",
    "nf_tables",
    "nf_nat",
    "nf_conntrack",
    "nf_confirm",
    "nf_hook_run_bpf",
    "nf_flow_offload",
    "iptable_",
    "ip6table_",
    "ipt_do_table",
    "ip6t_do_table",
    "ipv4_conntrack",
    "ipv6_conntrack",
    "ipv4_confirm",
    "ipv6_confirm",
    "ipv4_helper",
    "ipv6_helper",
    "ipv6_defrag",
    "selinux_ip",
    "apparmor_ip",
    "smack_ip",
];

/// A function at a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Function {
    family: Family,
    hook: &'static str,
    name: Box<str>,
    module: Box<str>,
}

/// The functions of others.
#[derive(Debug, Default)]
pub(super) struct Hooks {
    socket: Option<Socket>,
    functions: Vec<Function>,
    /// The kernel has no such list.
    absent: bool,
}

impl Part for Hooks {
    fn feature(&self) -> Feature {
        Feature::Netfilter
    }

    fn title(&self) -> &'static str {
        "the list of netfilter's hooks"
    }

    fn poll_interval(&self) -> Option<Duration> {
        (!self.absent).then_some(EVERY)
    }

    fn read(&mut self, _: &Names) -> Result<bool, Unreadable> {
        let socket =
            self.socket.take().map_or_else(|| dump::open(NETLINK_NETFILTER), |socket| Ok(Some(socket)));
        let Some(mut socket) = socket? else {
            self.absent = true;
            return Ok(false);
        };
        let mut functions = Vec::new();
        for family in Family::BOTH {
            for (number, hook) in HOOKS {
                match read(&mut socket, family, number, hook, &mut functions) {
                    Ok(()) => {}
                    Err(error) if is_absent(&error) => {
                        self.absent = true;
                        return Ok(false);
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
        self.socket = Some(socket);
        let changed = self.functions != functions;
        self.functions = functions;
        Ok(changed)
    }

    fn analyse(&self, _: &Names, entries: &mut Entries) {
        for Function { family, hook, name, module } in &self.functions {
            let families = Families::only(*family);
            let traffic = if *hook == OUTPUT { families.errors() } else { families.all() };
            let of = if module.is_empty() { String::new() } else { format!(" of module {module}") };
            entries.add(Feature::Netfilter, traffic, || {
                format!("function {name}{of} at netfilter's hook {hook}")
            });
        }
    }
}

/// Adds the unknown functions of one hook.
fn read(
    socket: &mut Socket,
    family: Family,
    number: u32,
    hook: &'static str,
    functions: &mut Vec<Function>,
) -> Result<(), Error> {
    let mut body = vec![family.number(), 0, 0, 0];
    attribute::put(&mut body, nfnla::HOOKNUM, &number.to_be_bytes());
    // A list that changes meanwhile is read again soon.
    let _whole: Dumped = dump::dump(socket, "list netfilter hooks", HOOK, &body, |raw| {
        functions.extend(function(raw, family, hook)?);
        Ok(())
    })?;
    Ok(())
}

/// The function in a message, unless it is known.
fn function(raw: &Raw<'_>, family: Family, hook: &'static str) -> Result<Option<Function>, Malformed> {
    let (name, module) = (text(raw, nfnla::FUNCTION)?, text(raw, nfnla::MODULE)?);
    let known = KNOWN.iter().any(|known| name.starts_with(known)) || module.starts_with("nf_defrag");
    Ok((!known).then_some(Function { family, hook, name, module }))
}

fn text(raw: &Raw<'_>, kind: u16) -> Result<Box<str>, Malformed> {
    let found = Attributes::after_header(raw.body, HEADER).find(kind)?;
    Ok(found.map(attribute::text).unwrap_or_default())
}

/// Virtual services of IPVS, which the kernel lists in a file.
#[derive(Debug, Default)]
pub(super) struct Ipvs {
    in_use: bool,
}

impl Part for Ipvs {
    fn feature(&self) -> Feature {
        Feature::Netfilter
    }

    fn title(&self) -> &'static str {
        "the list of IPVS services"
    }

    fn poll_interval(&self) -> Option<Duration> {
        Some(EVERY)
    }

    fn read(&mut self, _: &Names) -> Result<bool, Unreadable> {
        // Without the file there is no IPVS.
        let services = std::fs::read_to_string("/proc/thread-self/net/ip_vs").unwrap_or_default();
        let in_use = has_service(&services);
        let changed = self.in_use != in_use;
        self.in_use = in_use;
        Ok(changed)
    }

    fn analyse(&self, _: &Names, entries: &mut Entries) {
        if self.in_use {
            let all = Families::BOTH.all();
            entries.add(Feature::Netfilter, all, || "IPVS has a virtual service".into());
        }
    }
}

/// Whether the list contains a service, after its three lines of headings.
fn has_service(list: &str) -> bool {
    list.lines().any(|line| ["TCP ", "UDP ", "SCTP", "FWM "].iter().any(|kind| line.starts_with(kind)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_netlink::message::HEADER as NETLINK;

    /// A hook as the kernel lists it.
    fn hook(function: &str, module: &str) -> Vec<u8> {
        let mut body = vec![2, 0, 0, 2];
        attribute::put(&mut body, nfnla::FUNCTION, format!("{function}\0").as_bytes());
        attribute::put(&mut body, nfnla::MODULE, format!("{module}\0").as_bytes());
        body
    }

    fn read_one(function_name: &str, module: &str) -> Option<Function> {
        let body = hook(function_name, module);
        let raw = Raw { kind: HOOK, flags: 0, sequence: NETLINK as u32, port: 0, body: &body };
        function(&raw, Family::V4, "forward").unwrap()
    }

    #[test]
    fn foreign_hook_functions_count_and_known_ones_do_not() {
        for (name, module) in [
            ("nft_do_chain_ipv4", "nf_tables"),
            ("ipv4_conntrack_defrag", "nf_defrag_ipv4"),
            ("ipt_do_table", "ip_tables"),
            ("selinux_ip_forward", ""),
        ] {
            assert_eq!(read_one(name, module), None, "{name}");
        }
        let found = read_one("ip_vs_forward_icmp", "ip_vs").unwrap();
        assert_eq!((&*found.name, &*found.module), ("ip_vs_forward_icmp", "ip_vs"));
    }

    #[test]
    fn a_list_with_only_headings_has_no_service() {
        let headings = "IP Virtual Server version 1.2.1 (size=4096)\nProt LocalAddress:Port Scheduler Flags\n  \
                        -> RemoteAddress:Port Forward Weight ActiveConn InActConn\n";
        assert!(!has_service(headings) && !has_service(""));
        assert!(has_service(&format!("{headings}TCP  C0000201:0050 rr  \n")));
    }
}
