//! Keeps Linux from forwarding in clear what has to be encrypted.
//!
//! Workers encrypt only what they forward. What Linux gets, since the daemon does not run, or something else leaves packets
//! to Linux, it would forward as it is. So the policies are in the kernel as well, as policies that block; they stay there
//! when the daemon ends, however it does (docs/decisions/0040-clear-text.md).

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::time::{Duration, Instant};

use bm_cli::Failure;
use bm_control::config::{Ipsec, LeftToLinux};
use bm_filter::AnyPrefix;
use bm_ipsec::{Action, Direction, Policy, Selector};
use bm_netlink::Error;
use bm_netlink::xfrm::{self, ForwardPolicy, PortMask, Removal, Removals, Replacement};

/// How often the kernel's policies are compared with what they should be, if no event says that some were removed.
const RENEWAL: Duration = Duration::from_secs(10);
/// How often they are compared while some of brickmoon's are removed one by one, as it does itself.
const RENEWAL_AFTER_REMOVAL: Duration = Duration::from_secs(1);
/// Any address.
const ANY: [(IpAddr, u8); 2] =
    [(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0), (IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0)];
const NO_IPSEC: &str = "it has no IPsec (CONFIG_XFRM_USER)";
/// One port.
const WHOLE: u16 = u16::MAX;

/// The policies of this daemon in the kernel.
#[derive(Default)]
pub struct ClearText {
    owner: u16,
    wanted: TargetPolicies,
    compared: Option<Instant>,
    removals: Option<Removals>,
    /// What was removed since they were compared.
    removed: Removal,
    failed: bool,
}

/// What should be in the kernel.
#[derive(Default)]
struct TargetPolicies {
    /// By what they match; the action in the key says nothing.
    policies: HashMap<ForwardPolicy, InKernel>,
    /// Which packets are exceptions.
    exceptions: Vec<Selector>,
}

/// What is not in the key of a policy.
struct InKernel {
    allow: bool,
    /// Lower ones come first. Policies that block and that no exception concerns have 0, since their order does not matter.
    rank: u32,
    /// How many policies of ours need it.
    users: usize,
}

impl TargetPolicies {
    fn in_kernel(&self) -> impl Iterator<Item = (ForwardPolicy, u32)> {
        self.policies.iter().map(|(policy, InKernel { allow, rank, .. })| {
            (ForwardPolicy { allow: *allow, ..policy.clone() }, *rank)
        })
    }

    /// Whether a policy can be added or removed without a look at others.
    fn is_apart(&self, policy: &Policy) -> bool {
        policy.action != Action::Bypass
            && !self.exceptions.iter().any(|exception| exception.overlaps(&policy.selector))
    }
}

impl ClearText {
    /// The policies of the daemon with this socket. Several daemons can run in one network namespace, each with policies of its
    /// own.
    pub fn new(socket: &Path) -> Self {
        Self { owner: owner(socket), ..Self::default() }
    }

