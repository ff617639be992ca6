//! IPsec policies that brickmoon adds to the kernel, so that Linux does not forward in clear what has to be encrypted.
//!
//! They are policies of direction fwd, which concern routed packets only. Their priority is the lowest there is, so any
//! other policy comes first. They are recognized by the user id in their selector, which the kernel stores, prints and
//! compares when policies are changed, but never compares with packets.

use crate::attribute::Attributes;
use crate::dump::{self, Dumped, is_absent};
use crate::error::{Error, Malformed};
use crate::message::{Messages, Raw};
use crate::socket::Socket;
use netlink_sys::protocols::NETLINK_XFRM;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Range;

/// Messages (`XFRM_MSG_*`).
pub mod message {
    pub const NEW_POLICY: u16 = 0x13;
    pub const DELETE_POLICY: u16 = 0x14;
    pub const GET_POLICY: u16 = 0x15;
    pub const UPDATE_POLICY: u16 = 0x19;
    pub const POLICY_EXPIRED: u16 = 0x1b;
    pub const FLUSH_POLICIES: u16 = 0x1d;
    /// Also the message type for a change of the default.
    pub const GET_DEFAULT: u16 = 0x28;
}
/// Attribute with the templates of a policy.
pub const TEMPLATES: u16 = 5;
/// Attribute with a mark: value and mask.
const MARK: u16 = 21;
const MARK_LENGTH: usize = 8;
/// Attribute with the number of the XFRM interface that a policy is for.
pub const IF_ID: u16 = 31;
/// Fixed part of a policy: `struct xfrm_userpolicy_info`.
pub const POLICY: usize = 168;
/// Where its fields are.
pub mod at {
    use std::ops::Range;
    pub const DESTINATION: Range<usize> = 0..16;
    pub const SOURCE: Range<usize> = 16..32;
    pub const DESTINATION_PORT: usize = 32;
    pub const SOURCE_PORT: usize = 36;
    pub const FAMILY: Range<usize> = 40..42;
    pub const DESTINATION_LENGTH: usize = 42;
    pub const SOURCE_LENGTH: usize = 43;
    pub const PROTOCOL: usize = 44;
    pub const USER: Range<usize> = 52..56;
    /// Limits in bytes and packets.
    pub const LIMITS: Range<usize> = 56..88;
    pub const PRIORITY: Range<usize> = 152..156;
    pub const INDEX: Range<usize> = 156..160;
    pub const DIRECTION: usize = 160;
    pub const ACTION: usize = 161;
}
/// Length of a selector, with which a policy begins.
const SELECTOR: usize = 56;
/// Selector, index and direction: `struct xfrm_userpolicy_id`.
const POLICY_ID: usize = 64;
pub const FORWARD: u8 = 2;
const ALLOW: u8 = 0;
pub const BLOCK: u8 = 1;
/// "bm" in the upper half of the user id; the lower half is the owner's.
const OWN: u32 = 0x626d_0000;
/// Priorities of our policies: behind those of strongSwan and of `ip xfrm`, which start at 0.
const PRIORITY_MIN: u32 = 0xf000_0000;
/// How often a list is read again because it changed meanwhile.
const PASSES: u32 = 5;

/// A port, or several: those that equal `value` in the bits of `mask`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PortMask {
    pub value: u16,
    pub mask: u16,
}

/// What Linux does with routed packets.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ForwardPolicy {
    /// Prefix, of the same family as the destination.
    pub source: (IpAddr, u8),
    pub destination: (IpAddr, u8),
    /// 0: any.
    pub protocol: u8,
    pub source_port: PortMask,
    pub destination_port: PortMask,
    /// Their mark: value, and the bits that are compared.
    pub mark: (u32, u32),
    /// Whether they pass; otherwise Linux drops them.
    pub allow: bool,
}

/// What [`replace`] has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replacement {
    /// Policies that were not there as requested.
    pub added: usize,
    /// Policies of the owner that are not wanted any more.
    pub removed: usize,
}

/// The kernel's group of events about changed policies (`XFRMNLGRP_POLICY`).
const POLICY_EVENTS: u32 = 4;
/// Room for some thousand events.
const EVENTS: usize = 1 << 20;

/// Notices when somebody removes policies from the kernel.
#[derive(Debug)]
pub struct Removals(Socket);

