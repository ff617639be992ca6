//! Stage three: the next hop of each packet, a burst and a routing table at a time.
//!
//! ```text
//! all frames of one family and one VRF (the common burst): addresses are looked up where they lie
//! else: gather those of one VRF -> look up -> put each hop in its place; again for the next VRF
//! ```

use bm_fib::{Fib, NextHop};
use bm_frame::{BURST, Mask};
use bm_wire::prefix::Address;

use crate::validate::{FactColumns, Packet};

/// The packets of one family in a burst: for each slot whose bit is set, destination, next hop, and the rest.
pub(crate) struct FamilyBatch<A> {
    pub mask: Mask,
    pub destinations: [A; BURST],
    pub facts: FactColumns,
    pub hops: [NextHop; BURST],
    scratch: Scratch<A>,
}

struct Scratch<A> {
    places: [u8; BURST],
    addresses: [A; BURST],
    hops: [NextHop; BURST],
}

impl<A: Address> FamilyBatch<A> {
    pub fn new() -> Self {
        let addresses = [A::default(); BURST];
        let hops = [NextHop::NONE; BURST];
        let scratch = Scratch { places: [0; BURST], addresses, hops };
        let facts = FactColumns::new();
        Self { mask: Mask::NONE, destinations: addresses, facts, hops, scratch }
    }

    /// Stores what is needed of a packet; the caller sets its bit.
    #[inline(always)]
    pub fn note(&mut self, place: usize, packet: Packet<A>) {
        self.destinations[place] = packet.destination;
        self.facts.set(place, packet.facts);
    }

    /// Looks up all destinations. `vrf_of` gives the table of a slot, `fib_of` the lookup structure of that table.
    pub fn look_up<'a>(
        &mut self,
        whole_burst: Option<(usize, u16)>,
        vrf_of: impl Fn(usize) -> u16,
        fib_of: impl Fn(u16) -> Option<&'a dyn Fib<Address = A>>,
    ) {
        if let Some((count, vrf)) = whole_burst {
            match fib_of(vrf) {
                Some(fib) => fib.lookup_burst(&self.destinations[..count], &mut self.hops[..count]),
                None => self.hops[..count].fill(NextHop::NONE),
            }
            return;
        }
        let mut left = self.mask;
        while let Some(first) = left.iter().next() {
            let vrf = vrf_of(first);
            let count = self.scratch.gather(&mut left, &self.destinations, |place| vrf_of(place) == vrf);
            self.scratch.look_up(count, fib_of(vrf));
            for (&place, &hop) in self.scratch.places[..count].iter().zip(&self.scratch.hops) {
                self.hops[usize::from(place)] = hop;
            }
        }
    }

    /// Looks up the `sources` of the slots in `wanted`, in one table, and passes the next hop of each to the caller.
    pub fn look_up_sources(
        &mut self,
        sources: &[A; BURST],
        mut wanted: Mask,
        fib: Option<&dyn Fib<Address = A>>,
        mut found: impl FnMut(usize, NextHop),
    ) {
        let count = self.scratch.gather(&mut wanted, sources, |_| true);
        self.scratch.look_up(count, fib);
        for (&place, &hop) in self.scratch.places[..count].iter().zip(&self.scratch.hops) {
            found(usize::from(place), hop);
        }
    }
}

impl<A: Address> Scratch<A> {
    /// Moves the addresses of the places in `left` that `belongs` to the front, and clears their bits.
    fn gather(&mut self, left: &mut Mask, from: &[A; BURST], belongs: impl Fn(usize) -> bool) -> usize {
        let mut count = 0;
        for place in left.iter().filter(|&place| belongs(place)) {
            left.clear(place);
            self.places[count] = place as u8;
            self.addresses[count] = from[place];
            count += 1;
        }
        count
    }

    fn look_up(&mut self, count: usize, fib: Option<&dyn Fib<Address = A>>) {
        match fib {
            Some(fib) => fib.lookup_burst(&self.addresses[..count], &mut self.hops[..count]),
            None => self.hops[..count].fill(NextHop::NONE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::Facts;

    /// A table whose hop is its number and the address's last byte.
    struct Plain(u32);

    impl Fib for Plain {
        type Address = u32;
        fn lookup(&self, address: u32) -> NextHop {
            NextHop(self.0 * 1000 + (address & 0xff))
        }
    }

    fn batch(places: &[usize]) -> FamilyBatch<u32> {
        let mut batch = FamilyBatch::new();
        for &place in places {
            let facts = Facts::default();
            batch.mask.set(place);
            batch.note(place, Packet { source: 0, destination: place as u32, facts });
        }
        batch
    }

    #[test]
    fn a_burst_of_one_table_is_looked_up_in_place() {
        let mut batch = batch(&[0, 1, 2]);
        batch.look_up(Some((3, 1)), |_| unreachable!(), |vrf| (vrf == 1).then_some(&Plain(1) as _));
        assert_eq!(batch.hops[..4], [1000, 1001, 1002, 0].map(NextHop));
        batch.look_up(Some((3, 7)), |_| unreachable!(), |_| None);
        assert_eq!(batch.hops[..3], [NextHop::NONE; 3]);
    }

    #[test]
    fn a_mixed_burst_is_gathered_by_table() {
        let mut batch = batch(&[0, 3, 4, 255]);
        let tables = [Plain(1), Plain(2)];
        batch.look_up(
            None,
            |place| (place % 3) as u16,
            |vrf| tables.get(usize::from(vrf)).map(|table| table as _),
        );
        assert_eq!([0, 3, 4, 255].map(|place| batch.hops[place].0), [1000, 1003, 2004, 1255]);
        assert_eq!(batch.mask.count(), 4);
    }

    #[test]
    fn sources_are_looked_up_for_the_selected_packets() {
        let mut batch = batch(&[1, 2, 9]);
        let mut wanted = Mask::NONE;
        wanted.set(1);
        wanted.set(9);
        let mut found = Vec::new();
        let sources = std::array::from_fn(|place| 100 + place as u32);
        batch.look_up_sources(&sources, wanted, Some(&Plain(0)), |place, hop| found.push((place, hop.0)));
        assert_eq!(found, [(1, 101), (9, 109)]);
    }
}
