//! intel-ipsec-mb, which encrypts and hashes several packets at once.
//!
//! ```text
//! Lanes, one for each thread ── Engine for each manager in use: memory of the library
//! MultiCbc, Gcm ─────────────── keys of an SA
//! ```
//!
//! Without the cargo feature `ipsec-mb` no engine can be made, and nothing of this is ever used.

#[cfg(not(feature = "ipsec-mb"))]
mod absent;
#[cfg(feature = "ipsec-mb")]
mod native;

use std::sync::{LazyLock, MutexGuard};

use bm_sys::Mutex;

#[cfg(not(feature = "ipsec-mb"))]
pub(crate) use absent::{Engine, Gcm, MultiCbc};
#[cfg(feature = "ipsec-mb")]
pub(crate) use native::{Engine, Gcm, MultiCbc};

use crate::failure::Failure;
use crate::library::{Library, Manager};
use crate::suite::Suite;

/// Packets that are encrypted at once, at most.
pub const BURST: usize = 32;

/// A packet to encrypt, as for [`Cipher::seal`](crate::cipher::Cipher::seal).
pub(crate) struct Seal<'a> {
    pub packet: &'a mut [u8],
    pub iv: u64,
    pub esn_high: Option<u32>,
}

/// A packet to decrypt, as for [`Cipher::open`](crate::cipher::Cipher::open).
pub(crate) struct Open<'a> {
    pub packet: &'a mut [u8],
    pub esn_high: Option<u32>,
    pub outcome: &'a mut Result<(), Failure>,
}

/// What a thread needs to encrypt or decrypt several packets at once: memory of the library. All bursts of a thread may
/// use the same, whatever their SA.
#[derive(Default)]
pub struct Lanes {
    engines: [Option<Engine>; Manager::ALL.len()],
}

impl Lanes {
    /// For these libraries.
    pub(crate) fn with(libraries: impl IntoIterator<Item = Library>) -> Self {
        let mut lanes = Self::default();
        for library in libraries {
            if let Library::IpsecMb(manager) = library {
                let engine = &mut lanes.engines[manager as usize];
                *engine = engine.take().or_else(|| Engine::new(manager));
            }
        }
        lanes
    }

    /// The engine of a manager, if these lanes have one.
    #[inline]
    pub(crate) fn engine(&mut self, manager: Manager) -> Option<&mut Engine> {
        self.engines[manager as usize].as_mut()
    }
}

/// Engines of all managers, for preparing keys and for measuring.
pub(crate) fn shared() -> MutexGuard<'static, Lanes> {
    static SHARED: LazyLock<Mutex<Lanes>> =
        LazyLock::new(|| Mutex::new(Lanes::with(Manager::ALL.map(Library::IpsecMb))));
    // What a thread that panicked has left there is overwritten by the next call.
    SHARED.lock()
}

/// The managers that work on this CPU.
fn usable() -> Vec<Manager> {
    let mut shared = shared();
    Manager::ALL.into_iter().filter(|manager| shared.engine(*manager).is_some()).collect()
}

impl Library {
    /// Those that can be used for a suite in this process: the first is always there.
    pub fn all(suite: Suite) -> Vec<Self> {
        let portable = if suite.is_aead() { Self::Ring } else { Self::RustCrypto };
        let managers = if suite == Suite::ChaCha20Poly1305 { Vec::new() } else { usable() };
        std::iter::once(portable).chain(managers.into_iter().map(Self::IpsecMb)).collect()
    }
}
