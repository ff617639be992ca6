//! IPsec policies that concern routed packets: those of direction fwd and out that block or require a transformation,
//! and the default for packets without a policy.
//!
//! A policy that just allows does not matter. If one of higher priority exempts packets from another that blocks,
//! these are listed nevertheless, which is too wide but never too narrow. Policies of direction in are about packets
//! to this machine. The interface of a selector is ignored, since it has a different meaning in each direction, and
//! policies for marks that packets of workers do not have, which is 0, are not listed: what nftables or tc marks is listed
//! for that. Outbound policies with an interface id concern what leaves by the XFRM interface of this number; those of
//! direction fwd concern what comes out of a tunnel, which Linux gets as it came. Policies that brickmoon has added
//! (`bm_netlink::xfrm`) are for packets that it does not
//! forward itself, and those that it applies itself ([`AppliedPolicies`]) need no help of Linux.

use super::condition::{Condition, Families};
use super::entries::Entries;
use super::names::Names;
use super::part::{Part, Unreadable};
use super::{Feature, Traffic};
use bm_netlink::attribute::Attributes;
use bm_netlink::dump::{self, Dumped, is_absent};
use bm_netlink::error::{Error, Malformed};
use bm_netlink::family::ip_address;
use bm_netlink::message::Raw;
use bm_netlink::socket::Socket;
use bm_netlink::xfrm::{self, IF_ID, POLICY, TEMPLATES, at, message};
use bm_sys::Mutex;
use bm_wire::Family;
use netlink_sys::protocols::NETLINK_XFRM;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

/// Groups of the events: policies that expire, and policies that change.
pub(super) const GROUPS: [u32; 2] = [2, 4];

const OUT: u8 = 1;

/// Whether a message is about a change of policies that are not ours, of which there may be thousands.
pub(super) fn is_event(raw: &Raw<'_>) -> bool {
    match raw.kind {
        // Both structures begin with the selector.
        message::NEW_POLICY | message::UPDATE_POLICY | message::DELETE_POLICY => !xfrm::is_own(raw.body),
        message::POLICY_EXPIRED | message::FLUSH_POLICIES | message::GET_DEFAULT => true,
        _ => false,
    }
}

/// The kernel's policies that brickmoon applies itself, by their indexes: packets that match them are not left to Linux.
#[derive(Clone, Debug, Default)]
pub struct AppliedPolicies(Arc<Mutex<BTreeSet<u32>>>);

impl AppliedPolicies {
    /// Replaces all of them; whether they have changed.
    pub(super) fn set(&self, indexes: BTreeSet<u32>) -> bool {
        let mut applied = self.0.lock();
        let differs = *applied != indexes;
        *applied = indexes;
        differs
    }
}

/// A policy that can drop or change routed packets.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Policy {
    index: u32,
    /// One that blocks is never applied elsewhere, even if it has become that a moment ago.
    blocks: bool,
    families: Families,
    condition: Condition,
    /// The number of an XFRM interface, whose packets alone it is for.
    if_id: Option<u32>,
    /// In the notation of `ip xfrm policy`.
    title: String,
}

/// The policies.
#[derive(Debug, Default)]
pub(super) struct Xfrm {
    socket: Option<Socket>,
    applied: AppliedPolicies,
    policies: Vec<Policy>,
    /// Directions in which packets without a policy are blocked.
    blocked: Vec<&'static str>,
}

impl Xfrm {
    pub fn new(applied: AppliedPolicies) -> Self {
        Self { applied, ..Self::default() }
    }
}

impl Part for Xfrm {
    fn feature(&self) -> Feature {
        Feature::Xfrm
    }

    fn title(&self) -> &'static str {
        "the list of IPsec policies"
    }

    fn read(&mut self, _: &Names) -> Result<bool, Unreadable> {
        let socket = self.socket.take().map_or_else(|| dump::open(NETLINK_XFRM), |socket| Ok(Some(socket)));
        let Some(mut socket) = socket? else { return Ok(false) };
        let policies = read_policies(&mut socket)?;
        self.blocked = read_default(&mut socket)?;
        self.policies = policies.ok_or(Unreadable::Restless)?;
        self.socket = Some(socket);
        Ok(true)
    }

    fn analyse(&self, names: &Names, entries: &mut Entries) {
        for direction in &self.blocked {
            let all = Traffic::All { ipv4: true, ipv6: true };
            entries.add(Feature::Xfrm, all, || format!("ip xfrm policy setdefault {direction} block"));
        }
        let applied = self.applied.0.lock();
        for policy in self.policies.iter().filter(|policy| policy.blocks || !applied.contains(&policy.index))
        {
            if let Some(if_id) = policy.if_id {
                let links = names.with_if_id(if_id);
                links.for_each(|link| {
                    entries.add(Feature::Xfrm, Traffic::Out(link), || policy.title.clone());
                });
                continue;
            }
            let traffic = policy.condition.traffic(policy.families, names);
            let traffic = traffic.unwrap_or(policy.families.all());
            entries.add(Feature::Xfrm, traffic, || policy.title.clone());
        }
    }
}

