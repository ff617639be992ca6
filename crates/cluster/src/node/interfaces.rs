//! The program on the interfaces of fabric links, and its map of links.

use bm_netlink::Link;
use bm_vlb::address::Node;

use super::{Cluster, own_mac};
use crate::error::ClusterError;
use crate::fabric::{AttachContext, AttachedLink};
use crate::layout::NO_INTERFACE;
use crate::probe;
use crate::socket::FabricSocket;

impl Cluster {
    /// Writes to the program which nodes are members. The links that an earlier daemon has set stay: frames are on
    /// their way over them.
    pub(super) fn set_members(&self) -> Result<(), bm_bpf::Error> {
        for node in (0..Node::COUNT).filter_map(Node::new) {
            let is_member = self.links.iter().any(|link| link.session.peer() == node);
            match (is_member, self.program.link(node)) {
                (true, Some(0)) => self.program.set_link(node, NO_INTERFACE)?,
                (false, Some(1..)) => self.program.set_link(node, 0)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes to the program which members have no interface.
    pub(super) fn mark_missing_links(&self) -> Result<(), bm_bpf::Error> {
        let mut missing = self.links.iter().filter(|link| link.attached.is_none());
        missing.try_for_each(|link| self.program.set_link(link.session.peer(), NO_INTERFACE))
    }

    /// Attaches the program to interfaces of fabric links that have appeared, and detaches it from those that are gone.
    pub(super) fn update_interfaces(&mut self) {
        for at in 0..self.links.len() {
            let link = &self.links[at];
            let now = self.local.link(&link.device).cloned();
            let ifindex = now.as_ref().map(|now| now.ifindex);
            if link.attached.as_ref().is_some_and(|attached| Some(attached.ifindex) != ifindex) {
                let _never_fails = self.program.set_link(link.session.peer(), NO_INTERFACE);
                self.detach(at);
            }
            let link = &mut self.links[at];
            link.running = now.as_ref().is_some_and(Link::running);
            let Some(now) = now else {
                link.trouble = Some(format!("there is no interface {}", link.device));
                continue;
            };
            link.mtu = now.mtu;
            if link.attached.is_none() {
                self.attach(at, &now);
            }
            self.mark_running(at);
        }
    }

    /// Writes to the program whether frames can leave by a link: what is redirected to one that is down is lost uncounted.
    fn mark_running(&self, at: usize) {
        let link = &self.links[at];
        let Some(attached) = &link.attached else { return };
        let (node, ifindex) =
            (link.session.peer(), if link.running { attached.ifindex } else { NO_INTERFACE });
        if self.program.link(node) != Some(ifindex) {
            let _never_fails = self.program.set_link(node, ifindex);
        }
    }

    /// Writes to the program which external ports there are.
    pub(super) fn set_ports(&self) -> Result<(), ClusterError> {
        for number in 0..bm_vlb::address::Port::COUNT {
            let port = self.ports.iter().find(|port| port.number == number);
            self.program.set_port(number, port.map_or(0, |port| port.ifindex))?;
        }
        Ok(())
    }

    /// Detaches the program from the interface of a link, if it is attached. Returns the interface.
    pub(super) fn detach(&mut self, at: usize) -> Option<u32> {
        let link = &mut self.links[at];
        if let Some(probed) = link.probed.take() {
            self.prober.remove(probed);
        }
        let attached = link.attached.take()?;
        let ifindex = attached.ifindex;
        let _gone = self.program.count(ifindex, false);
        attached.detach(&self.interfaces);
        Some(ifindex)
    }

    fn attach(&mut self, at: usize, interface: &Link) {
        let link = &mut self.links[at];
        let peer = link.session.peer();
        let mut context = AttachContext {
            interfaces: &self.interfaces,
            program: &mut self.program,
            pins: self.pins.as_ref(),
            earlier_links: &mut self.earlier_links,
            own_mac: own_mac(self.own).0,
        };
        let attached = AttachedLink::attach(&mut context, interface).and_then(|attached| {
            self.program.set_link(peer, attached.ifindex)?;
            let failed = bm_bpf::Error::system("opening a packet socket for probes");
            let socket = FabricSocket::open(attached.ifindex, probe::ETHERTYPE).map_err(failed)?;
            link.probed = Some(self.prober.add(socket, peer, link.session.nonce()));
            Ok(attached)
        });
        match attached {
            Ok(attached) => (link.attached, link.trouble) = (Some(attached), None),
            Err(why) => {
                let why = why.to_string();
                if link.trouble.as_ref() != Some(&why) {
                    tracing::warn!("fabric link {} cannot be used: {why}", link.device);
                }
                link.trouble = Some(why);
            }
        }
    }
}
