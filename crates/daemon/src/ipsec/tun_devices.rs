//! TUN devices that are IPsec interfaces: held open, so that they have carrier, and read and written.
//!
//! ```text
//! slow path ─► TunPort::deliver: decrypted, for this machine or its firewall ─► TUN device ─► Linux
//!           ◄─ TunPort::collect: to be encrypted ◄─────────────────────────── TUN device ◄─ Linux
//! ```
//!
//! What workers leave to Linux arrives there on the device, and what Linux sends by the device is encrypted, or dropped if
//! nothing protects it. Without the daemon nobody reads it: what Linux sends there is lost, and not sent in clear.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use bm_cli::Failure;
use bm_control::config::Config;
use bm_control::control_thread::{Handle, LinkNow};
use bm_forward::if_id_of;
use bm_forward::tables::ipsec_mac;
use bm_port::HostPort;
use bm_port_tap::{TapError, Tun};
use bm_wire::ethernet::{Ethernet, HEADER_LEN, ethertype};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::lock;

/// All of them.
pub struct TunDevices {
    held: Mutex<OpenDevices>,
    /// Becomes readable when any of them does.
    ready: OwnedFd,
}

#[derive(Default)]
struct OpenDevices {
    open: Vec<Device>,
    /// Where the next search for a packet begins, so that no device starves another.
    next: usize,
    /// Devices that could not be opened, and why.
    refused: Vec<(String, String)>,
}

/// A device that is held open.
struct Device {
    name: String,
    if_id: u32,
    /// Distinguishes it from earlier ones of its name.
    generation: u64,
    tun: Tun,
}

impl TunDevices {
    /// None yet.
    pub fn new() -> Result<Self, Failure> {
        let ready = epoll::create(CreateFlags::CLOEXEC).map_err(Failure::failed)?;
        Ok(Self { held: Mutex::default(), ready })
    }

    /// Holds the TUN devices that are IPsec interfaces now; called after changes of interfaces.
    pub fn follow(&self, config: &Config, control: &Handle) {
        let devices: Vec<_> =
            config.ipsec.interfaces.iter().map(|own| (own.device.clone(), own.if_id)).collect();
        let names: Vec<_> = devices.iter().map(|(name, _)| name.clone()).collect();
        // Without an answer they stay as they are until the next change.
        let links = match names.is_empty() {
            true => Ok(Vec::new()),
            false => control.ask(move |control| control.links(&names)),
        };
        match links {
            Ok(now) => self.hold(&devices, &now),
            Err(error) => tracing::error!("cannot follow changes of IPsec interfaces: {error}"),
        }
    }

    /// Holds those of these devices that exist and are TUN devices. Each is a name and a number, and what it is now.
    fn hold(&self, devices: &[(String, u32)], now: &[Option<LinkNow>]) {
        let mut held = lock(&self.held);
        // What is closed is no longer part of `ready`.
        held.open.retain(|open| {
            devices.iter().zip(now).any(|((name, if_id), link)| {
                (name, *if_id) == (&open.name, open.if_id)
                    && link.is_some_and(|link| link.generation == open.generation)
            })
        });
        let before = std::mem::take(&mut held.refused);
        for ((name, if_id), link) in devices.iter().zip(now) {
            let Some(link) = link.filter(|_| !held.open.iter().any(|open| open.name == *name)) else {
                continue;
            };
            match self.open(name) {
                Ok(Some(tun)) => {
                    tracing::info!(
                        "IPsec interface {name}: packets of this machine itself are encrypted, too"
                    );
                    let (name, generation) = (name.clone(), link.generation);
                    held.open.push(Device { name, if_id: *if_id, generation, tun });
                }
                // Linux sends there by other means.
                Ok(None) => {}
                Err(why) => {
                    if !before.iter().any(|(other, _)| other == name) {
                        tracing::warn!("IPsec interface {name}: {why}");
                    }
                    held.refused.push((name.clone(), why));
                }
            }
        }
    }

    /// What is wrong with devices, for `status`.
    pub fn notes(&self) -> Vec<String> {
        let held = lock(&self.held);
        held.refused.iter().map(|(name, why)| format!("IPsec interface {name}: {why}")).collect()
    }

    /// Opens a device; `None` if it is no TUN device.
    fn open(&self, name: &str) -> Result<Option<Tun>, String> {
        let taken = "another program has the device open, so packets of this machine itself are not encrypted: end it";
        let tun = Tun::open(name).map_err(|error| match error {
            TapError::Taken { .. } => taken.to_owned(),
            other => other.to_string(),
        })?;
        if let Some(tun) = &tun {
            epoll::add(&self.ready, tun, EventData::new_u64(0), EventFlags::IN)
                .map_err(|error| format!("cannot be watched: {error}"))?;
        }
        Ok(tun)
    }
}

/// The end of these devices in the slow path.
pub struct TunPort(pub Arc<TunDevices>);

impl HostPort for TunPort {
    fn deliver(&mut self, packet: &[u8]) -> io::Result<()> {
        let if_id = if_id_of(packet);
        let network = Ethernet::parse(packet).and_then(|ethernet| ethernet.network());
        let packet = network.ok().and_then(|network| packet.get(network.offset..)).unwrap_or(&[]);
        let held = lock(&self.0.held);
        let Some(open) = held.open.iter().find(|open| open.if_id == if_id) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        open.tun.send(packet)
    }

    fn collect<'a>(&mut self, buffer: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
        let Some((header, packet)) = buffer.split_at_mut_checked(HEADER_LEN) else { return Ok(None) };
        let mut held = lock(&self.0.held);
        for _ in 0..held.open.len() {
            let at = held.next % held.open.len().max(1);
            held.next = at + 1;
            let Some(Device { if_id, tun, .. }) = held.open.get(at) else { break };
            match tun.receive(packet) {
                Ok(Some(length)) => {
                    let kind = if packet[0] >> 4 == 6 { ethertype::IPV6 } else { ethertype::IPV4 };
                    header[..6].copy_from_slice(&ipsec_mac(*if_id));
                    header[6..12].fill(0);
                    header[12..].copy_from_slice(&kind.to_be_bytes());
                    return Ok(Some(&buffer[..HEADER_LEN + length]));
                }
                Ok(None) => {}
                // It was deleted: its descriptor would always be ready.
                Err(_) => drop(held.open.remove(at)),
            }
        }
        Ok(None)
    }

    fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.ready.as_fd())
    }
}
