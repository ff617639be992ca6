//! Next hops without a MAC address that packets were for: `bpf/unresolved.h`.
//!
//! ```text
//! bm_forward ─► unresolved, a ring ─► [`UnresolvedReader`] ─► control makes Linux ask for the neighbor
//! ```
//!
//! The program reports what comes in on interfaces with [`crate::Interface::report_unresolved`], each destination about
//! once a second and CPU, and of a flood of destinations only some.

use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd};

use bm_bpf::RingReader;
use bm_fib::NextHop;
use libbpf_rs::libbpf_sys::{self, bpf_map_create_opts};
use libbpf_rs::{MapHandle, MapType};

/// The map's name in the programs.
pub(crate) const MAP: &str = "unresolved";
/// Bytes of the ring: `UNRESOLVED_RING`. Whole pages, of up to 64 KiB.
const RING: u32 = 64 * 1024;

/// A packet went to Linux because its next hop had no MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unresolved {
    /// The next hop at that time.
    pub hop: NextHop,
    /// Destination of the packet.
    pub destination: IpAddr,
}

impl Unresolved {
    /// `struct unresolved`; `None` for other bytes.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let [high, low] = [0, 8].map(|at| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?)));
        let hop = u32::from_ne_bytes(bytes.get(16..20)?.try_into().ok()?);
        let destination = Ipv6Addr::from(u128::from(high?) << 64 | u128::from(low?));
        Some(Self { hop: NextHop(hop), destination: destination.to_canonical() })
    }
}

pub(crate) fn create() -> libbpf_rs::Result<MapHandle> {
    let options = bpf_map_create_opts {
        sz: size_of::<bpf_map_create_opts>() as libbpf_sys::size_t,
        ..bpf_map_create_opts::default()
    };
    MapHandle::create(MapType::RingBuf, Some(MAP), 0, 0, RING, &options)
}

/// Reads what the program reports. One at a time: two would share the reports.
pub struct UnresolvedReader {
    map: MapHandle,
    ring: RingReader<Unresolved>,
}

impl UnresolvedReader {
    pub(crate) fn open(map: &MapHandle) -> libbpf_rs::Result<Self> {
        Ok(Self { map: MapHandle::try_from(map)?, ring: RingReader::open(map, Unresolved::parse)? })
    }

    /// The reports since the last call; does not wait for any.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn take(&self) -> io::Result<Vec<Unresolved>> {
        self.ring.take().map_err(|error| io::Error::other(error.to_string()))
    }
}

/// Readable while there are reports.
impl AsFd for UnresolvedReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_as_the_program_writes_it() {
        let report = |high: u64, low: u64| [high, low, 7 | 9 << 32].map(u64::to_ne_bytes).concat();
        let parsed = |destination: &str| {
            Some(Unresolved { hop: NextHop(7), destination: destination.parse().unwrap() })
        };
        assert_eq!(Unresolved::parse(&report(0, 0xffff_c000_0201)), parsed("192.0.2.1"));
        assert_eq!(Unresolved::parse(&report(0x2001_0db8 << 32, 9)), parsed("2001:db8::9"));
        assert_eq!(Unresolved::parse(&report(0, 0)[..19]), None);
    }
}
