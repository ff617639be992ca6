//! What devices can send and receive for XDP.

use std::collections::BTreeMap;
use std::io;

use bm_netlink::netdev;

/// From `<linux/netdev.h>`.
const TAKES_FRAMES: u64 = 4;
const TAKES_LONG: u64 = 64;

/// What one device supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepts {
    /// It can send frames that XDP redirects to it.
    pub frames: bool,
    /// It can send frames that are in several buffers.
    pub long: bool,
}

/// What every device of this thread's network namespace supports.
pub(crate) enum Features {
    /// By interface index.
    Reported(BTreeMap<u32, u64>),
    /// Linux before 6.3 cannot be queried. Frames are then sent to every device that may be able to send them, and
    /// frames in several buffers to none.
    Unreported,
}

impl Features {
    /// Queries the current state.
    ///
    /// # Errors
    /// The error that Linux returned, unless it only means that it does not know the query.
    pub fn read() -> io::Result<Self> {
        Ok(netdev::xdp_features()?.map_or(Self::Unreported, Self::Reported))
    }

    /// What a device supports.
    pub fn accepts(&self, ifindex: u32) -> Accepts {
        match self {
            Self::Unreported => Accepts { frames: true, long: false },
            Self::Reported(all) => {
                let has = all.get(&ifindex).copied().unwrap_or(0);
                Accepts { frames: has & TAKES_FRAMES != 0, long: has & TAKES_LONG != 0 }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_accepts_no_xdp_frames() {
        let Features::Reported(all) = Features::read().unwrap() else {
            return eprintln!("skipped: this Linux does not tell");
        };
        assert!(all.contains_key(&1), "{all:?}");
        assert_eq!(Features::Reported(all).accepts(1), Accepts { frames: false, long: false });
    }
}