/// What was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Removal {
    #[default]
    Nothing,
    /// Some of brickmoon's, by brickmoon or others.
    Own,
    /// All, or more than there is room to tell.
    All,
}

impl Removals {
    /// Watches the calling thread's network namespace; `None` if the kernel has no IPsec.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn watch() -> Result<Option<Self>, Error> {
        Ok(dump::subscribe(NETLINK_XFRM, &[POLICY_EVENTS], EVENTS)?.map(Self))
    }

    /// What was removed since the last call.
    pub fn take(&mut self) -> Removal {
        let mut removed = Removal::Nothing;
        loop {
            let count = match self.0.receive(false) {
                Ok(0) => return removed,
                Ok(count) => count,
                Err(Error::Overrun) => {
                    removed = Removal::All;
                    continue;
                }
                // It is compared from time to time anyhow.
                Err(_) => return Removal::Own,
            };
            for raw in (0..count).flat_map(|index| Messages(self.0.slot(index))).map_while(Result::ok) {
                removed = removed.max(match raw.kind {
                    message::FLUSH_POLICIES => Removal::All,
                    message::DELETE_POLICY if is_own(raw.body) => Removal::Own,
                    _ => Removal::Nothing,
                });
            }
        }
    }
}

/// Whether a policy of the kernel was made here.
pub fn is_own(policy: &[u8]) -> bool {
    user_of(policy) & 0xffff_0000 == OWN
}

fn user_of(policy: &[u8]) -> u32 {
    u32::from_ne_bytes(bytes_at(policy, at::USER))
}

/// The bytes of a field; zeros if there is none.
fn bytes_at(policy: &[u8], range: Range<usize>) -> [u8; 4] {
    policy.get(range).and_then(|bytes| bytes.try_into().ok()).unwrap_or_default()
}

/// Makes these the policies of `owner` in this thread's network namespace; those with a lower rank come first. New ones
/// are added before old ones are removed. `None` if the kernel has no IPsec.
///
/// # Errors
/// The kernel's error; policies may then be missing, but none is removed.
pub fn replace(
    owner: u16,
    policies: impl IntoIterator<Item = (ForwardPolicy, u32)>,
) -> Result<Option<Replacement>, Error> {
    let Some(mut socket) = dump::open(NETLINK_XFRM)? else { return Ok(None) };
    let Some(mut present) = list(&mut socket, owner)? else { return Ok(None) };
    let mut replaced = Replacement::default();
    for (policy, rank) in policies {
        let bytes = encode(&policy, owner, PRIORITY_MIN + rank);
        let before = present.remove(&key(&bytes));
        if before.is_none_or(|before| before.differs_from(&bytes)) {
            add(&mut socket, &bytes)?;
            replaced.added += 1;
        }
    }
    for ((selector, mark), policy) in present {
        remove(&mut socket, &selector, mark, policy.index)?;
        replaced.removed += 1;
    }
    Ok(Some(replaced))
}

/// Adds policies of `owner` with the lowest rank, and removes others, without looking at those that there are. `None` if
/// the kernel has no IPsec.
///
/// # Errors
/// The kernel's error, also if one that is to be removed is not there.
pub fn change(owner: u16, new: &[ForwardPolicy], gone: &[ForwardPolicy]) -> Result<Option<()>, Error> {
    let Some(mut socket) = dump::open(NETLINK_XFRM)? else { return Ok(None) };
    for policy in new {
        add(&mut socket, &encode(policy, owner, PRIORITY_MIN))?;
    }
    for policy in gone {
        let (selector, mark) = key(&encode(policy, owner, PRIORITY_MIN));
        remove(&mut socket, &selector, mark, 0)?;
    }
    Ok(Some(()))
}

/// By what the kernel distinguishes policies: selector and mark.
type Key = (Vec<u8>, [u8; MARK_LENGTH]);

fn key(policy: &[u8]) -> Key {
    let (fixed, _) = policy.split_at(SELECTOR.min(policy.len()));
    (fixed.to_vec(), mark(policy))
}

/// The mark of a policy, zeros if it has none.
pub fn mark(policy: &[u8]) -> [u8; MARK_LENGTH] {
    let found = Attributes::after_header(policy, POLICY).find(MARK).ok().flatten();
    found.and_then(|value| value.first_chunk().copied()).unwrap_or_default()
}

