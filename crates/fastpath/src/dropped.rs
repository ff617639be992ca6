//! What Linux dropped of the packets that came in on ports, by the reasons of the kernel itself.
//!
//! ```text
//! tracepoint skb:kfree_skb ─► bpf/dropped.bpf.c: map dropped ─► [`DropMonitor::read`] ─► `show drops`, metrics
//! daemon: interfaces of ports ─► map ports ─┘        names of reasons: BTF of the running kernel
//! ```
//!
//! The program runs only for packets that Linux drops. It sees all of the machine, and counts those of our interfaces.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Enum;
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder};

/// The object file, made by the build script.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/dropped.bpf.o"));
/// The section with the number of the network namespace.
const NAMESPACE: &str = ".rodata.namespace";
/// The kernel's type with the names of reasons, and what these start with.
const REASONS: &str = "skb_drop_reason";
const PREFIX: &str = "SKB_DROP_REASON_";
/// Reasons above this are those of a subsystem, such as Wi-Fi.
const SUBSYSTEM_SHIFT: u32 = 16;
/// Length of a key: `struct key` of dropped.bpf.c.
const KEY: usize = 12;

/// Why Linux dropped a packet, in the words of `show drops`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinuxCause {
    NoRoute,
    Blackhole,
    Unreachable,
    Prohibit,
    Ttl,
    ReversePath,
    Neighbor,
    Firewall,
    TrafficControl,
    Ipsec,
    TooBig,
    Header,
    OtherHost,
    Protocol,
    Socket,
    Other,
}

impl LinuxCause {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::NoRoute,
        Self::Blackhole,
        Self::Unreachable,
        Self::Prohibit,
        Self::Ttl,
        Self::ReversePath,
        Self::Neighbor,
        Self::Firewall,
        Self::TrafficControl,
        Self::Ipsec,
        Self::TooBig,
        Self::Header,
        Self::OtherHost,
        Self::Protocol,
        Self::Socket,
        Self::Other,
    ];

    /// The name in `show drops` and in metrics.
    pub fn name(self) -> &'static str {
        self.text().0
    }

    /// The meaning, as `show drops` prints it.
    pub fn meaning(self) -> &'static str {
        self.text().1
    }

    fn text(self) -> (&'static str, &'static str) {
        match self {
            Self::NoRoute => ("no_route", "no route to the destination"),
            Self::Blackhole => ("blackhole", "blackhole route"),
            Self::Unreachable => ("unreachable", "unreachable route"),
            Self::Prohibit => ("prohibit", "prohibit route"),
            Self::Ttl => ("ttl_exceeded", "TTL or hop limit expired"),
            Self::ReversePath => {
                ("reverse_path", "source address that fails rp_filter, or that no host can have")
            }
            Self::Neighbor => {
                ("neighbor_unresolved", "the next hop did not answer ARP or neighbor discovery")
            }
            Self::Firewall => ("firewall", "a rule of nftables or iptables: `nft list ruleset`"),
            Self::TrafficControl => {
                ("traffic_control", "a queue or filter of traffic control: `tc -s qdisc`")
            }
            Self::Ipsec => ("ipsec_policy", "an IPsec policy of the kernel: `ip xfrm policy`"),
            Self::TooBig => ("too_big", "larger than the MTU, and must not be fragmented"),
            Self::Header => ("header", "malformed, or an option that Linux does not accept"),
            Self::OtherHost => ("other_host", "destination MAC address of another host"),
            Self::Protocol => ("protocol", "a protocol that nothing on this machine handles"),
            Self::Socket => ("socket", "for this machine, where no socket accepts it"),
            Self::Other => ("other", "another reason of the kernel, shown in parentheses"),
        }
    }

    /// The cause for a reason of the kernel, the error of the packet's route and whether its TTL is used up.
    fn of(reason: &str, route: u16, expired: bool) -> Self {
        // A firewall may decide before there is a route, or in spite of one.
        if reason == "NETFILTER_DROP" {
            return Self::Firewall;
        }
        match i32::from(route) {
            libc::EINVAL => return Self::Blackhole,
            libc::EACCES => return Self::Prohibit,
            libc::EHOSTUNREACH => return Self::Unreachable,
            libc::ENETUNREACH => return Self::NoRoute,
            _ => {}
        }
        match reason {
            "IP_INNOROUTES" | "IP_OUTNOROUTES" => Self::NoRoute,
            "IP_INHDR" if expired => Self::Ttl,
            "IP_RPFILTER" | "IP_LOCAL_SOURCE" | "IP_INVALID_SOURCE" => Self::ReversePath,
            "XFRM_POLICY" => Self::Ipsec,
            "PKT_TOO_BIG" => Self::TooBig,
            "OTHERHOST" => Self::OtherHost,
            "UNHANDLED_PROTO" | "IP_NOPROTO" => Self::Protocol,
            "NO_SOCKET" | "SOCKET_RCVBUFF" | "SOCKET_FILTER" | "UDP_CSUM" | "SOCKET_BACKLOG" => Self::Socket,
            "TC_INGRESS" | "TC_EGRESS" | "QDISC_DROP" | "FULL_RING" | "CPU_BACKLOG" => Self::TrafficControl,
            "IP_INHDR" | "IP_CSUM" | "PKT_TOO_SMALL" | "HDR_TRUNC" | "IPV6_BAD_EXTHDR" | "SKB_CSUM" => {
                Self::Header
            }
            reason if reason.starts_with("NEIGH_") => Self::Neighbor,
            reason if reason.starts_with("QDISC_") => Self::TrafficControl,
            reason if reason.starts_with("TCP_") => Self::Socket,
            _ => Self::Other,
        }
    }
}

