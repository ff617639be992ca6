//! Interfaces of fabric links: prepares them, attaches the program, and restores them afterwards.

use std::os::fd::AsFd;
use std::path::PathBuf;

use bm_bpf::{PinnedLink, Pins, xdp};
use bm_netlink::Link as Interface;
use bm_sys::{Flag, Interfaces};
use libbpf_rs::Link;

use crate::error::ClusterError;
use crate::message::ETHERTYPE;
use crate::pins;
use crate::program::Program;
use crate::socket::FabricSocket;

/// An interface to which the program is attached.
pub struct AttachedLink {
    name: String,
    /// Its index.
    pub ifindex: u32,
    /// For messages.
    pub socket: FabricSocket,
    link: Link,
    pin: Option<PathBuf>,
    /// Its MAC before; `None` if an earlier daemon has set it.
    mac_before: Option<[u8; 6]>,
    promiscuous: bool,
}

/// What attaching needs.
pub struct AttachContext<'a> {
    pub interfaces: &'a Interfaces,
    pub program: &'a mut Program,
    pub pins: Option<&'a Pins>,
    /// Links of an earlier daemon that were not taken over yet.
    pub earlier_links: &'a mut Vec<PinnedLink>,
    /// The MAC of all fabric interfaces of this node.
    pub own_mac: [u8; 6],
}

impl AttachedLink {
    /// Prepares an interface and attaches the program.
    ///
    /// # Errors
    /// If the kernel rejects a change.
    pub fn attach(context: &mut AttachContext<'_>, interface: &Interface) -> Result<Self, ClusterError> {
        let (name, ifindex) = (interface.name.to_string(), interface.ifindex);
        let failed = |error| ClusterError::Mac { device: name.clone(), error };
        let before = context.interfaces.mac(&name).map_err(failed)?;
        if before != context.own_mac {
            context.interfaces.set_mac(&name, context.own_mac).map_err(failed)?;
        }
        let promiscuous = match context.interfaces.driver(&name).as_deref() {
            // Receives all frames anyway. Without hardware nobody would complete checksums.
            Ok("veth") => {
                if let Err(error) = context.interfaces.set_transmit_checksums(&name, false) {
                    tracing::warn!(%error, "{name}: cannot turn off transmit checksum offload: packets that Linux sends into the fabric may have wrong checksums");
                }
                context.program.renew_packets()?;
                false
            }
            _ => context.interfaces.set_flag(&name, Flag::Promiscuous, true).unwrap_or(false),
        };
        context.program.count(ifindex, true)?;
        let (link, pin) = attach(context, &name, ifindex)?;
        let socket = FabricSocket::open(ifindex, ETHERTYPE)
            .map_err(bm_bpf::Error::system("opening a packet socket on a fabric link"))?;
        let mac_before = (before != context.own_mac).then_some(before);
        Ok(Self { name, ifindex, socket, link, pin, mac_before, promiscuous })
    }

    /// Detaches the program, and restores the interface.
    pub fn detach(mut self, interfaces: &Interfaces) {
        if let Some(pin) = self.pin.take() {
            let _gone = std::fs::remove_file(pin);
        }
        // Immediately, even if a forked child still has the descriptors.
        xdp::detach(&self.link.as_fd());
        if let Some(mac) = self.mac_before {
            let _gone = interfaces.set_mac(&self.name, mac);
        }
        if self.promiscuous {
            let _gone = interfaces.set_flag(&self.name, Flag::Promiscuous, false);
        }
    }
}

/// Attaches the program, or updates the link that an earlier daemon left there.
fn attach(
    context: &mut AttachContext<'_>,
    name: &str,
    ifindex: u32,
) -> Result<(Link, Option<PathBuf>), ClusterError> {
    let ours =
        context.earlier_links.iter().position(|pinned| pinned.ifindex == ifindex && pins::is_ours(pinned));
    let program = context.program.xdp_program();
    if let Some(at) = ours {
        let mut pinned = context.earlier_links.swap_remove(at);
        let failed = bm_bpf::Error::program("taking over a fabric link");
        pinned.link.update_prog(&program).map_err(failed)?;
        return Ok((pinned.link, Some(pinned.path)));
    }
    let failed = bm_bpf::Error::attach("attaching the fabric program", ifindex, name);
    let mut link = program.attach_xdp(ifindex.cast_signed()).map_err(failed)?;
    let pin = context.pins.map(|pins| pins.pin(ifindex, &mut link)).transpose()?;
    Ok((link, pin))
}