    /// Puts the policies of this configuration into the kernel, and removes all others of this daemon or an earlier one.
    /// `programs` has the policies that programs have added.
    pub fn follow<'p>(
        &mut self,
        ipsec: &'p Ipsec,
        programs: impl Iterator<Item = &'p Policy>,
    ) -> Result<(), Failure> {
        let wanted = wanted(ipsec, programs);
        let replaced = xfrm::replace(self.owner, wanted.in_kernel());
        match (replaced, wanted.policies.is_empty()) {
            (Ok(Some(replaced)), _) => log(replaced, wanted.policies.len()),
            // There cannot be any.
            (Ok(None), true) => {}
            (Err(error), true) => {
                tracing::warn!(
                    "cannot see whether policies of an earlier [ipsec] are left in the kernel: {error}"
                );
            }
            (Ok(None), false) => return Err(refused(NO_IPSEC)),
            (Err(error), false) => return Err(refused(&error.to_string())),
        }
        (self.wanted, self.compared, self.failed) = (wanted, Some(Instant::now()), false);
        if self.removals.is_none() && !self.wanted.policies.is_empty() {
            self.removals = Removals::watch().unwrap_or_else(|error| {
                tracing::warn!(
                    "cannot watch the kernel's IPsec policies, so they are compared every 10 s: {error}"
                );
                None
            });
        }
        Ok(())
    }

    /// Follows the policies of programs while workers run, where an error changes nothing for them.
    pub fn follow_programs<'p>(&mut self, ipsec: &'p Ipsec, programs: impl Iterator<Item = &'p Policy>) {
        let followed = self.follow(ipsec, programs);
        self.note(followed);
    }

    /// Follows a program that has removed a policy, or added one, or both; `programs` has all policies of programs.
    pub fn follow_change<'p>(
        &mut self,
        ipsec: &'p Ipsec,
        gone: Option<&Policy>,
        new: Option<&Policy>,
        programs: impl Iterator<Item = &'p Policy>,
    ) {
        let (gone, new) = (gone.filter(is_concerned), new.filter(is_concerned));
        if ipsec.left_to_linux == LeftToLinux::Forward || (gone.is_none() && new.is_none()) {
            return;
        }
        let is_apart = gone.into_iter().chain(new).all(|policy| self.wanted.is_apart(policy));
        if self.failed || !is_apart {
            return self.follow_programs(ipsec, programs);
        }
        let (mut added, mut removed) = (Vec::new(), Vec::new());
        for policy in new.into_iter().flat_map(in_kernel) {
            let known = self.wanted.policies.entry(policy.clone());
            let known = known.or_insert(InKernel { allow: false, rank: 0, users: 0 });
            known.users += 1;
            if known.users == 1 {
                added.push(policy);
            }
        }
        for policy in gone.into_iter().flat_map(in_kernel) {
            let Some(known) = self.wanted.policies.get_mut(&policy) else { continue };
            known.users -= 1;
            if known.users == 0 {
                self.wanted.policies.remove(&policy);
                removed.push(policy);
            }
        }
        let changed = xfrm::change(self.owner, &added, &removed);
        self.note(match changed {
            Ok(Some(())) => Ok(()),
            Ok(None) => Err(refused(NO_IPSEC)),
            Err(error) => Err(refused(&error.to_string())),
        });
    }

    /// Logs the first error.
    fn note(&mut self, done: Result<(), Failure>) {
        if let Err(error) = done
            && !std::mem::replace(&mut self.failed, true)
        {
            tracing::error!("{error}");
        }
    }

    /// Adds policies again that others have removed; called often.
    pub fn renew(&mut self) {
        let removed = self.removals.as_mut().map_or(Removal::Nothing, Removals::take).max(self.removed);
        self.removed = removed;
        let pause = match removed {
            Removal::All => Duration::ZERO,
            Removal::Own => RENEWAL_AFTER_REMOVAL,
            Removal::Nothing => RENEWAL,
        };
        let is_due = self.compared.is_some_and(|at| at.elapsed() >= pause);
        if self.wanted.policies.is_empty() || !is_due {
            return;
        }
        (self.compared, self.removed) = (Some(Instant::now()), Removal::Nothing);
        let renewed = xfrm::replace(self.owner, self.wanted.in_kernel())
            .and_then(|renewed| renewed.ok_or(Error::Silent { request: "list IPsec policies" }));
        match renewed {
            Ok(Replacement { added: 0, .. }) => self.failed = false,
            Ok(Replacement { added, .. }) => {
                self.failed = false;
                tracing::warn!(
                    "{added} policies that keep Linux from forwarding in clear were missing, and have been added again"
                );
            }
            Err(error) if !self.failed => {
                self.failed = true;
                tracing::error!("cannot see whether Linux forwards in clear what [ipsec] protects: {error}");
            }
            Err(_) => {}
        }
    }

    /// Says what stays in the kernel after the end of the daemon.
    pub fn end(&self) {
        if !self.wanted.policies.is_empty() {
            tracing::info!(
                "Linux goes on dropping what [ipsec] protects; to end that, set left_to_linux = \"forward\" in [ipsec] and start again"
            );
        }
    }
}

fn refused(why: &str) -> Failure {
    Failure::Failed(format!(
        "the kernel does not take policies that keep Linux from forwarding in clear what [ipsec] protects: {why}; \
         if Linux may forward that in clear while brickmoon does not run, set left_to_linux = \"forward\" in [ipsec]"
    ))
}

fn log(replaced: Replacement, policies: usize) {
    if replaced.added > 0 {
        tracing::info!(
            "Linux drops what [ipsec] protects where it would forward it itself ({policies} policies)"
        );
    }
    if replaced.removed > 0 {
        tracing::info!(
            "removed {} policies of an earlier [ipsec] that kept Linux from forwarding",
            replaced.removed
        );
    }
}

