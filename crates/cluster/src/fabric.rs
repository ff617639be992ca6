//! Interfaces of fabric links: prepared, with the program on them, and as they were before.

use std::os::fd::AsFd;
use std::path::PathBuf;

use bm_bpf::{Occupant, PinnedLink, xdp};
use bm_netlink::Link as Interface;
use bm_sys::{Flag, Interfaces};
use libbpf_rs::Link;

use crate::error::ClusterError;
use crate::pins::{self, Pins};
use crate::program::Program;
use crate::socket::FabricSocket;

/// An interface with the program on it.
pub struct Joined {
    name: String,
    /// Its index in Linux.
    pub ifindex: u32,
    /// For messages and probes.
    pub socket: FabricSocket,
    link: Link,
    pin: Option<PathBuf>,
    /// Its MAC before; `None` if an earlier daemon has set it.
    mac_before: Option<[u8; 6]>,
    promiscuous: bool,
}

/// What is needed to take an interface.
pub struct Taking<'a> {
    pub interfaces: &'a Interfaces,
    pub program: &'a mut Program,
    pub pins: Option<&'a Pins>,
    /// Links of an earlier daemon that were not taken over yet.
    pub left: &'a mut Vec<PinnedLink>,
    /// The MAC of all fabric interfaces of this node.
    pub own: [u8; 6],
}

impl Joined {
    /// Prepares an interface and attaches the program.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn enter(taking: &mut Taking<'_>, interface: &Interface) -> Result<Self, ClusterError> {
        let (name, ifindex) = (interface.name.to_string(), interface.ifindex);
        let failed = |error| ClusterError::Mac { device: name.clone(), error };
        let before = taking.interfaces.mac(&name).map_err(failed)?;
        if before != taking.own {
            taking.interfaces.set_mac(&name, taking.own).map_err(failed)?;
        }
        let promiscuous = match taking.interfaces.driver(&name).as_deref() {
            // Takes all frames anyway. Without hardware nobody would complete checksums.
            Ok("veth") => {
                if let Err(error) = taking.interfaces.set_transmit_checksums(&name, false) {
                    tracing::warn!(%error, "{name}: cannot turn off transmit checksum offload: packets that Linux sends into the fabric may have wrong checksums");
                }
                false
            }
            _ => taking.interfaces.set_flag(&name, Flag::Promiscuous, true).unwrap_or(false),
        };
        taking.program.count(ifindex, true)?;
        let (link, pin) = attach(taking, &name, ifindex)?;
        let socket = FabricSocket::open(ifindex)
            .map_err(ClusterError::system("opening a packet socket on a fabric link"))?;
        let mac_before = (before != taking.own).then_some(before);
        Ok(Self { name, ifindex, socket, link, pin, mac_before, promiscuous })
    }

    /// Takes the program off, and leaves the interface as it was.
    pub fn leave(mut self, interfaces: &Interfaces) {
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
    taking: &mut Taking<'_>,
    name: &str,
    ifindex: u32,
) -> Result<(Link, Option<PathBuf>), ClusterError> {
    let ours = taking.left.iter().position(|pinned| pinned.ifindex == ifindex && pins::is_ours(pinned));
    let program = taking.program.on_links();
    if let Some(at) = ours {
        let mut pinned = taking.left.swap_remove(at);
        let failed = ClusterError::program("taking over a fabric link");
        pinned.link.update_prog(&program).map_err(failed)?;
        return Ok((pinned.link, Some(pinned.path)));
    }
    let failed = |error| match Occupant::of(ifindex, name) {
        Some(occupant) => ClusterError::Taken(occupant),
        None => ClusterError::program("attaching the fabric program")(error),
    };
    let mut link = program.attach_xdp(ifindex.cast_signed()).map_err(failed)?;
    let pin = taking.pins.map(|pins| pins.pin(ifindex, &mut link)).transpose()?;
    Ok((link, pin))
}