fn put_mark(to: &mut Vec<u8>, mark: [u8; MARK_LENGTH]) {
    if mark != [0; MARK_LENGTH] {
        to.extend(((4 + MARK_LENGTH) as u16).to_ne_bytes());
        to.extend(MARK.to_ne_bytes());
        to.extend(mark);
    }
}

/// Adds a policy, or changes the one with the same selector and mark.
fn add(socket: &mut Socket, policy: &[u8]) -> Result<(), Error> {
    dump::change(socket, "add an IPsec policy", message::UPDATE_POLICY, 0, policy)
}

/// Removes the policy with an index, or, if that is 0, with this selector; it has this mark.
fn remove(socket: &mut Socket, selector: &[u8], mark: [u8; MARK_LENGTH], index: u32) -> Result<(), Error> {
    let mut id = vec![0; POLICY_ID];
    id[..SELECTOR].copy_from_slice(selector);
    id[SELECTOR..SELECTOR + 4].copy_from_slice(&index.to_ne_bytes());
    id[SELECTOR + 4] = FORWARD;
    put_mark(&mut id, mark);
    dump::change(socket, "remove an IPsec policy", message::DELETE_POLICY, 0, &id)
}

/// What is known of a policy in the kernel besides its selector.
struct Present {
    priority: u32,
    index: u32,
    action: u8,
}

impl Present {
    /// Whether it differs from this policy.
    fn differs_from(&self, policy: &[u8]) -> bool {
        policy[at::PRIORITY] != self.priority.to_ne_bytes() || policy[at::ACTION] != self.action
    }
}

