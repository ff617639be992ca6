//! Settings that the kernel keeps under `/proc/sys` and never announces.
//!
//! They are few, so the driver reads them several times a second from files that stay open ([`SysctlFiles`]): about a
//! microsecond each. A setting that this kernel does not have gets Linux's default; one that cannot be read now, for
//! example for lack of descriptors, keeps its previous value.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

macro_rules! sysctls {
    ($($(#[$doc:meta])* $field:ident: $path:literal = $default:literal,)*) => {
        /// Settings of this network namespace, as the kernel's documentation names them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Sysctls { $($(#[$doc])* pub $field: u32,)* }

        impl Default for Sysctls {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl Sysctls {
            /// The current values; what cannot be read is taken from `before`.
            fn read(files: &mut Files, before: &Self) -> Self {
                Self { $($field: files.now($path, $default, before.$field),)* }
            }
        }

        impl fmt::Display for Sysctls {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                $(writeln!(f, "{} = {}", $path, self.$field)?;)*
                Ok(())
            }
        }
    };
}

sysctls! {
    /// The fields that distinguish IPv4 flows: 0 addresses, 1 ports too, 2 inner headers, 3 chosen fields.
    ipv4_multipath_hash_policy: "ipv4/fib_multipath_hash_policy" = 0,
    /// The chosen fields, as bits.
    ipv4_multipath_hash_fields: "ipv4/fib_multipath_hash_fields" = 7,
    /// Whether a next hop whose neighbor is known not to answer is skipped.
    ipv4_multipath_use_neigh: "ipv4/fib_multipath_use_neigh" = 0,
    /// TTL of the machine's own packets.
    ip_default_ttl: "ipv4/ip_default_ttl" = 64,
    /// Whether forwarded packets are limited to path MTUs learned by the machine itself.
    ip_forward_use_pmtu: "ipv4/ip_forward_use_pmtu" = 0,
    /// Minimum time between two errors to one destination, in milliseconds.
    icmp_ratelimit: "ipv4/icmp_ratelimit" = 1000,
    /// Which ICMP types that limit is for, as bits.
    icmp_ratemask: "ipv4/icmp_ratemask" = 6168,
    /// Errors a second for all destinations together.
    icmp_msgs_per_sec: "ipv4/icmp_msgs_per_sec" = 1000,
    /// How many of them at once.
    icmp_msgs_burst: "ipv4/icmp_msgs_burst" = 50,
    /// Whether an error's source is the address of the interface where the packet came in.
    icmp_errors_use_inbound_ifaddr: "ipv4/icmp_errors_use_inbound_ifaddr" = 0,
    /// Whether routes are announced again when their next-hop object changes.
    nexthop_compat_mode: "ipv4/nexthop_compat_mode" = 1,
    /// Seed of the flow hash; 0 for one of the kernel's own.
    ipv4_multipath_hash_seed: "ipv4/fib_multipath_hash_seed" = 0,
    /// Whether packets with a source route may come in, if their interface also allows it.
    accept_source_route: "ipv4/conf/all/accept_source_route" = 0,
    /// Whether 127.0.0.0/8 is routed like any other prefix, whatever interfaces say.
    route_localnet: "ipv4/conf/all/route_localnet" = 0,
    /// What ICMP errors contain after the packet that they are about, as bits.
    icmp_errors_extension_mask: "ipv4/icmp_errors_extension_mask" = 0,
    /// Tokens that an error about a route costs, in jiffies; 0 where only the first namespace has it.
    route_error_cost: "ipv4/route/error_cost" = 0,
    /// How many of these tokens are kept.
    route_error_burst: "ipv4/route/error_burst" = 0,
    /// As for IPv4.
    ipv6_multipath_hash_policy: "ipv6/fib_multipath_hash_policy" = 0,
    /// As for IPv4.
    ipv6_multipath_hash_fields: "ipv6/fib_multipath_hash_fields" = 7,
    /// Minimum time between two ICMPv6 errors to one destination, in milliseconds.
    icmpv6_ratelimit: "ipv6/icmp/ratelimit" = 1000,
    /// Which ICMPv6 types that limit is for: the first 32, as bits.
    icmpv6_ratemask: "ipv6/icmp/ratemask" = 0xffff_fffb,
    /// As for IPv4.
    icmpv6_errors_extension_mask: "ipv6/icmp/errors_extension_mask" = 0,
    /// When the machine's own packets have flow labels.
    auto_flowlabels: "ipv6/auto_flowlabels" = 1,
    /// The most hop-by-hop options of a packet.
    max_hbh_opts_number: "ipv6/max_hbh_opts_number" = 8,
    /// The longest hop-by-hop header, in bytes.
    max_hbh_length: "ipv6/max_hbh_length" = 0x7fff_ffff,
    /// Whether IPv6 routes disappear with their link without a message.
    skip_notify_on_dev_down: "ipv6/route/skip_notify_on_dev_down" = 0,
}

/// Settings of one link that are neither in [`crate::Netconf`] nor in any other message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkSysctls {
    /// Whether packets may come in from sources that are the machine's own.
    pub accept_local: bool,
    /// Whether Linux sends ICMP redirects about IPv4 packets that leave where they came in.
    pub send_redirects: bool,
    /// Hop limit of the IPv6 packets that the machine originates there.
    pub hop_limit: u32,
    /// IPv6 packets neither come in nor leave there.
    pub disable_ipv6: bool,
    /// Whether 127.0.0.0/8 is routed there like any other prefix.
    pub route_localnet: bool,
    /// Greatest IPv6 packet; 0 if that of the link holds.
    pub mtu_ipv6: u32,
}

impl LinkSysctls {
    /// The settings of the link `name`; what cannot be read is taken from `before`.
    fn read(files: &mut Files, name: &str, before: Self) -> Self {
        let accepts = format!("ipv4/conf/{name}/accept_local");
        let redirects = format!("ipv4/conf/{name}/send_redirects");
        let disabled = format!("ipv6/conf/{name}/disable_ipv6");
        let localnet = format!("ipv4/conf/{name}/route_localnet");
        Self {
            accept_local: files.now(&accepts, 0, u32::from(before.accept_local)) != 0,
            send_redirects: files.now(&redirects, 1, u32::from(before.send_redirects)) != 0,
            hop_limit: files.now(&format!("ipv6/conf/{name}/hop_limit"), 64, before.hop_limit),
            disable_ipv6: files.now(&disabled, 0, u32::from(before.disable_ipv6)) != 0,
            route_localnet: files.now(&localnet, 0, u32::from(before.route_localnet)) != 0,
            mtu_ipv6: files.now(&format!("ipv6/conf/{name}/mtu"), 0, before.mtu_ipv6),
        }
    }
}

impl Default for LinkSysctls {
    fn default() -> Self {
        Self {
            accept_local: false,
            send_redirects: true,
            hop_limit: 64,
            disable_ipv6: false,
            route_localnet: false,
            mtu_ipv6: 0,
        }
    }
}

/// Where the settings of a network namespace are.
const ROOT: &str = "/proc/sys/net";

/// Files that stay open from one read to the next.
#[derive(Debug)]
struct Files {
    root: PathBuf,
    open: HashMap<String, File>,
    /// Whether files stay open.
    keep: bool,
    /// The latest failure that has not been reported yet.
    failed: Option<(String, io::Error)>,
}

impl Files {
    fn below(root: &Path) -> Self {
        Self { root: root.into(), open: HashMap::new(), keep: true, failed: None }
    }

    /// The number in a file: `absent` if there is no such file, `before` if it cannot be read.
    fn now(&mut self, path: &str, absent: u32, before: u32) -> u32 {
        match self.read(path) {
            Ok(value) => value.unwrap_or(absent),
            Err(error) => {
                self.failed = Some((path.into(), error));
                before
            }
        }
    }

    /// The number in a file, if the file exists. A file that cannot be read, for example because the link was deleted
    /// and created again, is opened again.
    fn read(&mut self, path: &str) -> io::Result<Option<u32>> {
        let number = if path == BITMAP { bits } else { number };
        if let Some(Ok(number)) = self.open.get(path).map(number) {
            return Ok(Some(number));
        }
        self.open.remove(path);
        let file = match File::open(self.root.join(path)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let value = number(&file)?;
        if self.keep {
            self.open.insert(path.into(), file);
        }
        Ok(Some(value))
    }
}

/// The setting that is a list of numbers, such as `0-1,3-127`.
const BITMAP: &str = "ipv6/icmp/ratemask";

/// The number in a file; a negative one as the same 32 bits without a sign.
fn number(file: &File) -> io::Result<u32> {
    with_text(file, |text| match text.parse::<i64>() {
        Ok(number) => u32::try_from(number).or_else(|_| i32::try_from(number).map(i32::cast_unsigned)).ok(),
        Err(_) => None,
    })
}

/// The numbers below 32 in a file with a list of them, as bits.
fn bits(file: &File) -> io::Result<u32> {
    with_text(file, bits_of)
}

fn bits_of(list: &str) -> Option<u32> {
    let mut bits = 0u32;
    for part in list.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        (first..=last.min(31)).for_each(|bit| bits |= 1 << bit);
    }
    Some(bits)
}

/// What `read` makes of the text in a file.
fn with_text(file: &File, read: impl FnOnce(&str) -> Option<u32>) -> io::Result<u32> {
    let mut text = [0; 512];
    let length = file.read_at(&mut text, 0)?;
    let text = str::from_utf8(&text[..length]).unwrap_or_default();
    read(text.trim())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{text:?} is not a number")))
}

/// The most links whose files stay open: with more, descriptors matter more than the time to open files.
const LINKS_OPEN: usize = 256;
/// Links whose settings are read at a time; with more, they take turns.
const LINKS_A_TURN: usize = 256;

/// A link, its settings as last read, and where they are.
#[derive(Debug)]
struct OfLink {
    name: Box<str>,
    files: Files,
    value: LinkSysctls,
}

impl OfLink {
    fn new(name: &str) -> Self {
        Self { name: name.into(), files: Files::below(Path::new(ROOT)), value: LinkSysctls::default() }
    }

    fn read(&mut self, keep: bool) {
        self.files.keep = keep;
        if !keep {
            self.files.open.clear();
        }
        self.value = LinkSysctls::read(&mut self.files, &self.name, self.value);
    }
}

/// The settings of one network namespace, with their files kept open.
#[derive(Debug)]
pub(crate) struct SysctlFiles {
    general: Files,
    last: Sysctls,
    accepts_all: u32,
    /// The value of `ipv4/conf/all/send_redirects`.
    redirects_all: u32,
    links: BTreeMap<u32, OfLink>,
    /// The link whose turn comes next.
    next: u32,
    failures: u64,
    /// The last time something could not be read.
    fails: bool,
}

impl SysctlFiles {
    /// For the network namespace of the calling thread, which must be the one that reads.
    pub fn new() -> Self {
        let general = Files::below(Path::new(ROOT));
        let (last, links) = (Sysctls::default(), BTreeMap::new());
        Self { general, last, accepts_all: 0, redirects_all: 1, links, next: 0, failures: 0, fails: false }
    }

    /// Reads those of the namespace.
    pub fn read(&mut self) -> Sysctls {
        self.last = Sysctls::read(&mut self.general, &self.last);
        let failed = self.general.failed.take();
        self.say(failed);
        self.last
    }

    /// How many times something could not be read.
    pub fn failures(&self) -> u64 {
        self.failures
    }

    /// Reads the settings of links, given by index and name: of new ones, and of some others in turn. All are in the
    /// result.
    pub fn read_links<'a>(
        &mut self,
        links: impl Iterator<Item = (u32, &'a str)>,
    ) -> BTreeMap<u32, LinkSysctls> {
        self.accepts_all = self.general.now("ipv4/conf/all/accept_local", 0, self.accepts_all);
        self.redirects_all = self.general.now("ipv4/conf/all/send_redirects", 1, self.redirects_all);
        let mut before = std::mem::take(&mut self.links);
        let mut new = Vec::new();
        for (ifindex, name) in links {
            let known = before.remove(&ifindex).filter(|known| *known.name == *name);
            if known.is_none() {
                new.push(ifindex);
            }
            self.links.insert(ifindex, known.unwrap_or_else(|| OfLink::new(name)));
        }
        let keep = self.links.len() <= LINKS_OPEN;
        let turn = self.take_turns();
        for ifindex in new.iter().chain(&turn) {
            bm_sys::heartbeat::beat();
            self.links.get_mut(ifindex).into_iter().for_each(|link| link.read(keep));
        }
        let own = self.links.values_mut().filter_map(|link| link.files.failed.take()).last();
        let failed = self.general.failed.take().or(own);
        self.say(failed);
        let (accepts, redirects) = (self.accepts_all != 0, self.redirects_all != 0);
        let values = self.links.iter().map(|(ifindex, link)| {
            let value = LinkSysctls {
                accept_local: accepts || link.value.accept_local,
                send_redirects: redirects || link.value.send_redirects,
                ..link.value
            };
            (*ifindex, value)
        });
        values.collect()
    }

    /// The links whose turn it is.
    fn take_turns(&mut self) -> Vec<u32> {
        let numbers = self.links.range(self.next..).chain(self.links.range(..self.next));
        let turn: Vec<u32> = numbers.map(|(ifindex, _)| *ifindex).take(LINKS_A_TURN).collect();
        self.next = turn.last().map_or(0, |last| last.wrapping_add(1));
        turn
    }

    /// Logs when settings cannot be read, and when they can be read again.
    fn say(&mut self, failed: Option<(String, io::Error)>) {
        match failed {
            Some((path, error)) => {
                self.failures += 1;
                if !self.fails {
                    tracing::warn!(
                        "cannot read {ROOT}/{path}, so its last known value stays in use: {error}"
                    );
                }
                self.fails = true;
            }
            None if std::mem::take(&mut self.fails) => {
                tracing::info!("the settings in {ROOT} can be read again");
            }
            None => {}
        }
    }
}

impl Default for SysctlFiles {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_settings_have_linuxs_defaults() {
        let none = Sysctls::read(&mut Files::below(Path::new("/nonexistent")), &Sysctls::default());
        assert_eq!(none, Sysctls::default());
        assert!(none.to_string().contains("ipv4/ip_default_ttl = 64\n"));
    }

    #[test]
    fn open_files_are_reread_and_replaced_files_are_reopened() {
        let root = std::env::temp_dir().join(format!("bm-sysctl-{}", std::process::id()));
        std::fs::create_dir_all(root.join("ipv4")).unwrap();
        let path = root.join("ipv4/ip_default_ttl");
        std::fs::write(&path, "64\n").unwrap();
        let mut files = Files::below(&root);
        let now = |files: &mut Files| files.now("ipv4/ip_default_ttl", 64, 1);
        assert_eq!(now(&mut files), 64);
        // The same file, as the kernel's are.
        File::options().write(true).open(&path).unwrap().write_at(b"99\n", 0).unwrap();
        assert_eq!(now(&mut files), 99);
        // What is open cannot be read any more: the file has become empty, and another has its name.
        File::options().write(true).truncate(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "7\n").unwrap();
        assert_eq!(now(&mut files), 7);
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(files.now("ipv4/nothing", 5, 6), 5, "there is no such file");
    }

    #[test]
    fn unreadable_settings_keep_their_values_and_are_reported() {
        let root = std::env::temp_dir().join(format!("bm-sysctl-kept-{}", std::process::id()));
        let path = root.join("ipv4/ip_default_ttl");
        std::fs::create_dir_all(&path).unwrap();
        let mut files = Files::below(&root);
        let before = Sysctls { ip_default_ttl: 77, icmp_ratelimit: 5, ..Sysctls::default() };
        let now = Sysctls::read(&mut files, &before);
        assert_eq!(now.ip_default_ttl, 77, "a folder is no file");
        assert_eq!(now.icmp_ratelimit, 1000, "this one is not there");
        assert_eq!(files.failed.as_ref().map(|(path, _)| path.as_str()), Some("ipv4/ip_default_ttl"));
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn lists_are_bits_and_negative_numbers_have_all() {
        assert_eq!(bits_of("0-1,3-127"), Some(Sysctls::default().icmpv6_ratemask));
        assert_eq!((bits_of(""), bits_of("5"), bits_of("31-255")), (Some(0), Some(32), Some(1 << 31)));
        assert_eq!(bits_of("1-x"), None);
        let path = std::env::temp_dir().join(format!("bm-sysctl-number-{}", std::process::id()));
        std::fs::write(&path, "-8\n").unwrap();
        assert_eq!(number(&File::open(&path).unwrap()).unwrap(), 8u32.wrapping_neg());
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn many_links_are_read_in_turn() {
        let mut files = SysctlFiles::new();
        let names: Vec<String> = (0..1000).map(|number| format!("bm-none{number}")).collect();
        let links = || (1..).zip(names.iter().map(String::as_str));
        assert_eq!(files.read_links(links()).len(), 1000);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..4 {
            seen.extend(files.take_turns());
        }
        assert_eq!(seen.len(), 1000);
        assert!(files.links.values().all(|link| link.files.open.is_empty()), "no descriptors");
    }
}
