//! What all AF_XDP ports of a process share: the frame memory, as the kernel knows it, and the list of
//! addresses that are Linux's own.
//!
//! Every socket works on one UMEM, so a frame received on one port is sent on another without a copy. The
//! first socket registers it, later ones borrow it from any that is still open. A borrower cannot choose
//! between copy and zero-copy: the kernel gives it the lender's way. So there is up to one UMEM for each way,
//! over the same memory; which slots the kernel has is our own account (`Lent`), not the UMEM's.

use std::collections::HashSet;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bm_frame::Memory;
use libbpf_rs::libbpf_sys::{self, bpf_map_create_opts};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};

use crate::error::XdpError;
use crate::socket::{self, Binding, Failed, Rings};

/// Most local addresses of each family; the same number stands in `steer.bpf.c`.
const LOCAL_MAX: u32 = 65_536;

/// What all AF_XDP ports of a process share.
pub struct Shared {
    memory: &'static Memory,
    lenders: Mutex<Vec<Lender>>,
    local: Mutex<Local>,
}

/// An open socket that has a UMEM.
struct Lender {
    copy_flag: u16,
    socket: Weak<OwnedFd>,
}

/// The addresses that are Linux's own, and the maps that hold them.
struct Local {
    v4: MapHandle,
    v6: MapHandle,
    known: HashSet<IpAddr>,
}

impl Shared {
    /// For ports whose frames are in `memory`.
    ///
    /// # Errors
    /// [`XdpError::Program`] if the kernel refuses BPF maps.
    pub fn new(memory: &'static Memory) -> Result<Arc<Self>, XdpError> {
        let map = |name, key_size| {
            let options = bpf_map_create_opts {
                sz: size_of::<bpf_map_create_opts>() as libbpf_sys::size_t,
                map_flags: libbpf_sys::BPF_F_NO_PREALLOC,
                ..bpf_map_create_opts::default()
            };
            MapHandle::create(MapType::Hash, Some(name), key_size, 1, LOCAL_MAX, &options)
                .map_err(|error| XdpError::Program { interface: "all ports".into(), error })
        };
        let local = Local { v4: map("local4", 4)?, v6: map("local6", 16)?, known: HashSet::new() };
        Ok(Arc::new(Self { memory, lenders: Mutex::default(), local: Mutex::new(local) }))
    }

    /// The frame memory.
    pub fn memory(&self) -> &'static Memory {
        self.memory
    }

    /// Handles of the maps of local addresses: IPv4, IPv6.
    pub(crate) fn local_maps(&self) -> libbpf_rs::Result<(MapHandle, MapHandle)> {
        let local = self.local.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((MapHandle::try_from(&local.v4)?, MapHandle::try_from(&local.v6)?))
    }

    /// Makes `addresses` the local ones: new ones first, so that none is missing meanwhile.
    pub(crate) fn set_local(&self, addresses: &[IpAddr]) -> libbpf_rs::Result<()> {
        let mut local = self.local.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted: HashSet<_> = addresses.iter().copied().collect();
        for &address in wanted.difference(&local.known.clone()) {
            local.put(address, true)?;
        }
        for address in local.known.clone().difference(&wanted) {
            local.put(*address, false)?;
        }
        Ok(())
    }

    /// Opens a socket on the UMEM of its way, or on the first one.
    pub(crate) fn open(&self, binding: &Binding) -> Result<(Arc<OwnedFd>, Rings), Failed> {
        let mut lenders = self.lenders.lock().unwrap_or_else(PoisonError::into_inner);
        lenders.retain(|lender| lender.socket.strong_count() > 0);
        let lender = lenders.iter().find(|lender| lender.copy_flag == binding.copy_flag);
        let lender = lender.and_then(|lender| lender.socket.upgrade());
        let fd = lender.as_ref().map(|fd| std::os::fd::AsFd::as_fd(&**fd));
        let (socket, rings) = match socket::open(self.memory, fd, binding) {
            // The lender has this very queue, where borrowing means another thing: alone it is busy.
            Err((_, error)) if fd.is_some() && error.raw_os_error() == Some(libc::EINVAL) => {
                socket::open(self.memory, None, binding)?
            }
            opened => opened?,
        };
        let socket = Arc::new(socket);
        lenders.push(Lender { copy_flag: binding.copy_flag, socket: Arc::downgrade(&socket) });
        Ok((socket, rings))
    }
}

impl Local {
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
