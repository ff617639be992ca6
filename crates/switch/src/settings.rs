//! The settings of a switch: its ports by name or pattern, their VLANs, its limits.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

/// VLANs that frames can have: 1 to this.
pub const VLAN_MAX: u16 = 4094;
/// The VLAN of a port that names none, in a switch with VLANs (802.1Q 9.6).
pub(crate) const VLAN_DEFAULT: u16 = 1;

/// The settings of a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Its name: 1 to 12 of letters, digits, `-` and `_`.
    pub name: String,
    /// Which interfaces are its ports.
    pub ports: Vec<Pattern>,
    /// Settings for some ports; the first rule that matches a port applies.
    pub rules: Vec<PortRule>,
    /// Static MAC addresses, which do not age.
    pub statics: Vec<Static>,
    /// How long a MAC address is remembered after its last frame; zero means forever.
    pub ageing: Duration,
    /// Flooded frames per second allowed from each port; 0 for no limit.
    pub flood_limit: u32,
    /// MAC addresses per second that may move to each port from other ports; 0 for no limit.
    pub move_limit: u32,
    /// Size of the MAC address table; each port can have a few more in any case.
    pub table: u32,
    /// How many addresses can be learned at each port; 0 for as many as `table`.
    pub fdb_max_learned: u32,
    /// The interface that connects Linux to the switch; created and removed by brickmoon.
    pub interface: Option<String>,
}

impl Settings {
    /// A switch with the defaults.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            ports: Vec::new(),
            rules: Vec::new(),
            statics: Vec::new(),
            ageing: Duration::from_secs(300),
            flood_limit: 10_000,
            move_limit: 100,
            table: 16_384,
            fdb_max_learned: 4_096,
            interface: None,
        }
    }

    /// Whether frames of different VLANs are kept apart. If not, tags are treated as data.
    pub fn has_vlans(&self) -> bool {
        self.rules.iter().any(|rule| rule.vlans.is_some()) || self.statics.iter().any(|one| one.vlan > 0)
    }

    /// The name of the other end of [`Self::interface`], which is a port of the switch.
    pub(crate) fn own_port(&self) -> Option<String> {
        self.interface.as_ref().map(|name| format!("{name}{OWN_SUFFIX}"))
    }

    /// Whether an interface is a port of this switch.
    pub fn has(&self, interface: &str) -> bool {
        let own = self.own_port();
        own.as_deref() == Some(interface) || self.ports.iter().any(|pattern| pattern.matches(interface))
    }

    /// The settings of the first `[[switch.port]]` that names the interface; the defaults if none does.
    pub fn port_settings(&self, interface: &str) -> PortSettings {
        let rule = self.rules.iter().find(|rule| rule.ports.matches(interface));
        let default = Vlans::Access(if self.has_vlans() { VLAN_DEFAULT } else { 0 });
        let limit = rule.and_then(|rule| rule.fdb_max_learned).unwrap_or(self.fdb_max_learned);
        PortSettings {
            vlans: rule.and_then(|rule| rule.vlans.clone()).unwrap_or(default),
            flood_limit: rule.and_then(|rule| rule.flood_limit).unwrap_or(self.flood_limit),
            move_limit: rule.and_then(|rule| rule.move_limit).unwrap_or(self.move_limit),
            fdb_max_learned: if limit == 0 { self.table } else { limit },
            flags: rule.map(|rule| rule.flags).unwrap_or_default(),
        }
    }

    /// Whether any port is isolated from other isolated ports.
    pub(crate) fn isolates(&self) -> bool {
        self.rules.iter().any(|rule| rule.flags.isolated)
    }

    /// Whether any port has a guard against spoofed addresses, DHCP servers or routers.
    pub fn guards(&self) -> bool {
        let mut flags = self.rules.iter().map(|rule| &rule.flags);
        flags.any(|flags| flags.source_guard || flags.dhcp_guard || flags.ra_guard)
    }

    /// Whether any port refuses some kind of flooded frames.
    pub(crate) fn limits_floods(&self) -> bool {
        self.rules.iter().map(|rule| &rule.flags).any(|flags| !flags.takes_all_floods())
    }
}

/// Suffix of the name of the switch's end of its own interface.
pub(crate) const OWN_SUFFIX: &str = ".bm";