/// Adds the packets that the policies in these messages affect.
pub(super) fn from_messages(
    messages: &[Raw<'_>],
    names: &Names,
    entries: &mut Entries,
) -> Result<(), Malformed> {
    let mut xfrm = Xfrm::default();
    for raw in messages.iter().filter(|raw| raw.kind == message::NEW_POLICY) {
        xfrm.policies.extend(read_policy(raw.body)?);
    }
    xfrm.analyse(names, entries);
    Ok(())
}

/// How often a list is read again because it changed meanwhile.
const PASSES: u32 = 5;

fn read_policies(socket: &mut Socket) -> Result<Option<Vec<Policy>>, Error> {
    for _ in 0..PASSES {
        let mut policies = Vec::new();
        // The header of such a request has no field that selects.
        let dumped = dump::dump(socket, "list IPsec policies", message::GET_POLICY, &[0; 64], |raw| {
            if raw.kind == message::NEW_POLICY {
                policies.extend(read_policy(raw.body)?);
            }
            Ok(())
        });
        match dumped {
            Ok(Dumped::Whole) => return Ok(Some(policies)),
            Ok(Dumped::Interrupted) => {}
            Err(error) if is_absent(&error) => return Ok(Some(Vec::new())),
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// A policy; `None` if it does not affect routed packets.
fn read_policy(body: &[u8]) -> Result<Option<Policy>, Malformed> {
    let Some(fixed) = body.get(..POLICY) else {
        return Err(Malformed::Header { kind: message::NEW_POLICY, length: body.len() });
    };
    if xfrm::is_own(fixed) || xfrm::mark(body)[..4] != [0; 4] {
        return Ok(None);
    }
    let direction = match fixed[at::DIRECTION] {
        OUT => "out",
        xfrm::FORWARD => "fwd",
        _ => return Ok(None),
    };
    let attributes = Attributes::after_header(body, POLICY);
    let if_id = attributes.find(IF_ID)?.and_then(<[u8]>::first_chunk);
    let if_id = if_id.map(|bytes| u32::from_ne_bytes(*bytes)).filter(|if_id| *if_id != 0);
    if if_id.is_some() && direction != "out" {
        return Ok(None);
    }
    let templates = attributes.find(TEMPLATES)?.unwrap_or_default();
    let action = match (fixed[at::ACTION] == xfrm::BLOCK, templates.is_empty()) {
        (true, _) => "action block",
        (false, false) => "with a template",
        (false, true) => return Ok(None),
    };
    let family = u16::from_ne_bytes([fixed[at::FAMILY.start], fixed[at::FAMILY.start + 1]]);
    // A selector without a family is for both.
    let family = u8::try_from(family).ok().and_then(Family::from_number);
    let selector = match family {
        Some(family) => format!("src {} dst {}", address(fixed, family, true), address(fixed, family, false)),
        None => "for any address".into(),
    };
    let of_interface = if_id.map_or(String::new(), |if_id| format!(" if_id {if_id:#x}"));
    let index = fixed[at::INDEX].first_chunk().map_or(0, |index| u32::from_ne_bytes(*index));
    Ok(Some(Policy {
        index,
        blocks: fixed[at::ACTION] == xfrm::BLOCK,
        families: family.map_or(Families::BOTH, Families::only),
        condition: condition(fixed, family),
        if_id,
        title: format!("ip xfrm policy dir {direction} {selector} {action}{of_interface}"),
    }))
}

/// One side of a selector, as iproute2 prints it.
fn address(fixed: &[u8], family: Family, source: bool) -> String {
    let (bytes, length) = side(fixed, source);
    let bytes = if family == Family::V4 { &bytes[..4] } else { bytes };
    let address = ip_address(bytes).unwrap_or(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED));
    format!("{address}/{length}")
}

/// Address and prefix length of one side.
fn side(fixed: &[u8], source: bool) -> (&[u8], u8) {
    if source {
        (&fixed[at::SOURCE], fixed[at::SOURCE_LENGTH])
    } else {
        (&fixed[at::DESTINATION], fixed[at::DESTINATION_LENGTH])
    }
}

fn condition(fixed: &[u8], family: Option<Family>) -> Condition {
    let protocol = Some(fixed[at::PROTOCOL]).filter(|&protocol| protocol != 0);
    let mut condition = Condition { family, protocol, ..Condition::default() };
    for (source, port) in [(true, at::SOURCE_PORT), (false, at::DESTINATION_PORT)] {
        let at = usize::from(!source) * 2;
        condition.transport.set(at, &fixed[port..port + 2], &fixed[port + 2..port + 4]);
        let (bytes, length) = side(fixed, source);
        match family {
            Some(Family::V4) => {
                let at = if source { 12 } else { 16 };
                condition.network.set(at, &bytes[..4], &mask(length));
            }
            Some(Family::V6) => {
                let at = if source { 8 } else { 24 };
                condition.network.set(at, bytes, &mask(length));
            }
            None => {}
        }
    }
    condition
}

/// The mask of a prefix of this length.
fn mask(length: u8) -> [u8; 16] {
    u128::MAX.checked_shl(128 - u32::from(length.min(128))).unwrap_or(0).to_be_bytes()
}

/// In which directions packets without a policy are blocked.
fn read_default(socket: &mut Socket) -> Result<Vec<&'static str>, Error> {
    const IS_BLOCK: u8 = 1;
    let mut blocked = Vec::new();
    let asked = dump::request(socket, "get the default IPsec policy", message::GET_DEFAULT, &[0; 4], |raw| {
        // In, fwd, out.
        if let (message::GET_DEFAULT, [_, forward, out, ..]) = (raw.kind, raw.body) {
            blocked.extend((*forward == IS_BLOCK).then_some("fwd"));
            blocked.extend((*out == IS_BLOCK).then_some("out"));
        }
        Ok(())
    });
    match asked {
        // Kernels before 5.14 have none.
        Err(error) if is_absent(&error) => Ok(Vec::new()),
        asked => asked.map(|()| blocked),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Addresses, Match};

    /// `src 10.0.0.0/8 dst 0.0.0.0/0 proto tcp dport 80 dir fwd action block`
    const BLOCK_TCP: &str = "
        000000000000000000000000000000000a0000000000000000000000000000000050ffff00000000020000080600
        00000000000000000000ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff00000000
        0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000fe5f
        036b000000000000000000000000000000000200000002010000000000000a0010000000000000000000";
    /// `src ::/0 dst 2001:db8::/32 dir out tmpl ... proto esp mode tunnel`
    const TEMPLATE: &str = "
        20010db80000000000000000000000000000000000000000000000000000000000000000000000000a0020000000
        00000000000000000000ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff00000000
        0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000fe5f
        036b000000000000000000000000000000000900000001000000000000004400050020010db8000a000000000000
        0000000200000000320000000a00000020010db8000a000000000000000000010000000001000000ffffffffffff
        ffffffffffff0a0010000000000000000000";
    /// `src 10.1.0.0/16 dst 10.2.0.0/16 dir fwd`
    const ALLOW: &str = "
        0a0200000000000000000000000000000a0100000000000000000000000000000000000000000000020010100000
        00000000000000000000ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff00000000
        0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000fe5f
        036b000000000000000000000000000000001200000002000000000000000a0010000000000000000000";
    /// `src 10.1.0.0/16 dst 10.2.0.0/16 dir in action block`
    const IN: &str = "
        0a0200000000000000000000000000000a0100000000000000000000000000000000000000000000020010100000
        00000000000000000000ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff00000000
        0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000fe5f
        036b000000000000000000000000000000001800000000010000000000000a0010000000000000000000";

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.chunks(2).map(pair).collect()
    }

    fn listed(policy: &[u8]) -> Vec<(Traffic, String)> {
        let policies = read_policy(policy).unwrap().into_iter().collect();
        let xfrm = Xfrm { policies, ..Xfrm::default() };
        let mut entries = Entries::default();
        xfrm.analyse(&Names::default(), &mut entries);
        entries.finish().into_iter().map(|entry| (entry.traffic, entry.why)).collect()
    }

    #[test]
    fn blocking_and_transforming_policies_are_listed() {
        let tcp = Match {
            addresses: Addresses::Ipv4(Some("10.0.0.0/8".parse().unwrap()), None),
            protocol: Some(6),
            destination_ports: Some(80..=80),
            ..Match::default()
        };
        let why = "ip xfrm policy dir fwd src 10.0.0.0/8 dst 0.0.0.0/0 action block".to_owned();
        assert_eq!(listed(&bytes(BLOCK_TCP)), [(Traffic::Matching(tcp), why)]);
        let six = Addresses::Ipv6(None, Some("2001:db8::/32".parse().unwrap()));
        let six = Traffic::Matching(Match { addresses: six, ..Match::default() });
        let why = "ip xfrm policy dir out src ::/0 dst 2001:db8::/32 with a template".to_owned();
        assert_eq!(listed(&bytes(TEMPLATE)), [(six, why)]);
    }

    #[test]
    fn allowing_and_local_policies_are_not_listed() {
        assert_eq!((listed(&bytes(ALLOW)), listed(&bytes(IN))), (vec![], vec![]));
    }

    #[test]
    fn policies_that_are_applied_elsewhere_are_not_listed() {
        let policies: Vec<_> =
            [BLOCK_TCP, TEMPLATE].iter().filter_map(|hex| read_policy(&bytes(hex)).unwrap()).collect();
        let applied = AppliedPolicies::default();
        let xfrm = Xfrm { policies, ..Xfrm::new(applied.clone()) };
        let count = || {
            let mut entries = Entries::default();
            xfrm.analyse(&Names::default(), &mut entries);
            entries.finish().len()
        };
        assert_eq!(count(), 2);
        assert!(applied.set([9].into()) && !applied.set([9].into()));
        assert_eq!(count(), 1);
        // 2 is the index of the one that blocks.
        assert!(applied.set([9, 2].into()));
        assert_eq!(count(), 1);
        assert!(applied.set(BTreeSet::new()));
        assert_eq!(count(), 2);
    }

    #[test]
    fn policies_for_marked_packets_are_not_listed() {
        for (value, listed_count) in [(0, 1), (0x2a, 0)] {
            let mark = [12, 0, 21, 0, value, 0, 0, 0, 0xff, 0, 0, 0];
            assert_eq!(listed(&[bytes(BLOCK_TCP), mark.to_vec()].concat()).len(), listed_count);
        }
    }

    #[test]
    fn policies_of_an_xfrm_interface_concern_what_leaves_by_it() {
        let mut policy = bytes(TEMPLATE);
        policy.extend_from_slice(&[8, 0, 31, 0, 42, 0, 0, 0]);
        let mut names = Names::default();
        let listed = |policy: &[u8], names: &Names| {
            let policies = read_policy(policy).unwrap().into_iter().collect();
            let mut entries = Entries::default();
            Xfrm { policies, ..Xfrm::default() }.analyse(names, &mut entries);
            entries.finish().into_iter().map(|entry| (entry.traffic, entry.why)).collect::<Vec<_>>()
        };
        assert_eq!(listed(&policy, &names), []);
        for (ifindex, if_id) in [(7, 42), (8, 43)] {
            let kind = bm_netlink::link::Kind::Xfrm { if_id };
            names.apply(bm_netlink::message::Message::Link(bm_netlink::Link {
                ifindex,
                kind,
                ..Default::default()
            }));
        }
        let why = "ip xfrm policy dir out src ::/0 dst 2001:db8::/32 with a template if_id 0x2a".to_owned();
        assert_eq!(listed(&policy, &names), [(Traffic::Out(7), why)]);
        policy[at::DIRECTION] = xfrm::FORWARD;
        assert_eq!(listed(&policy, &names), []);
    }

    #[test]
    fn a_port_range_by_mask_matches_all_ports() {
        let mut policy = bytes(BLOCK_TCP);
        policy[at::DESTINATION_PORT + 3] = 0xf0;
        let Traffic::Matching(found) = listed(&policy).remove(0).0 else { panic!("it has a prefix") };
        assert_eq!((found.protocol, found.destination_ports), (Some(6), None));
    }

    #[test]
    fn a_selector_for_both_families_matches_all_packets() {
        let mut policy = bytes(BLOCK_TCP);
        policy[at::FAMILY].fill(0);
        policy[at::PROTOCOL] = 0;
        assert_eq!(listed(&policy)[0].0, Traffic::All { ipv4: true, ipv6: true });
    }

    #[test]
    fn changes_of_our_own_policies_are_no_events() {
        let event = |kind, body: &[u8]| is_event(&Raw { kind, flags: 0, sequence: 0, port: 0, body });
        let other = bytes(BLOCK_TCP);
        let mut own = other.clone();
        own[at::USER].copy_from_slice(&0x626d_1234_u32.to_ne_bytes());
        for kind in [message::NEW_POLICY, message::UPDATE_POLICY, message::DELETE_POLICY] {
            assert!(event(kind, &other) && !event(kind, &own) && event(kind, &[]));
        }
        assert!(event(message::FLUSH_POLICIES, &[]) && !event(0x10, &other));
    }

    #[test]
    fn truncated_policies_are_malformed() {
        let whole = bytes(TEMPLATE);
        for end in 0..POLICY {
            assert!(read_policy(&whole[..end]).is_err());
        }
        assert!(read_policy(&whole[..POLICY + 8]).is_err(), "the template is cut off");
    }
}
