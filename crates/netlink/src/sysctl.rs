//! Settings that the kernel keeps under `/proc/sys` and never announces.
//!
//! They are few, so the driver reads them several times a second from files that stay open ([`SysctlFiles`]): about
//! a microsecond each. A setting that this kernel does not have keeps the value that Linux would begin with.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::File;
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
            fn read(files: &mut Files) -> Self {
                Self { $($field: files.read($path).unwrap_or($default),)* }
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
    /// What IPv4 flows are told apart by: 0 addresses, 1 ports too, 2 inner headers, 3 chosen fields.
    ipv4_multipath_hash_policy: "ipv4/fib_multipath_hash_policy" = 0,
    /// The chosen fields, as bits.
    ipv4_multipath_hash_fields: "ipv4/fib_multipath_hash_fields" = 7,
    /// Whether a hop whose neighbour is known not to answer is passed over.
    ipv4_multipath_use_neigh: "ipv4/fib_multipath_use_neigh" = 0,
    /// TTL of the machine's own packets.
    ip_default_ttl: "ipv4/ip_default_ttl" = 64,
    /// Whether forwarded packets are held to path MTUs learnt by the machine itself.
    ip_forward_use_pmtu: "ipv4/ip_forward_use_pmtu" = 0,
    /// Least time between two errors to one destination, in milliseconds.
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
    /// As for IPv4.
    ipv6_multipath_hash_policy: "ipv6/fib_multipath_hash_policy" = 0,
    /// As for IPv4.
    ipv6_multipath_hash_fields: "ipv6/fib_multipath_hash_fields" = 7,
    /// Least time between two ICMPv6 errors to one destination, in milliseconds.
    icmpv6_ratelimit: "ipv6/icmp/ratelimit" = 1000,
}

/// Settings of one link that neither [`crate::Netconf`] nor anything else tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkSysctls {
    /// Whether packets may come in from sources that are the machine's own.
    pub accept_local: bool,
    /// Hop limit of the IPv6 packets that the machine originates there.
    pub hop_limit: u32,
    /// IPv6 packets neither come in nor leave there.
    pub disable_ipv6: bool,
}

impl LinkSysctls {
    /// Those of the link called `name`; `accepts_all` is what holds for every link.
    fn read(files: &mut Files, name: &str, accepts_all: bool) -> Self {
        let accepts = files.read(&format!("ipv4/conf/{name}/accept_local"));
        let disabled = files.read(&format!("ipv6/conf/{name}/disable_ipv6"));
        Self {
            accept_local: accepts_all || accepts.is_some_and(|value| value != 0),
            hop_limit: files.read(&format!("ipv6/conf/{name}/hop_limit")).unwrap_or(64),
            disable_ipv6: disabled.is_some_and(|value| value != 0),
        }
    }
}

impl Default for LinkSysctls {
    fn default() -> Self {
        Self { accept_local: false, hop_limit: 64, disable_ipv6: false }
    }
}

/// Where the settings of a network namespace are.
const ROOT: &str = "/proc/sys/net";

/// Files that stay open from one read to the next.
#[derive(Debug)]
struct Files {
    root: PathBuf,
    open: HashMap<String, File>,
}

impl Files {
    fn below(root: &Path) -> Self {
        Self { root: root.into(), open: HashMap::new() }
    }

    /// The number in a file. One that cannot be read, say since a link of this name was deleted and made again, is
    /// opened anew.
    fn read(&mut self, path: &str) -> Option<u32> {
        if let Some(number) = self.open.get(path).and_then(number) {
            return Some(number);
        }
        self.open.remove(path);
        let file = File::open(self.root.join(path)).ok()?;
        let value = number(&file);
        self.open.insert(path.into(), file);
        value
    }
}

fn number(file: &File) -> Option<u32> {
    let mut text = [0; 32];
    let length = file.read_at(&mut text, 0).ok()?;
    str::from_utf8(&text[..length]).ok()?.trim().parse().ok()
}

/// The settings of one network namespace, ready to be read again and again.
#[derive(Debug)]
pub struct SysctlFiles {
    general: Files,
    links: BTreeMap<u32, (Box<str>, Files)>,
}

impl SysctlFiles {
    /// For the network namespace of the calling thread, which is to be the one that reads.
    pub fn new() -> Self {
        Self { general: Files::below(Path::new(ROOT)), links: BTreeMap::new() }
    }

    /// Reads those of the namespace.
    pub fn read(&mut self) -> Sysctls {
        Sysctls::read(&mut self.general)
    }

    /// Reads those of each link, by number and name.
    pub fn read_links<'a>(
        &mut self,
        links: impl Iterator<Item = (u32, &'a str)>,
    ) -> BTreeMap<u32, LinkSysctls> {
        let accepts_all = self.general.read("ipv4/conf/all/accept_local").is_some_and(|value| value != 0);
        let mut before = std::mem::take(&mut self.links);
        let mut values = BTreeMap::new();
        for (ifindex, name) in links {
            let known = before.remove(&ifindex).filter(|(known, _)| **known == *name);
            let (name, mut files) = known.unwrap_or_else(|| (name.into(), Files::below(Path::new(ROOT))));
            values.insert(ifindex, LinkSysctls::read(&mut files, &name, accepts_all));
            self.links.insert(ifindex, (name, files));
        }
        values
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
    fn what_is_absent_has_the_value_linux_begins_with() {
        let none = Sysctls::read(&mut Files::below(Path::new("/nonexistent")));
        assert_eq!(none, Sysctls::default());
        assert!(none.to_string().contains("ipv4/ip_default_ttl = 64\n"));
    }

    #[test]
    fn an_open_file_is_read_again_and_a_new_one_in_its_place_after_that() {
        let root = std::env::temp_dir().join(format!("bm-sysctl-{}", std::process::id()));
        std::fs::create_dir_all(root.join("ipv4")).unwrap();
        let path = root.join("ipv4/ip_default_ttl");
        std::fs::write(&path, "64\n").unwrap();
        let mut files = Files::below(&root);
        assert_eq!(files.read("ipv4/ip_default_ttl"), Some(64));
        // The same file, as the kernel's are.
        File::options().write(true).open(&path).unwrap().write_at(b"99\n", 0).unwrap();
        assert_eq!(files.read("ipv4/ip_default_ttl"), Some(99));
        // What is open cannot be read any more: the file has become empty, and another has its name.
        File::options().write(true).truncate(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "7\n").unwrap();
        assert_eq!(files.read("ipv4/ip_default_ttl"), Some(7));
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(files.read("ipv4/nothing"), None);
    }
}