/// What the first matching `[[switch.port]]`, or the defaults, say for a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSettings {
    pub vlans: Vlans,
    /// Flooded frames per second allowed from it; 0 for no limit.
    pub flood_limit: u32,
    /// MAC addresses per second that may move to it; 0 for no limit.
    pub move_limit: u32,
    /// Addresses that can be learned at it.
    pub fdb_max_learned: u32,
    /// Its bridge port flags.
    pub flags: PortFlags,
}

/// What `bridge link set dev PORT` sets for ports of Linux's bridge, with the same names and defaults; and the
/// guards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortFlags {
    /// Whether source MAC addresses are learned.
    pub learning: bool,
    /// Whether only frames from MAC addresses that are already known behind this port are accepted.
    pub locked: bool,
    /// Whether it exchanges no frames with other isolated ports.
    pub isolated: bool,
    /// Whether it gets frames to unknown MAC addresses.
    pub flood: bool,
    /// Whether it gets multicast.
    pub mcast_flood: bool,
    /// Whether it gets broadcast.
    pub bcast_flood: bool,
    /// Whether it may send only from the addresses of its static MAC entries.
    pub source_guard: bool,
    /// Whether frames sent by DHCP servers are dropped.
    pub dhcp_guard: bool,
    /// Whether router advertisements and redirects are dropped.
    pub ra_guard: bool,
}

impl Default for PortFlags {
    fn default() -> Self {
        Self {
            learning: true,
            locked: false,
            isolated: false,
            flood: true,
            mcast_flood: true,
            bcast_flood: true,
            source_guard: false,
            dhcp_guard: false,
            ra_guard: false,
        }
    }
}

impl PortFlags {
    fn takes_all_floods(&self) -> bool {
        self.flood && self.mcast_flood && self.bcast_flood
    }

    /// The flags that differ from the default, in the notation of `bridge`.
    pub fn changed(&self) -> Vec<String> {
        let default = Self::default();
        let all = [
            ("learning", self.learning, default.learning),
            ("locked", self.locked, default.locked),
            ("isolated", self.isolated, default.isolated),
            ("flood", self.flood, default.flood),
            ("mcast_flood", self.mcast_flood, default.mcast_flood),
            ("bcast_flood", self.bcast_flood, default.bcast_flood),
            ("source_guard", self.source_guard, default.source_guard),
            ("dhcp_guard", self.dhcp_guard, default.dhcp_guard),
            ("ra_guard", self.ra_guard, default.ra_guard),
        ];
        let changed = all.into_iter().filter(|(_, is, default)| is != default);
        changed.map(|(name, is, _)| format!("{name} {}", if is { "on" } else { "off" })).collect()
    }
}

/// Settings for the ports that match a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortRule {
    pub ports: Pattern,
    /// Their VLANs; `None` for the switch's default.
    pub vlans: Option<Vlans>,
    /// Flooded frames per second allowed from each; `None` for the switch's setting.
    pub flood_limit: Option<u32>,
    /// MAC addresses per second that may move to each; `None` for the switch's setting.
    pub move_limit: Option<u32>,
    /// Addresses that can be learned at each; `None` for the switch's setting.
    pub fdb_max_learned: Option<u32>,
    /// Their bridge port flags.
    pub flags: PortFlags,
}

impl PortRule {
    /// A rule that changes nothing.
    pub fn new(ports: Pattern) -> Self {
        Self {
            ports,
            vlans: None,
            flood_limit: None,
            move_limit: None,
            fdb_max_learned: None,
            flags: PortFlags::default(),
        }
    }
}

/// The VLANs of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vlans {
    /// One VLAN, whose frames are untagged at this port.
    Access(u16),
    /// Several VLANs.
    Trunk {
        /// The VLANs whose frames are tagged, as ranges with both ends included.
        tagged: Vec<(u16, u16)>,
        /// The VLAN of untagged frames; `None` if such frames are dropped.
        native: Option<u16>,
    },
}

impl Vlans {
    /// The VLAN of untagged frames; 0 for none.
    pub fn untagged(&self) -> u16 {
        match self {
            Self::Access(vlan) => *vlan,
            Self::Trunk { native, .. } => native.unwrap_or(0),
        }
    }

    /// Every VLAN whose frames are tagged.
    pub fn tagged(&self) -> impl Iterator<Item = u16> {
        let ranges = match self {
            Self::Access(_) => &[],
            Self::Trunk { tagged, .. } => tagged.as_slice(),
        };
        ranges.iter().flat_map(|&(first, last)| first..=last)
    }

