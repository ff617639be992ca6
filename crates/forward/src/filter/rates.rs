//! When each source's next packet is due if it keeps to its rate, for all workers together.
//!
//! ```text
//! source -> hash -> one line of 4 places: [ hash of a source | due ] ...   the one due longest ago makes room
//! ```
//!
//! There are no locks: a slot is taken by exchanging its hash, and a packet charged by exchanging its time. Two
//! workers that collide may charge a packet too many or too few, no more.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use bm_fib::memory::{Array, Filled, OutOfMemory};
use bm_filter::{AnyAddress, Key, Rate, SOURCES, TICKS_A_NANOSECOND};
use bm_wire::prefix::Address;

/// Places of a line.
const PLACES: usize = 4;
const LINES: usize = SOURCES / PLACES;

/// The sources that sent last.
pub struct SourceRates {
    /// For each place the hash of its source, and when its next packet is due, in ticks.
    places: Array<AtomicU64>,
    /// Secret, so that nobody can find out which sources share a cache line.
    seed: u64,
}

impl SourceRates {
    /// No source has sent anything yet.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(seed: u64) -> Result<Self, OutOfMemory> {
        Ok(Self { places: Array::zeroed(2 * SOURCES, Filled::ByNeed)?, seed })
    }

    /// Charges the source of a packet; whether it has sent too much.
    pub fn is_over(&self, key: &Key, rate: &Rate, now_ns: u64) -> bool {
        let (interval, depth) = rate.ticks();
        let now = now_ns.wrapping_mul(TICKS_A_NANOSECOND);
        let hash = self.hash(key, rate.lengths);
        let line = hash as usize % LINES * 2 * PLACES;
        let (places, _) = self.places[line..line + 2 * PLACES].as_chunks::<2>();
        let Some([_, due]) = places.iter().find(|[source, _]| source.load(Relaxed) == hash) else {
            enter(places, hash, now + interval);
            return false;
        };
        let was = due.load(Relaxed);
        let from = was.max(now);
        if from - now > depth {
            return true;
        }
        // Another worker may have charged it meanwhile: then this packet is charged in addition.
        if due.compare_exchange(was, from + interval, Relaxed, Relaxed).is_err() {
            due.fetch_add(interval, Relaxed);
        }
        false
    }

    /// Never 0, which means no source.
    fn hash(&self, key: &Key, [ipv4, ipv6]: [u8; 2]) -> u64 {
        let (high, low) = match key.source() {
            AnyAddress::V4(address) => (u64::MAX, u64::from(address & u32::mask(ipv4.min(32)))),
            AnyAddress::V6(address) => {
                let source = address & u128::mask(ipv6.min(128));
                ((source >> 64) as u64, source as u64)
            }
        };
        let first = folded(high ^ self.seed, 0x9e37_79b9_7f4a_7c15 ^ self.seed.rotate_left(17));
        folded(low ^ first.rotate_left(32), 0xc2b2_ae3d_27d4_eb4f ^ self.seed.rotate_left(41)) | 1 << 63
    }
}

/// Both halves of a product, mixed.
#[inline(always)]
fn folded(value: u64, factor: u64) -> u64 {
    let product = u128::from(value) * u128::from(factor | 1);
    (product >> 64) as u64 ^ product as u64
}

/// Gives a source the slot of the one that has been due for longest.
#[cold]
fn enter(places: &[[AtomicU64; 2]], hash: u64, due: u64) {
    let Some([source, its]) = places.iter().min_by_key(|[_, due]| due.load(Relaxed)) else { return };
    its.store(due, Relaxed);
    source.store(hash, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_filter::Kind;
    use std::net::IpAddr;

    const RATE: Rate = Rate { packets: 100, burst: 5, lengths: [24, 48] };
    const START: u64 = 1_000_000_000;

    fn from(source: &str) -> Key {
        let source: IpAddr = source.parse().unwrap();
        Key::new([source, source], 17, None, Kind::None, 0)
    }

    fn burst(rates: &SourceRates, source: &str, now_ns: u64) -> usize {
        (0..50).filter(|_| !rates.is_over(&from(source), &RATE, now_ns)).count()
    }

    #[test]
    fn a_burst_and_then_the_rate() {
        let rates = SourceRates::new(7).unwrap();
        for source in ["192.0.2.1", "2001:db8:1::1"] {
            assert_eq!(burst(&rates, source, START), 5);
        }
        assert_eq!(burst(&rates, "192.0.2.99", START), 0, "of the same prefix");
        assert_eq!(burst(&rates, "192.0.3.1", START), 5, "of another");
        assert_eq!(burst(&rates, "2001:db8:1:f::1", START), 0);
        assert_eq!(burst(&rates, "192.0.2.1", START + 30_000_000), 3);
        assert_eq!(burst(&rates, "192.0.2.1", START + 10_000_000_000), 5, "no more than a burst");
    }

    #[test]
    fn those_that_sent_last_are_known() {
        let rates = SourceRates::new(9).unwrap();
        let rate = Rate { lengths: [32, 64], ..RATE };
        let source = |number: u32| {
            let source: IpAddr = std::net::Ipv4Addr::from(number).into();
            Key::new([source, source], 17, None, Kind::None, 0)
        };
        for number in 0..1_000_000 {
            rates.is_over(&source(number), &rate, START + u64::from(number));
        }
        let now = START + 1_000_001;
        let over = |number| (0..5).filter(|_| !rates.is_over(&source(number), &rate, now)).count() < 5;
        let known = (990_000..1_000_000).filter(|number| over(*number)).count();
        assert!(known > 9_800, "{known} of 10,000");
    }
}
