//! Properties of interfaces that can be queried without netlink, by ioctl.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libbpf_rs::libbpf_sys::{self, bpf_xdp_query_opts};

use crate::features::Takes;

/// `XDP_ATTACHED_SKB` of `<linux/if_link.h>`.
const ATTACHED_GENERIC: u8 = 2;
/// From `<linux/ethtool.h>`.
const GET_DRIVER: u32 = 0x03;
const SET_GRO: u32 = 0x2c;
const GET_FLAGS: u32 = 0x25;
const SET_FLAGS: u32 = 0x26;
const FLAG_SEND_TAG: u32 = 1 << 7;
const SIOCETHTOOL: libc::Ioctl = 0x8946;
/// Bytes of `struct ethtool_drvinfo`. The driver's name is in the first 32 bytes after the command.
const DRIVER_BYTES: usize = 196;

/// The kind of device that an interface is, as far as it matters to a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// A pair of virtual interfaces: containers.
    Veth,
    /// TUN/TAP: virtual machines.
    Tap,
    /// Anything else.
    Other,
}

/// What a switch has to know about an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    pub mtu: u32,
    pub up: bool,
    pub takes: Takes,
    pub driver: Driver,
}

/// A socket for ioctls on interfaces.
pub struct Asker(OwnedFd);