/// Packets that Linux dropped on one interface for one reason.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DroppedByLinux {
    /// Index of the interface in Linux.
    pub ifindex: u32,
    pub cause: LinuxCause,
    /// The kernel's name of the reason, such as `NETFILTER_DROP`.
    pub reason: String,
    pub frames: u64,
}

/// The attached program with its counters.
pub struct DropMonitor {
    ports: MapHandle,
    dropped: MapHandle,
    /// The interfaces that are counted now.
    counted: BTreeSet<u32>,
    names: BTreeMap<u32, String>,
    _link: Link,
    _object: Object,
}

impl DropMonitor {
    /// Loads and attaches the program, for interfaces of this thread's network namespace. It counts nothing yet.
    ///
    /// # Errors
    /// Why it is not possible, for people.
    pub fn load() -> Result<Self, String> {
        let btf = Btf::from_vmlinux().map_err(|error| {
            format!("the kernel has no type information (CONFIG_DEBUG_INFO_BTF): {error}")
        })?;
        let names = names(&btf);
        if names.is_empty() {
            return Err("this kernel gives no reasons for drops: they need Linux 5.17".into());
        }
        drop(btf);
        let failed = |error: libbpf_rs::Error| {
            format!("the kernel refuses the program at its tracepoint skb:kfree_skb: {error}")
        };
        let metadata = std::fs::metadata("/proc/thread-self/ns/net");
        let namespace = metadata.map_err(|error| format!("/proc/thread-self/ns/net: {error}"))?.ino() as u32;
        let mut builder = ObjectBuilder::default();
        let mut open = builder.open_memory(OBJECT).map_err(failed)?;
        for mut map in open.maps_mut().filter(|map| map.name() == NAMESPACE) {
            map.set_initial_value(&namespace.to_ne_bytes()).map_err(failed)?;
        }
        let object = open.load().map_err(failed)?;
        let [ports, dropped] = ["ports", "dropped"].map(|name| {
            let map = object.maps().find(|map| map.name() == name).expect("the program has this map");
            MapHandle::try_from(&map).map_err(failed)
        });
        let (ports, dropped) = (ports?, dropped?);
        let program = object.progs_mut().next().expect("the object has a program");
        let link = program.attach().map_err(failed)?;
        Ok(Self { ports, dropped, counted: BTreeSet::new(), names, _link: link, _object: object })
    }

    /// Counts from now on what Linux drops of packets received on these interfaces, and on no others. What has been counted
    /// stays.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn count(&mut self, interfaces: &BTreeSet<u32>) -> Result<(), String> {
        let failed = |error: libbpf_rs::Error| format!("cannot count what Linux drops: {error}");
        for gone in self.counted.difference(interfaces) {
            self.ports.delete(&gone.to_ne_bytes()).map_err(failed)?;
        }
        for new in interfaces.difference(&self.counted) {
            self.ports.update(&new.to_ne_bytes(), &1u32.to_ne_bytes(), MapFlags::ANY).map_err(failed)?;
        }
        self.counted.clone_from(interfaces);
        Ok(())
    }

    /// What has been counted, by interface and cause.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn read(&self) -> Result<Vec<DroppedByLinux>, String> {
        let mut sums: BTreeMap<(u32, LinuxCause, String), u64> = BTreeMap::new();
        for key in self.dropped.keys() {
            let Some(parts) = parts(&key) else { continue };
            let counted = bm_bpf::sum_counters::<1>(&self.dropped, &key)
                .map_err(|error| format!("cannot read what Linux dropped: {error}"))?;
            let [frames] = counted.unwrap_or_default();
            let reason = self.name(parts.reason);
            let cause = LinuxCause::of(&reason, parts.route, parts.expired);
            *sums.entry((parts.ifindex, cause, reason)).or_default() += frames;
        }
        Ok(sums
            .into_iter()
            .map(|((ifindex, cause, reason), frames)| DroppedByLinux { ifindex, cause, reason, frames })
            .collect())
    }

    fn name(&self, reason: u32) -> String {
        self.names.get(&reason).cloned().unwrap_or_else(|| match reason >> SUBSYSTEM_SHIFT {
            0 => format!("reason {reason}"),
            subsystem => format!("reason {} of subsystem {subsystem}", reason & 0xffff),
        })
    }
}