/// A number for a daemon that is the same at its next start (FNV-1a).
fn owner(socket: &Path) -> u16 {
    let mut hash: u32 = 0x811c_9dc5;
    for byte in socket.as_os_str().as_encoded_bytes() {
        hash = (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    }
    (hash ^ hash >> 16) as u16
}

/// Whether Linux could forward packets of a policy in clear. Those of an interface it sends there, and nowhere else.
fn is_concerned(policy: &&Policy) -> bool {
    policy.direction == Direction::Out && policy.if_id == 0
}

/// The policies for the kernel.
fn wanted<'p>(ipsec: &'p Ipsec, programs: impl Iterator<Item = &'p Policy>) -> TargetPolicies {
    if ipsec.left_to_linux == LeftToLinux::Forward {
        return TargetPolicies::default();
    }
    let all = ipsec.policies.iter().chain(programs);
    let mut out: Vec<_> = all.filter(is_concerned).collect();
    out.sort_by_key(|policy| policy.priority);
    let exceptions = out.iter().filter(|policy| policy.action == Action::Bypass);
    let exceptions = exceptions.map(|policy| policy.selector.clone()).collect();
    let mut wanted = TargetPolicies { policies: HashMap::new(), exceptions };
    let (mut last, mut rank) = (None, 0);
    for (at, policy) in out.iter().enumerate() {
        let allow = policy.action == Action::Bypass;
        let is_exception = out[at + 1..]
            .iter()
            .any(|other| other.action != Action::Bypass && policy.selector.overlaps(&other.selector));
        // A policy that allows is needed only as an exception.
        if allow && !is_exception {
            continue;
        }
        let is_apart = wanted.is_apart(policy);
        if !is_apart && last.replace(allow) != Some(allow) {
            rank += 1;
        }
        for policy in in_kernel(policy) {
            // The first one with a selector decides.
            let new = InKernel { allow, rank: if is_apart { 0 } else { rank }, users: 0 };
            wanted.policies.entry(policy).or_insert(new).users += 1;
        }
    }
    wanted
}

/// What the kernel compares with packets for a policy: for one family, and with ports as masks.
fn in_kernel(policy: &Policy) -> Vec<ForwardPolicy> {
    let (selector, is_exception) = (&policy.selector, policy.action == Action::Bypass);
    let from = port_masks(selector.source_ports.as_ref());
    let to = port_masks(selector.destination_ports.as_ref());
    let mut pairs: Vec<_> = from.iter().flat_map(|from| to.iter().map(move |to| (*from, *to))).collect();
    let has_ports = selector.source_ports.is_some() || selector.destination_ports.is_some();
    if has_ports && !is_exception {
        // Later fragments have no ports, which the kernel compares as zeros. They belong to what is blocked.
        let none = PortMask { value: 0, mask: WHOLE };
        pairs.push((none, none));
    }
    let is_ipv6 = selector.source.or(selector.destination).map(|prefix| prefix.is_ipv6());
    let families = ANY.into_iter().filter(|(any, _)| is_ipv6.is_none_or(|is_ipv6| is_ipv6 == any.is_ipv6()));
    let mut policies = Vec::new();
    for any in families {
        policies.extend(pairs.iter().map(|(from, to)| ForwardPolicy {
            source: selector.source.map_or(any, address),
            destination: selector.destination.map_or(any, address),
            protocol: selector.protocol.unwrap_or(0),
            source_port: *from,
            destination_port: *to,
            mark: (selector.mark.value, selector.mark.mask),
            allow: false,
        }));
    }
    policies
}

/// Masks for the ports of a selector; one for all ports if it has none.
fn port_masks(ports: Option<&bm_filter::Ports>) -> Vec<PortMask> {
    ports.map_or(vec![PortMask::default()], |ports| masks(*ports.start(), *ports.end()))
}

fn address(prefix: AnyPrefix) -> (IpAddr, u8) {
    match prefix {
        AnyPrefix::V4(prefix) => (Ipv4Addr::from(prefix.first()).into(), prefix.length()),
        AnyPrefix::V6(prefix) => (Ipv6Addr::from(prefix.first()).into(), prefix.length()),
    }
}