impl Asker {
    pub fn open() -> io::Result<Self> {
        // SAFETY: passes numbers.
        let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened, and nobody else has it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    fn request(
        &self,
        name: &str,
        number: libc::Ioctl,
        fill: impl FnOnce(&mut libc::ifreq),
    ) -> io::Result<libc::ifreq> {
        // SAFETY: zeros are a value of this structure.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes().take(libc::IFNAMSIZ - 1)) {
            *to = from as libc::c_char;
        }
        fill(&mut request);
        // SAFETY: the request is whole, and what its pointer names, if anything, `fill`'s owner keeps alive.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), number, &mut request) } {
            0.. => Ok(request),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn ethtool<const N: usize>(&self, name: &str, of: &mut [u32; N]) -> io::Result<()> {
        let at = of.as_mut_ptr().cast();
        self.request(name, SIOCETHTOOL, |request| request.ifr_ifru.ifru_data = at).map(drop)
    }

    /// Queries what changes often and what Linux sends events for; the rest is taken from `facts`.
    pub fn renewed(&self, name: &str, facts: &Facts) -> io::Result<Facts> {
        Ok(Facts { mtu: self.mtu(name)?, up: self.flags(name)? & libc::IFF_UP != 0, ..*facts })
    }

    /// Queries everything about an interface.
    pub fn facts(&self, name: &str, takes: Takes) -> io::Result<Facts> {
        let facts = Facts { mtu: 0, up: false, takes, driver: self.driver(name) };
        self.renewed(name, &facts)
    }

    fn mtu(&self, name: &str) -> io::Result<u32> {
        let mtu = self.request(name, libc::SIOCGIFMTU, |_| {})?;
        // SAFETY: the kernel has filled in this member.
        Ok(unsafe { mtu.ifr_ifru.ifru_mtu } as u32)
    }

    /// The MAC of an Ethernet interface.
    pub fn mac(&self, name: &str) -> io::Result<[u8; 6]> {
        let address = self.request(name, libc::SIOCGIFHWADDR, |_| {})?;
        // SAFETY: the kernel has filled in this member.
        let bytes = unsafe { address.ifr_ifru.ifru_hwaddr }.sa_data;
        Ok(std::array::from_fn(|at| bytes[at] as u8))
    }

    fn flags(&self, name: &str) -> io::Result<i32> {
        let flags = self.request(name, libc::SIOCGIFFLAGS, |_| {})?;
        // SAFETY: the kernel has filled in this member.
        Ok(i32::from(unsafe { flags.ifr_ifru.ifru_flags }))
    }

    fn driver(&self, name: &str) -> Driver {
        let mut info = [0u32; DRIVER_BYTES / 4];
        info[0] = GET_DRIVER;
        if self.ethtool(name, &mut info).is_err() {
            return Driver::Other;
        }
        let bytes: Vec<u8> = info[1..9].iter().flat_map(|word| word.to_ne_bytes()).collect();
        match CStr::from_bytes_until_nul(&bytes).map(CStr::to_bytes) {
            Ok(b"veth") => Driver::Veth,
            Ok(b"tun") => Driver::Tap,
            _ => Driver::Other,
        }
    }

    /// Turns promiscuous mode on or off; returns false if it was on before.
    pub fn set_promiscuous(&self, name: &str, on: bool) -> io::Result<bool> {
        let before = self.flags(name)?;
        let after = if on { before | libc::IFF_PROMISC } else { before & !libc::IFF_PROMISC };
        if before != after {
            let fill = |request: &mut libc::ifreq| request.ifr_ifru.ifru_flags = after as libc::c_short;
            self.request(name, libc::SIOCSIFFLAGS, fill)?;
        }
        Ok(before != after)
    }

    /// Brings an interface up.
    pub fn set_up(&self, name: &str) -> io::Result<()> {
        let after = self.flags(name)? | libc::IFF_UP;
        let fill = |request: &mut libc::ifreq| request.ifr_ifru.ifru_flags = after as libc::c_short;
        self.request(name, libc::SIOCSIFFLAGS, fill).map(drop)
    }

    /// Prepares one end of a veth to receive frames from XDP: NAPI (GRO) on, and VLAN tags kept in the frames.
    pub fn prepare_far_end(&self, name: &str) -> io::Result<()> {
        self.ethtool(name, &mut [SET_GRO, 1])?;
        let mut flags = [GET_FLAGS, 0];
        self.ethtool(name, &mut flags)?;
        if flags[1] & FLAG_SEND_TAG != 0 {
            self.ethtool(name, &mut [SET_FLAGS, flags[1] & !FLAG_SEND_TAG])?;
        }
        Ok(())
    }
}

/// Index and name of every interface of this thread's network namespace.
pub fn list() -> io::Result<Vec<(u32, String)>> {
    // SAFETY: takes nothing.
    let all = unsafe { libc::if_nameindex() };
    if all.is_null() {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut at = all;
    // SAFETY: the array ends with an entry of number 0, behind which nothing is read.
    while let entry = unsafe { &*at }
        && entry.if_index != 0
    {
        // SAFETY: the name is a string that ends in zero and lives until the array is given back.
        let name = unsafe { CStr::from_ptr(entry.if_name) };
        found.push((entry.if_index, name.to_string_lossy().into_owned()));
        // SAFETY: not at the end, so there is one more.
        at = unsafe { at.add(1) };
    }
    // SAFETY: it came from `if_nameindex`, and nothing of it is used any more.
    unsafe { libc::if_freenameindex(all) };
    Ok(found)
}

/// The index of an interface; `None` if there is no interface of that name.
pub fn index(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    // SAFETY: the name is a string that ends in zero.
    Some(unsafe { libc::if_nametoindex(name.as_ptr()) }).filter(|index| *index != 0)
}

fn query(ifindex: u32) -> Option<bpf_xdp_query_opts> {
    let mut options = bpf_xdp_query_opts {
        sz: size_of::<bpf_xdp_query_opts>() as libbpf_sys::size_t,
        ..bpf_xdp_query_opts::default()
    };
    // SAFETY: the options are whole and outlive the call.
    let result = unsafe { libbpf_sys::bpf_xdp_query(ifindex as i32, 0, &mut options) };
    (result == 0).then_some(options)
}

/// Whether the program of an interface runs in generic mode.
pub fn is_generic(ifindex: u32) -> bool {
    query(ifindex).is_some_and(|options| options.attach_mode == ATTACHED_GENERIC)
}
