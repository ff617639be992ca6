//! Changes of the members, while packets are forwarded.
//!
//! ```text
//! accept frames of the new epoch ─► announce it with the next hello ─► the other nodes send frames with it
//!   └► end links to nodes that are no longer members, begin links to new ones; all others go on
//! ```
//!
//! Links to nodes that stay keep their sessions, routes and neighbors.

use bm_vlb::membership::Epoch;

use super::Cluster;
use crate::error::ClusterError;
use crate::fabric_end::fabric_ends;
use crate::settings::{Member, Settings};

impl Cluster {
    /// Makes these the members, under this epoch.
    ///
    /// # Errors
    /// If they do not fit this node's settings, or the kernel rejects something.
    pub(crate) fn change_members(
        &mut self,
        members: Vec<Member>,
        epoch: Epoch,
        now_ns: u64,
    ) -> Result<(), ClusterError> {
        let new = Settings { members, epoch, ..self.settings.clone() };
        if new == self.settings {
            return Ok(());
        }
        if let Some(problem) = new.problems().first() {
            return Err(ClusterError::Settings(problem.to_string()));
        }
        if !self.settings.differs_in_members_only(&new) {
            return Err(ClusterError::Settings(
                "the number of this node cannot change while it runs, nor can there be more nodes than there is room for".into(),
            ));
        }
        self.begin_epoch(epoch)?;
        self.end_links(&new);
        self.begin_links(&new);
        self.settings = new;
        self.set_members()?;
        self.publish_links();
        (self.changed, self.updated_ns, self.tick_ns) = (true, 0, now_ns);
        self.step(now_ns)
    }

    fn begin_epoch(&mut self, epoch: Epoch) -> Result<(), ClusterError> {
        let epochs = self.epochs.change(epoch);
        if epochs == self.epochs {
            return Ok(());
        }
        self.program.set_own(self.own, epochs.now, epochs.before)?;
        self.epochs = epochs;
        self.links.iter_mut().for_each(|link| link.session.set_epochs(epochs));
        tracing::info!(epoch = epoch.number(), "the members of the cluster have changed");
        Ok(())
    }

    /// Ends links to nodes that are no longer members, or have another number.
    fn end_links(&mut self, new: &Settings) {
        for at in (0..self.links.len()).rev() {
            let link = &self.links[at];
            if new.member(&link.peer).is_some_and(|member| member.node == link.session.peer()) {
                continue;
            }
            let _never_fails = self.program.set_link(self.links[at].session.peer(), 0);
            let ifindex = self.detach(at);
            self.left.extend(ifindex);
            let link = self.links.remove(at);
            tracing::info!("fabric link {}: {} is no longer a member of the cluster", link.device, link.peer);
        }
    }

    fn begin_links(&mut self, new: &Settings) {
        for end in fabric_ends(new, self.own, self.epochs, self.nonce) {
            if !self.links.iter().any(|link| link.device == end.device) {
                self.links.push(end);
            }
        }
    }

    /// Publishes to workers which link leads to which member.
    pub(super) fn publish_links(&self) {
        let all: Vec<_> = (0..)
            .zip(&self.settings.links)
            .filter_map(|(at, link)| Some((self.settings.member(&link.peer)?.node, at)))
            .collect();
        self.ways.published().set_links(&all);
    }

    /// Nodes to which there are links, and which are not members (yet).
    pub(super) fn not_members(&self) -> Vec<String> {
        let links = self.settings.links.iter();
        let others = links.filter(|link| self.settings.member(&link.peer).is_none());
        others.map(|link| link.peer.clone()).collect()
    }

    /// Nodes whose daemons run, but do not have this node's epoch yet.
    pub fn behind(&self, now_ns: u64) -> Vec<String> {
        let behind = self.links.iter().filter(|link| link.session.is_behind(now_ns));
        behind.map(|link| link.peer.clone()).collect()
    }
}