    /// Every VLAN, the untagged one first.
    pub fn all(&self) -> impl Iterator<Item = u16> {
        let untagged = self.untagged();
        std::iter::once(untagged).chain(self.tagged().filter(move |vlan| *vlan != untagged))
    }
}

impl fmt::Display for Vlans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Access(0) => f.write_str("-"),
            Self::Access(vlan) => write!(f, "{vlan}"),
            Self::Trunk { tagged, native } => {
                let ranges = tagged.iter().map(|&(first, last)| match last {
                    _ if first == last => format!("{first}t"),
                    _ => format!("{first}-{last}t"),
                });
                let all: Vec<_> = native.iter().map(u16::to_string).chain(ranges).collect();
                f.write_str(&all.join(","))
            }
        }
    }
}

/// A key of the MAC address table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    pub mac: [u8; 6],
    /// Its VLAN; 0 in a switch without VLANs.
    pub vlan: u16,
}

/// A static MAC address: it neither ages nor moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Static {
    /// The MAC address; not a group address.
    pub mac: [u8; 6],
    /// Its VLAN; 0 for the VLAN of untagged frames at the port.
    pub vlan: u16,
    /// The interface that it is behind.
    pub port: String,
    /// IP addresses that it may send from if its port has `source_guard`.
    pub addresses: Vec<IpAddr>,
}

/// A pattern for interface names: `*` matches any characters, `?` one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    /// A pattern; a text without `*` and `?` matches only itself.
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// The name, if the pattern can match only one.
    pub fn name(&self) -> Option<&str> {
        (!self.0.contains(['*', '?'])).then_some(self.0.as_str())
    }

    /// Whether a name matches.
    pub fn matches(&self, name: &str) -> bool {
        fn rest(pattern: &[u8], name: &[u8]) -> bool {
            match (pattern, name) {
                ([], []) => true,
                ([b'*', more @ ..], _) => {
                    (0..=name.len()).any(|taken| rest(more, name.get(taken..).unwrap_or_default()))
                }
                ([b'?', more @ ..], [_, left @ ..]) => rest(more, left),
                ([one, more @ ..], [other, left @ ..]) => one == other && rest(more, left),
                _ => false,
            }
        }
        rest(self.0.as_bytes(), name.as_bytes())
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_a_shell() {
        let matches = |pattern, name| Pattern::new(pattern).matches(name);
        for (pattern, name) in
            [("veth*", "veth"), ("veth*", "veth12"), ("*", "x"), ("a?c", "abc"), ("a*b*c", "axbyc")]
        {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("veth*", "vet"), ("a?c", "ac"), ("a*b", "abc"), ("", "x"), ("eth0", "eth01")]
        {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
        assert_eq!((Pattern::new("tap0").name(), Pattern::new("tap*").name()), (Some("tap0"), None));
    }

    #[test]
    fn the_first_rule_that_names_a_port_applies() {
        let mut settings = Settings::new("lan");
        settings.ports = vec![Pattern::new("veth*")];
        assert_eq!(settings.port_settings("veth1").vlans, Vlans::Access(0));
        let rule =
            |ports, vlans, flood_limit| PortRule { vlans, flood_limit, ..PortRule::new(Pattern::new(ports)) };
        settings.rules = vec![
            rule("veth1", Some(Vlans::Access(10)), None),
            rule("veth?", Some(Vlans::Trunk { tagged: vec![(20, 22)], native: Some(10) }), Some(5)),
        ];
        let of_one = PortSettings {
            vlans: Vlans::Access(10),
            flood_limit: 10_000,
            move_limit: 100,
            fdb_max_learned: 4_096,
            flags: PortFlags::default(),
        };
        assert_eq!(settings.port_settings("veth1"), of_one);
        let trunk = settings.port_settings("veth2");
        assert_eq!((trunk.vlans.all().collect::<Vec<_>>(), trunk.flood_limit), (vec![10, 20, 21, 22], 5));
        assert_eq!(
            (trunk.vlans.to_string(), settings.port_settings("veth33").vlans.to_string()),
            ("10,20-22t".into(), "1".into())
        );
        assert!(settings.has("veth9") && !settings.has("eth0"));
        settings.interface = Some("lan0".into());
        assert!(settings.has("lan0.bm") && !settings.has("lan0"));
    }
}