/// The fewest values with a mask that are these ports together.
fn masks(first: u16, last: u16) -> Vec<PortMask> {
    let (mut at, end) = (u32::from(first), u32::from(last) + 1);
    let mut masks = Vec::new();
    while at < end {
        let aligned = if at == 0 { 1 << 16 } else { 1 << at.trailing_zeros() };
        let size = (0..=16).map(|bits| 1 << bits).rfind(|size| *size <= aligned && at + size <= end);
        let size: u32 = size.unwrap_or(1);
        masks.push(PortMask { value: at as u16, mask: !((size - 1) as u16) });
        at += size;
    }
    masks
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_ipsec::{SaId, Selector};

    fn policy(priority: u32, action: Action, source: &str, destination: &str) -> Policy {
        let prefix = |text: &str| (text != "any").then(|| text.parse().expect("a prefix"));
        Policy {
            at: 0,
            direction: Direction::Out,
            priority,
            if_id: 0,
            selector: Selector {
                source: prefix(source),
                destination: prefix(destination),
                ..Selector::default()
            },
            action,
        }
    }

    fn protect() -> Action {
        Action::Protect(SaId { spi: 0x1001, destination: "192.0.2.2".parse().expect("an address") })
    }

    fn shown(policies: Vec<Policy>) -> Vec<String> {
        let show = |policy: ForwardPolicy| {
            let word = if policy.allow { "allow" } else { "block" };
            let ports = |ports: PortMask| match ports.mask {
                0 => String::new(),
                mask => format!(" {}/{mask:x}", ports.value),
            };
            let [(source, from), (destination, to)] = [policy.source, policy.destination];
            let ports = ports(policy.source_port) + &ports(policy.destination_port);
            format!("{word} {source}/{from} {destination}/{to} {}{ports}", policy.protocol)
        };
        let mut all: Vec<_> = wanted(&Ipsec { policies, ..Ipsec::default() }, [].iter())
            .in_kernel()
            .map(|(policy, rank)| format!("{rank} {}", show(policy)))
            .collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn what_is_protected_or_discarded_is_blocked() {
        let policies = vec![
            policy(200, Action::Discard, "any", "10.3.0.0/16"),
            policy(100, protect(), "2001:db8:1::/48", "2001:db8:2::/48"),
            Policy { direction: Direction::In, ..policy(50, protect(), "10.2.0.0/24", "10.1.0.0/24") },
        ];
        let expected = ["0 block 0.0.0.0/0 10.3.0.0/16 0", "0 block 2001:db8:1::/48 2001:db8:2::/48 0"];
        assert_eq!(shown(policies), expected);
        assert_eq!(
            shown(vec![policy(1, protect(), "any", "any")]),
            ["0 block 0.0.0.0/0 0.0.0.0/0 0", "0 block ::/0 ::/0 0"]
        );
    }

    #[test]
    fn exceptions_are_allowed_and_nothing_else() {
        let policies = vec![
            policy(10, Action::Bypass, "10.1.0.0/24", "10.1.1.0/24"),
            policy(20, Action::Bypass, "10.9.0.0/24", "any"),
            policy(100, protect(), "10.1.0.0/24", "10.0.0.0/8"),
            policy(110, Action::Discard, "10.1.0.0/24", "10.0.0.0/8"),
            policy(120, Action::Bypass, "10.1.0.0/24", "any"),
            policy(130, Action::Discard, "10.1.2.0/24", "any"),
        ];
        let expected = [
            "0 block 10.1.2.0/24 0.0.0.0/0 0",
            "1 allow 10.1.0.0/24 10.1.1.0/24 0",
            "2 block 10.1.0.0/24 10.0.0.0/8 0",
        ];
        assert_eq!(shown(policies), expected);
    }

    #[test]
    fn ports_become_masks_and_later_fragments_are_blocked() {
        let mut with_ports = policy(1, protect(), "10.1.0.0/24", "any");
        (with_ports.selector.protocol, with_ports.selector.destination_ports) = (Some(17), Some(1000..=1003));
        let expected =
            ["0 block 10.1.0.0/24 0.0.0.0/0 17 0/ffff 0/ffff", "0 block 10.1.0.0/24 0.0.0.0/0 17 1000/fffc"];
        assert_eq!(shown(vec![with_ports]), expected);
    }

    #[test]
    fn masks_are_exactly_the_ports() {
        for (first, last) in [(0, 0), (0, u16::MAX), (1, u16::MAX - 1), (1000, 1999), (65535, 65535), (3, 5)]
        {
            let masks = masks(first, last);
            for port in 0..=u16::MAX {
                let matches = masks.iter().filter(|one| port & one.mask == one.value).count();
                assert_eq!(
                    matches,
                    usize::from((first..=last).contains(&port)),
                    "{port} of {first} to {last}"
                );
            }
            assert!(masks.len() <= 30, "{}", masks.len());
        }
    }

    #[test]
    fn nothing_is_blocked_where_linux_may_forward() {
        let policies = vec![policy(1, protect(), "any", "any")];
        let ipsec = Ipsec { policies, left_to_linux: LeftToLinux::Forward, ..Ipsec::default() };
        assert!(wanted(&ipsec, [].iter()).policies.is_empty());
    }
}