/// The policies of `owner`; `None` if the kernel has no IPsec.
fn list(socket: &mut Socket, owner: u16) -> Result<Option<BTreeMap<Key, Present>>, Error> {
    for _ in 0..PASSES {
        let mut found = BTreeMap::new();
        let dumped = dump::dump(socket, "list IPsec policies", message::GET_POLICY, &[0; 64], |raw| {
            found.extend(own(raw, owner)?);
            Ok(())
        });
        match dumped {
            Ok(Dumped::Whole) => return Ok(Some(found)),
            Ok(Dumped::Interrupted) => {}
            Err(error) if is_absent(&error) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Err(Error::Silent { request: "list IPsec policies (they keep changing)" })
}

/// A policy of `owner`.
fn own(raw: &Raw<'_>, owner: u16) -> Result<Option<(Key, Present)>, Malformed> {
    if raw.kind != message::NEW_POLICY {
        return Ok(None);
    }
    let Some(fixed) = raw.body.get(..POLICY) else {
        return Err(Malformed::Header { kind: raw.kind, length: raw.body.len() });
    };
    if user_of(fixed) != OWN | u32::from(owner) || fixed[at::DIRECTION] != FORWARD {
        return Ok(None);
    }
    let [priority, index] = [at::PRIORITY, at::INDEX].map(|range| u32::from_ne_bytes(bytes_at(fixed, range)));
    let present = Present { priority, index, action: fixed[at::ACTION] };
    Ok(Some((key(raw.body), present)))
}

fn encode(policy: &ForwardPolicy, owner: u16, priority: u32) -> Vec<u8> {
    let mut to = vec![0; POLICY];
    for (address, range) in [(policy.destination.0, at::DESTINATION), (policy.source.0, at::SOURCE)] {
        match address {
            IpAddr::V4(address) => to[range][..4].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => to[range].copy_from_slice(&address.octets()),
        }
    }
    for (port, at) in [(policy.destination_port, at::DESTINATION_PORT), (policy.source_port, at::SOURCE_PORT)]
    {
        to[at..at + 2].copy_from_slice(&port.value.to_be_bytes());
        to[at + 2..at + 4].copy_from_slice(&port.mask.to_be_bytes());
    }
    let family = if policy.source.0.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    to[at::FAMILY].copy_from_slice(&(family as u16).to_ne_bytes());
    to[at::DESTINATION_LENGTH] = policy.destination.1;
    to[at::SOURCE_LENGTH] = policy.source.1;
    to[at::PROTOCOL] = policy.protocol;
    to[at::USER].copy_from_slice(&(OWN | u32::from(owner)).to_ne_bytes());
    // No limit.
    to[at::LIMITS].fill(0xff);
    to[at::PRIORITY].copy_from_slice(&priority.to_ne_bytes());
    to[at::DIRECTION] = FORWARD;
    to[at::ACTION] = if policy.allow { ALLOW } else { BLOCK };
    let mut mark = [0; MARK_LENGTH];
    mark[..4].copy_from_slice(&policy.mark.0.to_ne_bytes());
    mark[4..].copy_from_slice(&policy.mark.1.to_ne_bytes());
    put_mark(&mut to, mark);
    to
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> ForwardPolicy {
        ForwardPolicy {
            source: ("10.1.0.0".parse().unwrap(), 24),
            destination: ("10.2.0.0".parse().unwrap(), 16),
            protocol: 6,
            source_port: PortMask::default(),
            destination_port: PortMask { value: 80, mask: 0xffff },
            mark: (0, 0),
            allow: false,
        }
    }

    #[test]
    fn encodes_a_policy_as_ip_xfrm_does() {
        // `ip xfrm policy add src 10.1.0.0/24 dst 10.2.0.0/16 proto tcp dport 80 dir fwd action block priority N`, with
        // the user id in addition.
        let bytes = encode(&policy(), 7, PRIORITY_MIN);
        let mut expected = vec![0; POLICY];
        expected[..4].copy_from_slice(&[10, 2, 0, 0]);
        expected[16..20].copy_from_slice(&[10, 1, 0, 0]);
        expected[32..40].copy_from_slice(&[0, 80, 0xff, 0xff, 0, 0, 0, 0]);
        expected[40..45].copy_from_slice(&[2, 0, 16, 24, 6]);
        expected[52..56].copy_from_slice(&[7, 0, b'm', b'b']);
        expected[56..88].fill(0xff);
        expected[152..162].copy_from_slice(&[0, 0, 0, 0xf0, 0, 0, 0, 0, 2, 1]);
        assert_eq!(bytes, expected);
        assert!(is_own(&bytes) && !is_own(&[0; POLICY]) && !is_own(&[]));
        // The same with `mark 42 mask 0xff`.
        expected.extend([12, 0, 21, 0, 42, 0, 0, 0, 0xff, 0, 0, 0]);
        assert_eq!(encode(&ForwardPolicy { mark: (42, 0xff), ..policy() }, 7, PRIORITY_MIN), expected);
    }

    #[test]
    fn removed_policies_are_noticed() {
        let noticed = std::thread::spawn(|| {
            if let Err(error) = bm_sys::Namespace::Network.unshare() {
                return eprintln!("skipped: needs root for a network namespace: {error}");
            }
            let Some(mut removals) = Removals::watch().unwrap() else {
                return eprintln!("skipped: this kernel has no IPsec");
            };
            let ours = [policy()];
            for (added, removed, expected) in [
                (&ours[..], &[][..], Removal::Nothing),
                (&[], &ours, Removal::Own),
                (&ours, &[], Removal::Nothing),
            ] {
                change(7, added, removed).unwrap().unwrap();
                assert_eq!(removals.take(), expected);
            }
            let flush = std::process::Command::new("ip").args(["xfrm", "policy", "flush"]).status();
            match flush {
                Ok(status) => assert!(status.success()),
                Err(error) => return eprintln!("skipped: a flush: there is no iproute2: {error}"),
            }
            assert_eq!((removals.take(), removals.take()), (Removal::All, Removal::Nothing));
        });
        noticed.join().unwrap();
    }

    #[test]
    fn finds_the_policies_of_its_owner() {
        let mut bytes = encode(&policy(), 7, PRIORITY_MIN + 3);
        bytes[at::INDEX].copy_from_slice(&[0x12, 0, 0, 0]);
        let find = |body: &[u8], owner| {
            own(&Raw { kind: message::NEW_POLICY, flags: 0, sequence: 0, port: 0, body }, owner)
        };
        assert!(find(&bytes, 8).unwrap().is_none());
        let ((selector, mark), present) = find(&bytes, 7).unwrap().unwrap();
        assert_eq!((&selector[..], mark, present.index), (&bytes[..SELECTOR], [0; 8], 0x12));
        let marked = encode(&ForwardPolicy { mark: (42, 0xff), ..policy() }, 7, PRIORITY_MIN);
        assert_eq!(find(&marked, 7).unwrap().unwrap().0.1, [42, 0, 0, 0, 0xff, 0, 0, 0]);
        assert!(!present.differs_from(&bytes));
        bytes[at::ACTION] = ALLOW;
        assert!(present.differs_from(&bytes));
        assert!(find(&bytes[..POLICY - 1], 7).is_err(), "a truncated message");
    }
}