struct Parts {
    ifindex: u32,
    reason: u32,
    route: u16,
    expired: bool,
}

/// The fields of a key; `None` if it has another length.
fn parts(key: &[u8]) -> Option<Parts> {
    let key: &[u8; KEY] = key.try_into().ok()?;
    let [a, b, c, d, e, f, g, h, i, j, k, l] = *key;
    Some(Parts {
        ifindex: u32::from_ne_bytes([a, b, c, d]),
        reason: u32::from_ne_bytes([e, f, g, h]),
        route: u16::from_ne_bytes([i, j]),
        expired: u16::from_ne_bytes([k, l]) != 0,
    })
}

/// The reasons of the running kernel, by number; none if it has none.
fn names(btf: &Btf<'_>) -> BTreeMap<u32, String> {
    let Some(reasons) = btf.type_by_name::<Enum<'_>>(REASONS) else { return BTreeMap::new() };
    let named = reasons.iter().filter_map(|member| {
        let name = member.name?.to_str()?;
        Some((u32::try_from(member.value).ok()?, name.strip_prefix(PREFIX).unwrap_or(name).into()))
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_route_and_the_ttl_say_more_than_the_reason() {
        let route = |errno: i32| errno as u16;
        for (reason, error, expired, cause) in [
            ("IP_INNOROUTES", route(libc::ENETUNREACH), false, LinuxCause::NoRoute),
            ("IP_INNOROUTES", 0, false, LinuxCause::NoRoute),
            ("NOT_SPECIFIED", route(libc::EINVAL), false, LinuxCause::Blackhole),
            ("NOT_SPECIFIED", route(libc::EACCES), false, LinuxCause::Prohibit),
            ("NOT_SPECIFIED", route(libc::EHOSTUNREACH), true, LinuxCause::Unreachable),
            ("IP_INHDR", 0, true, LinuxCause::Ttl),
            ("IP_INHDR", 0, false, LinuxCause::Header),
            ("NETFILTER_DROP", route(libc::EINVAL), true, LinuxCause::Firewall),
            ("NEIGH_FAILED", 0, false, LinuxCause::Neighbor),
            ("IP_RPFILTER", 0, false, LinuxCause::ReversePath),
            ("NOT_SPECIFIED", 0, true, LinuxCause::Other),
        ] {
            assert_eq!(LinuxCause::of(reason, error, expired), cause, "{reason} {error} {expired}");
        }
    }

    #[test]
    fn causes_have_names_of_their_own() {
        let names: BTreeSet<_> = LinuxCause::ALL.iter().map(|cause| cause.name()).collect();
        assert_eq!(names.len(), LinuxCause::ALL.len());
    }

    #[test]
    fn keys_are_read_as_the_program_writes_them() {
        let mut key = [0; KEY];
        (key[0], key[4], key[8], key[10]) = (7, 9, 22, 1);
        let Parts { ifindex, reason, route, expired } = parts(&key).unwrap();
        assert_eq!((ifindex, reason, route, expired), (7, 9, 22, true));
        assert!(parts(&key[1..]).is_none());
    }

    #[test]
    fn the_kernel_takes_the_program_and_names_its_reasons() {
        match DropMonitor::load() {
            Ok(mut dropped) => {
                assert!(dropped.names.values().any(|name| name == "NETFILTER_DROP"), "{:?}", dropped.names);
                dropped.count(&BTreeSet::from([1])).unwrap();
                dropped.count(&BTreeSet::from([2])).unwrap();
                assert_eq!(dropped.ports.keys().collect::<Vec<_>>(), [2u32.to_ne_bytes()]);
                dropped.read().unwrap();
            }
            Err(why) => eprintln!("skipped: {why}"),
        }
    }
}
