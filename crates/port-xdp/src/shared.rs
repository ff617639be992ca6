//! What all AF_XDP ports of a process share: the frame memory, as registered with the kernel, and the list of Linux's
//! own addresses.
//!
//! All sockets use one UMEM, so a frame received on one port is sent on another without a copy. The first socket
//! registers it; later ones share that of any socket that is still open. Such a socket cannot choose between copy and
//! zero-copy: the kernel uses the mode of the socket that shares its UMEM. So there is up to one UMEM for each mode,
//! over the same memory; which slots the kernel has is recorded here (`InFlight`), not by UMEM.

use std::collections::HashSet;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use bm_frame::{FramePool, Memory};
use bm_port::LinuxRoute;
use bm_sys::Mutex;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};

use crate::error::XdpError;
use crate::routes::{Routes, create};
use crate::socket::{self, Binding, Failed, Rings};

/// Maximum number of local addresses of each family; the same as in `steer.bpf.c`.
const LOCAL_MAX: u32 = 65_536;
/// Bits of the hint; the same as in `steer.bpf.c`.
const HINT_BITS: usize = 1024;

/// What all AF_XDP ports of a process share.
pub struct Shared {
    frame_pool: Arc<FramePool>,
    lenders: Mutex<Vec<Lender>>,
    local: Mutex<Local>,
    routes: Mutex<Routes>,
}

/// An open socket that has a UMEM.
struct Lender {
    copy_flag: u16,
    socket: Weak<OwnedFd>,
}

/// Linux's own addresses, and the maps that contain them.
struct Local {
    v4: MapHandle,
    v6: MapHandle,
    /// Shows which addresses need a lookup in the maps at all.
    hints: MapHandle,
    known: HashSet<IpAddr>,
}

/// Handles of the maps that all steering programs use.
pub(crate) struct LocalMaps {
    pub v4: MapHandle,
    pub v6: MapHandle,
    pub hints: MapHandle,
}

impl Shared {
    /// For ports that take their frames from `frame_pool`.
    ///
    /// # Errors
    /// [`XdpError::Program`] if the kernel refuses BPF maps.
    pub fn new(frame_pool: &Arc<FramePool>) -> Result<Arc<Self>, XdpError> {
        let hash = |name, key_size| create(MapType::Hash, name, key_size, 1, LOCAL_MAX);
        let local = Local {
            v4: hash("local4", 4)?,
            v6: hash("local6", 16)?,
            hints: create(MapType::Array, "local_hints", 4, HINT_BITS as u32 / 8, 1)?,
            known: HashSet::new(),
        };
        Ok(Arc::new(Self {
            frame_pool: frame_pool.clone(),
            lenders: Mutex::default(),
            local: Mutex::new(local),
            routes: Mutex::new(Routes::new()?),
        }))
    }

    /// The frame memory.
    pub fn memory(&self) -> &'static Memory {
        self.frame_pool.memory()
    }

    /// Free frames, for the fill ring of a new socket.
    pub(crate) fn frame_pool(&self) -> &Arc<FramePool> {
        &self.frame_pool
    }

    /// Handles of the maps of local addresses.
    pub(crate) fn local_maps(&self) -> libbpf_rs::Result<LocalMaps> {
        let local = self.local.lock();
        Ok(LocalMaps {
            v4: MapHandle::try_from(&local.v4)?,
            v6: MapHandle::try_from(&local.v6)?,
            hints: MapHandle::try_from(&local.hints)?,
        })
    }

    /// Sets the local addresses. New ones are added first, so that none is missing meanwhile.
    pub(crate) fn set_local(&self, addresses: &[IpAddr]) -> libbpf_rs::Result<()> {
        let mut local = self.local.lock();
        let wanted: HashSet<_> = addresses.iter().copied().collect();
        let before = local.known.clone();
        for &address in wanted.difference(&before) {
            local.put(address, true)?;
        }
        local.hint(before.union(&wanted))?;
        for &address in before.difference(&wanted) {
            local.put(address, false)?;
        }
        local.hint(wanted.iter())
    }

    /// Handles of the maps of routes that lead to Linux: IPv4, IPv6, hints.
    pub(crate) fn route_maps(&self) -> libbpf_rs::Result<[MapHandle; 3]> {
        self.routes.lock().maps()
    }

    /// Sets the routes that lead to Linux.
    pub(crate) fn set_routes(&self, routes: &[LinuxRoute]) -> libbpf_rs::Result<()> {
        self.routes.lock().set(routes)
    }

    /// Opens a socket with the UMEM of its mode, or registers the first one.
    pub(crate) fn open(&self, binding: &Binding) -> Result<(Arc<OwnedFd>, Rings), Failed> {
        let mut lenders = self.lenders.lock();
        lenders.retain(|lender| lender.socket.strong_count() > 0);
        let lender = lenders.iter().find(|lender| lender.copy_flag == binding.copy_flag);
        let lender = lender.and_then(|lender| lender.socket.upgrade());
        let fd = lender.as_ref().map(|fd| std::os::fd::AsFd::as_fd(&**fd));
        let (socket, rings) = match socket::open(self.memory(), fd, binding) {
            // The other socket has this very queue, for which sharing means something else: by itself, the queue is
            // busy.
            Err((_, error)) if fd.is_some() && error.raw_os_error() == Some(libc::EINVAL) => {
                socket::open(self.memory(), None, binding)?
            }
            opened => opened?,
        };
        let socket = Arc::new(socket);
        lenders.push(Lender { copy_flag: binding.copy_flag, socket: Arc::downgrade(&socket) });
        Ok((socket, rings))
    }
}

impl Local {
    /// Sets the hint for exactly `addresses`.
    fn hint<'a>(&self, addresses: impl Iterator<Item = &'a IpAddr>) -> libbpf_rs::Result<()> {
        let mut words = [0u32; HINT_BITS / 32];
        for address in addresses {
            let word = |bytes: [u8; 4]| u32::from_ne_bytes(bytes);
            let mixed = match address {
                IpAddr::V4(address) => word(address.octets()),
                IpAddr::V6(address) => {
                    address.octets().as_chunks().0.iter().fold(0, |mixed, part| mixed ^ word(*part))
                }
            };
            // The same computation as in the program: `may_be_local` of steer.bpf.c.
            let bit = mixed.wrapping_mul(0x9e37_79b1) >> 22;
            words[bit as usize / 32] |= 1 << (bit % 32);
        }
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.hints.update(&0u32.to_ne_bytes(), &bytes, MapFlags::ANY)
    }

    fn put(&mut self, address: IpAddr, there: bool) -> libbpf_rs::Result<()> {
        let (v4, v6);
        let (map, key): (_, &[u8]) = match address {
            IpAddr::V4(address) => {
                v4 = address.octets();
                (&self.v4, &v4)
            }
            IpAddr::V6(address) => {
                v6 = address.octets();
                (&self.v6, &v6)
            }
        };
        if there {
            map.update(key, &[1], MapFlags::ANY)?;
            self.known.insert(address);
        } else {
            map.delete(key)?;
            self.known.remove(&address);
        }
        Ok(())
    }
}
