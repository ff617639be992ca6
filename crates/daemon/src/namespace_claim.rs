//! A name that one daemon of a network namespace has. Commands in another mount namespace see it too, though not the daemon's
//! files: its socket, its lock, its bpffs.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;

use bm_control::nftables;

/// The name, as long as this exists: an abstract socket, which the kernel removes with the process.
pub struct NamespaceClaim {
    _socket: UnixDatagram,
}

impl NamespaceClaim {
    /// Claims the name of the daemon with this socket; `None` if a daemon has it.
    ///
    /// # Errors
    /// The system's.
    pub fn take(socket: &Path) -> io::Result<Option<Self>> {
        // Short, and as unique as the names of tables, which are what two daemons must not share.
        let address = SocketAddr::from_abstract_name(nftables::name(socket))?;
        match UnixDatagram::bind_addr(&address) {
            Ok(socket) => Ok(Some(Self { _socket: socket })),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_owner_at_a_time() {
        let path = Path::new("/run/brickmoon/a-test/api.sock");
        let first = NamespaceClaim::take(path).unwrap();
        assert!(first.is_some() && NamespaceClaim::take(path).unwrap().is_none());
        assert!(NamespaceClaim::take(Path::new("/run/other.sock")).unwrap().is_some());
        drop(first);
        assert!(NamespaceClaim::take(path).unwrap().is_some());
    }
}
