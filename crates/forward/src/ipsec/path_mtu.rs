//! Path MTUs to the other ends of outbound SAs, as routers on the way tell.
//!
//! ```text
//! ICMP error ─► Decryption of any worker ─► PathMtus ─► SaStatus of each SA to this address ─► Sender: before it encrypts
//! ```
//!
//! What is learned holds for ten minutes (RFC 1191 6.3), as in Linux.

use std::collections::HashMap;
use std::sync::Arc;

use bm_ipsec::{PATH_MTU_MIN, SaId, TooBig};
use bm_sys::Mutex;
use bm_wire::ipv6;

use super::SaStatus;

/// The outbound SAs of all workers.
#[derive(Clone, Default)]
pub(super) struct PathMtus(Arc<Mutex<HashMap<SaId, Arc<SaStatus>>>>);

impl PathMtus {
    /// A worker has got an SA. It begins with what others to the same address have learned.
    pub fn add(&self, id: SaId, status: Arc<SaStatus>) {
        let mut sas = self.0.lock();
        let mut to_same = sas.iter().filter(|(other, _)| other.destination == id.destination);
        if let Some((_, other)) = to_same.next() {
            status.copy_path_mtu(other);
        }
        sas.insert(id, status);
    }

    pub fn remove(&self, id: SaId) {
        self.0.lock().remove(&id);
    }

    /// Heeds an error about a packet that was sent a short time ago.
    #[cold]
    pub fn heed(&self, error: &TooBig, now_ns: u64) {
        // A worker does not wait for another one: the next packet that is too big causes another error.
        let Some(sas) = self.0.try_lock() else { return };
        if !sas.get(&error.id).is_some_and(|status| status.has_just_sent(error.number)) {
            return;
        }
        // No source can send less than the least MTU of IPv6, and links for less than that of IPv4 are gone.
        let least = if error.id.destination.is_ipv6() { ipv6::MIN_MTU as u16 } else { PATH_MTU_MIN };
        let mtu = u16::try_from(error.mtu).unwrap_or(u16::MAX).max(least);
        for (_, status) in sas.iter().filter(|(id, _)| id.destination == error.id.destination) {
            status.learn_path_mtu(mtu, now_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_ipsec::SaUsage;
    use std::net::IpAddr;

    const SECOND: u64 = 1_000_000_000;

    fn id(spi: u32, last: u8) -> SaId {
        SaId { spi, destination: IpAddr::from([192, 0, 2, last]) }
    }

    fn sent(number: u64) -> Arc<SaStatus> {
        Arc::new(SaStatus::after(&SaUsage::default(), number + 1))
    }

    #[test]
    fn errors_about_packets_just_sent_are_heeded_for_all_sas_to_the_address() {
        let (path_mtus, [first, second, other]) = (PathMtus::default(), [1 << 33, 7, 7].map(sent));
        for (id, status) in [(id(256, 1), &first), (id(257, 1), &second), (id(256, 2), &other)] {
            path_mtus.add(id, status.clone());
        }
        let mtus = |now| [&first, &second, &other].map(|status| status.path_mtu(now));
        let error = |of, number, mtu| TooBig { id: of, number, mtu };
        for wrong in
            [error(id(256, 1), 1 << 31, 1300), error(id(256, 1), 1, 1300), error(id(258, 1), 7, 1300)]
        {
            path_mtus.heed(&wrong, SECOND);
        }
        assert_eq!(mtus(SECOND), [u16::MAX; 3]);
        path_mtus.heed(&error(id(257, 1), 6, 1400), SECOND);
        assert_eq!(mtus(SECOND), [1400, 1400, u16::MAX]);
        path_mtus.heed(&error(id(256, 1), 0, 1300), 9 * SECOND);
        // Such an error never makes it greater.
        path_mtus.heed(&error(id(256, 1), 0, 1350), 10 * SECOND);
        assert_eq!(mtus(608 * SECOND), [1300, 1300, u16::MAX]);
        assert_eq!(mtus(609 * SECOND), [u16::MAX; 3]);
        path_mtus.heed(&error(id(256, 2), 7, 0), 700 * SECOND);
        assert_eq!(mtus(700 * SECOND), [u16::MAX, u16::MAX, PATH_MTU_MIN]);
    }

    #[test]
    fn a_new_sa_begins_with_what_others_have_learned() {
        let (path_mtus, [old, new]) = (PathMtus::default(), [1, 0].map(sent));
        path_mtus.add(id(256, 1), old);
        path_mtus.heed(&TooBig { id: id(256, 1), number: 1, mtu: 1300 }, SECOND);
        path_mtus.add(id(257, 1), new.clone());
        path_mtus.remove(id(256, 1));
        assert_eq!((new.path_mtu(SECOND), new.path_mtu(601 * SECOND)), (1300, u16::MAX));
    }
}
