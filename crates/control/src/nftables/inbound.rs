//! Inbound policies of IPsec where no worker looks them up: while workers are restarted, and after the daemon has ended.
//!
//! ```text
//! steering program, workers ─► ingress of r0: owned table: marks ─► r0_inbound: without mark? the policies, in order
//! ```
//!
//! What they protect or discard is dropped, also if it is for this machine: nothing decrypts then, so all of it has arrived in
//! clear (RFC 4301 5.2). What workers hand to Linux has passed their policies, and looks like any other packet of the port:
//! hence the mark, which ends with the daemon.

use super::rules::{Kind, any_of_transport, frame_is, later_fragment, matches_of};
use super::{CHECKED, PortInterface, PortNow, accept_marked, chain_name};
use bm_ipsec::{Action, Policy};
use bm_netlink::nft::{Chain, Hook, Match, Rule, Verdict};

/// The packets that a policy can be about; others have headers that Linux cannot follow either.
const KINDS: [Kind; 4] = [Kind::Ipv4, Kind::Ipv4Later, Kind::Ipv6, Kind::Ipv6Later];

/// The chains of a port, with those that others jump to first; none without an interface of the port. Policies come in the
/// order of their priorities.
pub fn chains(policies: &[Policy], port: &PortNow) -> Vec<Chain> {
    let marked = match port.interface {
        PortInterface::ByWorkers { ifindex, marked: true, .. } => Some(accept_marked(ifindex, CHECKED)),
        PortInterface::Unusable(_) => None,
        // Without a mark, what workers have decrypted for this machine would be dropped.
        PortInterface::ByWorkers { marked: false, .. } => return Vec::new(),
        PortInterface::Missing | PortInterface::Usable(_) => return Vec::new(),
    };
    let name = format!("{}_inbound", port.name);
    let goto = |matches: Vec<Match>, kind| Rule {
        comment: String::new(),
        matches,
        verdict: Verdict::Goto(chain_name(&name, kind)),
    };
    let [ipv4, ipv6] = [0x0800, 0x86dd].map(frame_is);
    let by_kind = [
        goto(vec![ipv4.clone(), later_fragment(Kind::Ipv4)], Kind::Ipv4Later),
        goto(vec![ipv4], Kind::Ipv4),
        goto(vec![ipv6.clone(), any_of_transport(), later_fragment(Kind::Ipv6)], Kind::Ipv6Later),
        goto(vec![ipv6], Kind::Ipv6),
    ];
    let rules = marked.into_iter().chain(by_kind).collect();
    let hook = Hook::Ingress(port.device.clone());
    let by_kind = KINDS.map(|kind| Chain {
        name: chain_name(&name, kind),
        hook: Hook::Nowhere,
        rules: policies.iter().filter_map(|policy| of_policy(policy, kind)).collect(),
    });
    let mut chains: Vec<_> = by_kind.into();
    chains.push(Chain { name, hook, rules });
    chains
}

/// The rule of a policy; `None` if no packet of the kind can match. Later fragments have no ports: they match what is
/// dropped, as in workers.
fn of_policy(policy: &Policy, kind: Kind) -> Option<Rule> {
    let selector = &policy.selector;
    let (mut matches, ports) = matches_of(
        [selector.source.as_ref(), selector.destination.as_ref()],
        selector.protocol,
        [selector.source_ports.as_ref(), selector.destination_ports.as_ref()],
        kind,
    )?;
    let verdict = match policy.action {
        Action::Bypass if kind.is_later() && !ports.is_empty() => return None,
        Action::Bypass => Verdict::Accept,
        Action::Discard | Action::Protect(_) | Action::OneOf(_) | Action::Template(..) => Verdict::Drop,
    };
    if !kind.is_later() {
        matches.extend(ports);
    }
    Some(Rule { comment: "ipsec".into(), matches, verdict })
}
