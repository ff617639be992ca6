//! One end of each fabric link, and the ways to other nodes that these are.

use bm_vlb::address::Node;

use crate::counters::Counters;
use crate::fabric::AttachedLink;
use crate::link_account::LinkAccount;
use crate::message::{Entry, Epochs};
use crate::prober::{LinkQuality, Probed};
use crate::session::{Refusal, Session, State};
use crate::settings::{FabricLink, Settings};
use crate::view::{LinkView, describe_refusal, describe_state};
use crate::ways::{FirstHop, detour};

/// One link to another node.
pub(crate) struct FabricEnd {
    pub device: String,
    pub peer: String,
    pub session: Session,
    pub attached: Option<AttachedLink>,
    /// Probes on it, while it is attached.
    pub probed: Option<Probed>,
    /// Frames that the other end has sent.
    pub account: LinkAccount,
    pub mtu: u32,
    pub speed_bps: u64,
    /// Whether the interface has a carrier and is up.
    pub running: bool,
    /// Why the interface cannot be used.
    pub trouble: Option<String>,
    /// What was logged last.
    pub logged: (Option<State>, Option<Refusal>),
}

impl FabricEnd {
    /// Whether frames can be sent to the other end.
    pub fn is_usable(&self) -> bool {
        self.attached.is_some() && self.running && self.session.reaches()
    }

    /// Whether the other end may still announce something for the first time.
    pub(crate) fn may_announce(&self) -> bool {
        self.attached.is_some() && self.running && !self.session.has_announced()
    }

    /// What probes have shown.
    pub(crate) fn observed(&self) -> LinkQuality {
        self.probed.as_ref().map_or_else(LinkQuality::default, Probed::observed)
    }

    /// Logs a change; returns whether the state is another one.
    pub(crate) fn log_change(&mut self, now_ns: u64) -> bool {
        let state = self.attached.is_some().then(|| self.session.state(now_ns));
        let refused = self.session.refused(now_ns).cloned();
        let logged = (state, refused);
        if logged == self.logged {
            return false;
        }
        let (device, peer) = (&self.device, &self.peer);
        match &logged {
            (_, Some(why)) => {
                tracing::warn!("fabric link {device} to {peer}: {}", describe_refusal(why, peer))
            }
            (Some(State::Up), None) => tracing::info!("fabric link {device}: {peer} is up"),
            (Some(state), None) => {
                tracing::warn!("fabric link {device} to {peer}: {}", describe_state(*state))
            }
            (None, None) => {}
        }
        let before = std::mem::replace(&mut self.logged, logged);
        before.0 != self.logged.0
    }

    /// The link, for replies to users.
    pub fn view(&self, counters: Counters, now_ns: u64) -> LinkView {
        let observed = self.observed();
        let refused = self.session.refused(now_ns).map(|why| describe_refusal(why, &self.peer));
        LinkView {
            device: self.device.clone(),
            peer: self.peer.clone(),
            node: self.session.peer().number(),
            state: self.attached.is_some().then(|| self.session.state(now_ns)),
            trouble: self.trouble.clone().or(refused),
            round_trip_ns: Some(observed.round_trip_ns).filter(|ns| *ns > 0),
            timeout_ns: observed.timeout_ns,
            failures: observed.failures,
            is_drained: self.session.is_drained(),
            epoch: self.session.is_behind(now_ns).then(|| self.session.peer_epoch().number()),
            carried: self.account.carried(),
            counters,
        }
    }
}

/// One end for each configured link; none is attached to its interface yet.
pub(crate) fn fabric_ends(
    settings: &Settings,
    own: Node,
    epochs: Epochs,
    nonce: fn() -> u64,
) -> Vec<FabricEnd> {
    let ends = settings.links.iter().filter_map(|link: &FabricLink| {
        let peer = settings.member(&link.peer)?.node;
        let session = Session::new(own, &settings.name, peer, epochs, nonce);
        let (device, peer) = (link.device.clone(), link.peer.clone());
        Some(FabricEnd {
            device,
            peer,
            session,
            attached: None,
            probed: None,
            account: LinkAccount::default(),
            mtu: 0,
            speed_bps: u64::from(link.speed) * 1_000_000,
            running: false,
            trouble: None,
            logged: (None, None),
        })
    });
    ends.collect()
}

/// Which ways to other nodes there are.
pub(crate) fn ways_of(links: &[FabricEnd]) -> Vec<FirstHop> {
    let ways = links.iter().map(|link| {
        let usable = link.is_usable();
        // Its announcement says to which nodes it has no link.
        let announced = link.session.announced().iter().filter(|_| usable);
        let without = announced.filter_map(|entry| match entry {
            Entry::NoLink(node) => Node::new(*node),
            _ => None,
        });
        FirstHop {
            node: link.session.peer(),
            capacity_bps: if usable { link.speed_bps } else { 0 },
            transit: link.session.has_announced() && !link.session.is_drained(),
            without: without.collect(),
        }
    });
    ways.collect()
}

/// The link by which routes to the node at the other end of this one lead if that cannot be used, but others lead there:
/// interface and MTU. Workers choose an intermediate for each packet then.
pub(crate) fn detour_of(links: &[FabricEnd], link: &FabricEnd) -> Option<(u32, u32)> {
    if link.is_usable() || !link.session.has_announced() {
        return None;
    }
    let over = detour(&ways_of(links), link.session.peer())?;
    let first = links.iter().find(|link| link.session.peer() == over)?;
    Some((first.attached.as_ref()?.ifindex, first.mtu))
}
