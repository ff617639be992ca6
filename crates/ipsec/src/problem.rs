//! What is wrong with configured SAs and policies, found before anything is built from them.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;

use crate::lifetime::Limit;
use crate::policy::{Action, Policy};
use crate::replay::WINDOW_MAX;
use crate::sa::{Direction, Dscp, Mode, Sa, SaId};
use crate::secret::Secret;
use crate::selector::Selector;
use crate::suite::Suite;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where it is: `at` of the SA or policy.
    pub at: usize,
    pub what: What,
}

/// What can be wrong; `Display` says how to fix it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// An SPI that is reserved.
    Spi(u32),
    /// A key of the wrong length.
    KeyLength {
        key: &'static str,
        suite: Suite,
        /// Its bytes.
        found: usize,
        /// The bytes that it must have.
        expected: usize,
    },
    /// A key for integrity for a suite that has none.
    NoIntegrityKey(Suite),
    ZeroKey(&'static str),
    /// A replay window that is too large.
    Window(u32),
    /// ESN without a replay window.
    EsnWithoutWindow,
    /// Two SAs with the same SPI and destination.
    Duplicate {
        /// Which SA.
        id: SaId,
        /// Where the first one is.
        first: usize,
    },
    /// Source and destination of different families.
    Families {
        source: IpAddr,
        destination: IpAddr,
    },
    /// An address that no single host has.
    Address(IpAddr),
    ZeroLifetime(&'static str),
    /// A soft lifetime that is not below the hard one.
    SoftLifetime(&'static str),
    /// A DSCP above 63.
    Dscp(u8),
    /// A TTL of zero.
    Ttl,
    /// A path MTU that leaves no room for inner packets.
    PathMtu {
        /// As configured.
        found: u16,
        least: u16,
    },
    /// A UDP port of zero.
    UdpPort,
    /// A selector with source and destination of different families.
    SelectorFamilies,
    /// A selector with ports and no protocol that has ports.
    SelectorPorts,
    /// Two policies with equal priority that match the same packets.
    Overlap {
        /// Their priority.
        priority: u32,
        /// Where the first one is.
        first: usize,
    },
    /// A policy for an SA that does not exist.
    NoSa(SaId),
    /// A policy for an SA of the other direction.
    OtherDirection(SaId),
    /// A list with the same SA twice.
    Twice(SaId),
    /// A list whose SAs have different addresses or modes.
    OtherEnds {
        /// Which SA.
        id: SaId,
        /// The first one of the list.
        from: SaId,
    },
    /// An SA that is at another place in another list: an SA belongs to one worker.
    OtherPlace {
        /// Which SA.
        id: SaId,
        /// Where the policy with the other list is.
        first: usize,
    },
    /// A policy for an SA of another interface, or of none.
    OtherInterface(SaId),
    /// An SA of an interface in transport mode.
    InterfaceTransport,
    /// More policies than a tree can hold.
    ManyPolicies(usize),
}

/// What every host of IPv4 can receive (RFC 791 3.1), so inner packets of this size must fit.
const INNER_MTU: u16 = 576;
/// The most that headers, trailer and ICV of any suite take.
const OVERHEAD_MAX: u16 = 40 + 8 + 8 + 16 + 17 + 16;
/// The least path MTU of an SA.
pub const PATH_MTU_MIN: u16 = INNER_MTU + OVERHEAD_MAX;
/// SPIs below are reserved by IANA (RFC 4303 2.1).
const SPI_MIN: u32 = 256;

/// Everything that is wrong with SAs and policies, in their order; `lists` are those that policies name by number.
pub fn problems(sas: &[Sa], policies: &[Policy], lists: &[Vec<SaId>]) -> Vec<Problem> {
    let mut problems: Vec<Problem> = sas.iter().flat_map(of_sa).collect();
    let mut known = HashMap::new();
    for sa in sas {
        let first = known.entry(sa.id()).or_insert(sa);
        if !std::ptr::eq(*first, sa) {
            let what = What::Duplicate { id: sa.id(), first: first.at };
            problems.push(Problem { at: sa.at, what });
        }
    }
    let mut places = HashMap::new();
    for policy in policies {
        let mut found = of_selector(&policy.selector);
        let named = match &policy.action {
            Action::Protect(id) => std::slice::from_ref(id),
            Action::OneOf(list) => lists.get(*list as usize).map_or(&[][..], Vec::as_slice),
            Action::Discard | Action::Bypass | Action::Template(..) => &[],
        };
        for id in named {
            match known.get(id) {
                None => found.push(What::NoSa(*id)),
                Some(sa) if sa.direction != policy.direction => found.push(What::OtherDirection(*id)),
                Some(sa) if sa.if_id != policy.if_id => found.push(What::OtherInterface(*id)),
                Some(_) => {}
            }
        }
        if let Action::OneOf(_) = policy.action {
            found.extend(of_list(named, policy.at, &known, &mut places));
        }
        problems.extend(found.into_iter().map(|what| Problem { at: policy.at, what }));
    }
    problems.extend(overlaps(policies));
    if let Some(last) = policies.get(usize::from(u16::MAX)) {
        problems.push(Problem { at: last.at, what: What::ManyPolicies(policies.len()) });
    }
    problems
}

/// What is wrong with the list of the policy at `at`; `places` has the places of SAs in lists before it.
fn of_list(
    list: &[SaId],
    at: usize,
    known: &HashMap<SaId, &Sa>,
    places: &mut HashMap<SaId, (usize, usize)>,
) -> Vec<What> {
    let first_sa = list.first().and_then(|first| known.get(first));
    let mut found = Vec::new();
    for (place, id) in list.iter().enumerate() {
        if list[..place].contains(id) {
            found.push(What::Twice(*id));
            continue;
        }
        if let (Some(sa), Some(first)) = (known.get(id), first_sa)
            && (sa.source, sa.destination, sa.mode) != (first.source, first.destination, first.mode)
        {
            found.push(What::OtherEnds { id: *id, from: list[0] });
        }
        let (other, first) = *places.entry(*id).or_insert((place, at));
        if other != place {
            found.push(What::OtherPlace { id: *id, first });
        }
    }
    found
}

/// What is wrong with one SA.
pub(crate) fn of_sa(sa: &Sa) -> Vec<Problem> {
    let mut found = Vec::new();
    let mut check = |is_wrong: bool, what: What| {
        if is_wrong {
            found.push(what);
        }
    };
    check(sa.spi < SPI_MIN, What::Spi(sa.spi));
    check(
        sa.source.is_ipv4() != sa.destination.is_ipv4(),
        What::Families { source: sa.source, destination: sa.destination },
    );
    for address in [sa.source, sa.destination] {
        check(address.is_unspecified() || address.is_multicast(), What::Address(address));
    }
    check(sa.replay_window > WINDOW_MAX, What::Window(sa.replay_window));
    check(sa.esn && sa.replay_window == 0, What::EsnWithoutWindow);
    if let Dscp::Set(dscp) = sa.dscp {
        check(dscp > 63, What::Dscp(dscp));
    }
    check(sa.ttl == 0, What::Ttl);
    check(sa.if_id != 0 && sa.mode == Mode::Transport, What::InterfaceTransport);
    check(sa.path_mtu < PATH_MTU_MIN, What::PathMtu { found: sa.path_mtu, least: PATH_MTU_MIN });
    let any_source = sa.direction == Direction::In;
    check(sa.udp.is_some_and(|udp| udp.source == 0 && !any_source || udp.destination == 0), What::UdpPort);
    found.extend(of_keys(sa));
    let limits = &sa.limits;
    let named = [
        ("bytes", limits.bytes),
        ("packets", limits.packets),
        ("time", limits.time_ns),
        ("time in use", limits.use_ns),
    ];
    found.extend(named.into_iter().filter_map(|(name, limit)| of_limit(name, limit)));
    found.extend(sa.selectors.iter().flat_map(of_selector));
    found.into_iter().map(|what| Problem { at: sa.at, what }).collect()
}

fn of_keys(sa: &Sa) -> Vec<What> {
    let suite = sa.suite;
    let of_key = |key, secret: &Secret, expected| {
        if secret.len() != expected {
            return Some(What::KeyLength { key, suite, found: secret.len(), expected });
        }
        // A kernel in lockdown shows keys as zeros.
        let zeros = !secret.is_empty() && secret.bytes().iter().all(|byte| *byte == 0);
        zeros.then_some(What::ZeroKey(key))
    };
    let encryption = of_key("encryption_key", &sa.encryption_key, suite.encryption_key_len());
    let integrity = match suite.integrity_key_len() {
        0 => (!sa.integrity_key.is_empty()).then_some(What::NoIntegrityKey(suite)),
        expected => of_key("integrity_key", &sa.integrity_key, expected),
    };
    encryption.into_iter().chain(integrity).collect()
}

fn of_limit(name: &'static str, limit: Limit) -> Option<What> {
    if [limit.soft, limit.hard].contains(&Some(0)) {
        return Some(What::ZeroLifetime(name));
    }
    let not_below = limit.soft.zip(limit.hard).is_some_and(|(soft, hard)| soft >= hard);
    not_below.then_some(What::SoftLifetime(name))
}

fn of_selector(selector: &Selector) -> Vec<What> {
    let families = (!selector.has_one_family()).then_some(What::SelectorFamilies);
    let ports = (!selector.has_ports_of_a_protocol()).then_some(What::SelectorPorts);
    families.into_iter().chain(ports).collect()
}

/// Pairs of policies between which nothing decides.
fn overlaps(policies: &[Policy]) -> Vec<Problem> {
    let mut of_priority: HashMap<_, Vec<&Policy>> = HashMap::new();
    let mut found = Vec::new();
    for policy in policies {
        let others = of_priority.entry((policy.direction, policy.priority, policy.if_id)).or_default();
        if let Some(first) = others.iter().find(|other| other.selector.overlaps(&policy.selector)) {
            let what = What::Overlap { priority: policy.priority, first: first.at };
            found.push(Problem { at: policy.at, what });
        }
        others.push(policy);
    }
    found
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Spi(spi) => write!(f, "SPI {spi:#x} is reserved: use one from {SPI_MIN:#x}"),
            Self::KeyLength { key, suite, found, expected } => {
                let salt = if suite.is_aead() { ", of which the last 4 are the salt" } else { "" };
                write!(f, "{key} has {found} bytes: {suite} needs {expected}{salt}")
            }
            Self::NoIntegrityKey(suite) => {
                write!(f, "{suite} has no key for integrity: remove integrity_key")
            }
            Self::ZeroKey(key) => {
                write!(f, "{key} is all zeros, as a kernel in lockdown shows keys: use the real key")
            }
            Self::Window(found) => write!(f, "a replay window of {found} packets: at most {WINDOW_MAX} are possible"),
            Self::EsnWithoutWindow => f.write_str("ESN needs a replay window: set it to 32 packets or more, or esn = false"),
            Self::Duplicate { id, .. } => write!(f, "second SA with {id}: give one of them another SPI"),
            Self::Families { source, destination } => {
                write!(f, "source {source} and destination {destination} are of different families: use one family")
            }
            Self::Address(address) => write!(f, "{address} is not the address of a host: use a unicast address"),
            Self::ZeroLifetime(name) => {
                write!(f, "a lifetime of 0 {name} ends the SA before its first packet: leave it out for no limit")
            }
            Self::SoftLifetime(name) => write!(
                f,
                "the soft lifetime in {name} is not below the hard one, so nothing replaces the SA in time: lower it"
            ),
            Self::Dscp(dscp) => write!(f, "DSCP {dscp}: must be from 0 to 63"),
            Self::Ttl => f.write_str("a TTL of 0: use one from 1 to 255"),
            Self::PathMtu { found, least } => write!(f, "a path MTU of {found} bytes: must be at least {least}"),
            Self::UdpPort => f.write_str("UDP port 0: use 4500, or the port that the NAT has given"),
            Self::SelectorFamilies => {
                f.write_str("no packet has a source and a destination of different families: use one family")
            }
            Self::SelectorPorts => f.write_str(
                "ports without a protocol that has ports: add protocol tcp, udp, sctp, dccp or udplite, one per policy",
            ),
            Self::Overlap { priority, .. } => write!(
                f,
                "another policy with priority {priority} matches the same packets: give one of them another priority"
            ),
            Self::NoSa(id) => write!(f, "there is no SA with {id}: add it, or use the action discard"),
            Self::OtherDirection(id) => {
                write!(f, "the SA with {id} is for the other direction: protect outbound packets with outbound SAs")
            }
            Self::Twice(id) => write!(f, "the SA with {id} is in the list twice: remove one of them"),
            Self::OtherEnds { id, from } => write!(
                f,
                "the SA with {id} has other addresses or another mode than the first one of the list ({from}): all must have the same"
            ),
            Self::OtherPlace { id, .. } => write!(
                f,
                "the SA with {id} is at another place in another policy's list, and so of another worker: put it at the same place"
            ),
            Self::OtherInterface(id) => {
                write!(f, "the SA with {id} has another interface: give the policy the interface of its SA")
            }
            Self::InterfaceTransport => f.write_str(
                "SAs of an interface need tunnel mode: remove mode = \"transport\", or the interface",
            ),
            Self::ManyPolicies(found) => write!(f, "{found} policies: at most {} are possible", u16::MAX),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.what.fmt(f)
    }
}

impl std::error::Error for Problem {}

#[cfg(test)]
mod tests;
