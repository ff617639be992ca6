//! What the kernel says about an interface: index, MAC address, MTU, driver, queues. By ioctl, which uses the
//! network namespace of the caller, whatever is mounted at `/sys`.

use std::fs;
use std::io;
use std::path::Path;

use bm_sys::{Interfaces, Offload};

use crate::error::XdpError;

/// An interface in the network namespace of the thread.
#[derive(Clone, Debug)]
pub(crate) struct Interface {
    pub name: String,
    pub index: u32,
    pub mac: [u8; 6],
    pub mtu: usize,
    pub driver: String,
    pub queues: u32,
    /// Whether senders may leave checksums to a device that does not exist.
    pub may_leave_checksums: bool,
}

impl Interface {
    pub(crate) fn find(name: &str) -> Result<Self, XdpError> {
        let asked = |step| move |error| XdpError::System { interface: name.into(), step, error };
        let interfaces = Interfaces::open().map_err(asked("opening a query socket"))?;
        let index = interfaces.index(name).map_err(|_| XdpError::NoInterface { interface: name.into() })?;
        let mtu = interfaces.mtu(name).map_err(asked("reading its MTU"))?;
        let mac = interfaces.mac(name).map_err(asked("reading its MAC address"))?;
        Ok(Self {
            name: name.into(),
            index,
            mac,
            mtu: mtu as usize,
            driver: interfaces.driver(name).unwrap_or_default(),
            queues: receive_queues(&interfaces, name, index, mac),
            may_leave_checksums: interfaces.may_leave_checksums(name),
        })
    }

    /// Tells the card to leave VLAN tags in received frames; returns whether that changed anything.
    pub(crate) fn keep_tags_in_frames(&self, keep: bool) -> io::Result<bool> {
        Interfaces::open()?.set_offload(&self.name, Offload::ReceiveVlan, !keep)
    }
}

/// Makes a card leave VLAN tags in received frames; returns whether it has stripped them. Drivers without this refuse it.
pub fn keep_tags(interface: &str) -> bool {
    Interfaces::open()
        .and_then(|interfaces| interfaces.set_offload(interface, Offload::ReceiveVlan, false))
        .unwrap_or(false)
}

/// The MTU of an interface in bytes; `None` if there is no such interface.
pub fn mtu(interface: &str) -> Option<usize> {
    Interface::find(interface).ok().map(|interface| interface.mtu)
}

/// The number of receive queues of an interface; 1 if that is unknown, or there is no such interface.
pub fn queues(interface: &str) -> u32 {
    Interface::find(interface).map_or(1, |interface| interface.queues)
}

/// The number of receive queues: from the driver, else from `/sys`, else one.
fn receive_queues(interfaces: &Interfaces, name: &str, index: u32, mac: [u8; 6]) -> u32 {
    match interfaces.receive_queues(name) {
        Ok(queues @ 1..) => queues,
        _ => queues_in_sys(name, index, mac).unwrap_or(1).max(1),
    }
}

/// The number of receive queues in `/sys`, which may be mounted for another network namespace, where another interface
/// may have that name.
fn queues_in_sys(name: &str, index: u32, [a, b, c, d, e, f]: [u8; 6]) -> Option<u32> {
    let folder = Path::new("/sys/class/net").join(name);
    let output = |file: &str| fs::read_to_string(folder.join(file)).unwrap_or_default();
    let mac = format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
    if output("ifindex").trim() != index.to_string() || output("address").trim() != mac {
        return None;
    }
    let entries = fs::read_dir(folder.join("queues")).ok()?;
    let receive = entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("rx-"));
    Some(receive.count() as u32)
}
