//! Flowlets: which path the last packets of a flow took, and when.
//!
//! A table without keys: flows with the same place share a flowlet, which keeps the order of both. Its size is fixed, and
//! an entry is eight bytes, so that a lookup is one load.

/// Units of time in the table: 1,024 ns, so that 32 bits are more than an hour.
const UNIT_SHIFT: u32 = 10;
/// In place of a node: straight to the output.
const DIRECT: u16 = u16::MAX;

/// The path of a flowlet through the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowletPath {
    /// Straight to the output node.
    Direct,
    /// Over this node.
    Via(u16),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    last: u32,
    /// The intermediate node, or [`DIRECT`].
    via: u16,
}

/// The table.
pub struct Flowlets {
    entries: Vec<Entry>,
    delta: u32,
}

impl Flowlets {
    /// A table for `entries` flowlets, rounded up to a power of two.
    pub fn new(entries: u32, delta_ns: u64) -> Self {
        // Half of all time away, so that it is no flowlet that goes on.
        let empty = Entry { last: 1 << 31, via: DIRECT };
        let entries = vec![empty; entries.next_power_of_two() as usize];
        let mut table = Self { entries, delta: 0 };
        table.set_delta(delta_ns);
        table
    }

    /// After a gap of this length, or more, a flow may take another path.
    pub fn set_delta(&mut self, ns: u64) {
        // Rounded up, so that a gap in the table's units is never taken for a longer one.
        let units = ns.div_ceil(1 << UNIT_SHIFT);
        self.delta = u32::try_from(units).unwrap_or(u32::MAX);
    }

    /// The path of this flow's flowlet, if its last packet was less than delta ago.
    #[inline]
    pub fn find(&self, flow: u32, now_ns: u64) -> Option<FlowletPath> {
        let entry = self.entries[self.place(flow)];
        let gap = units(now_ns).wrapping_sub(entry.last);
        (gap < self.delta).then_some(if entry.via == DIRECT {
            FlowletPath::Direct
        } else {
            FlowletPath::Via(entry.via)
        })
    }

    /// Notes the path of a packet.
    #[inline]
    pub fn set(&mut self, flow: u32, now_ns: u64, path: FlowletPath) {
        let via = match path {
            FlowletPath::Direct => DIRECT,
            FlowletPath::Via(node) => node,
        };
        let place = self.place(flow);
        self.entries[place] = Entry { last: units(now_ns), via };
    }

    #[inline]
    fn place(&self, flow: u32) -> usize {
        flow as usize & (self.entries.len() - 1)
    }
}

#[inline]
fn units(ns: u64) -> u32 {
    (ns >> UNIT_SHIFT) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flowlet_ends_with_a_gap() {
        let mut table = Flowlets::new(16, 100_000);
        assert_eq!(table.find(5, 0), None);
        table.set(5, 1_000_000, FlowletPath::Via(7));
        assert_eq!(table.find(5, 1_095_000), Some(FlowletPath::Via(7)));
        assert_eq!(table.find(5, 1_102_000), None);
        assert_eq!(table.find(5 + 16, 1_000_000), Some(FlowletPath::Via(7)), "the same place");
        table.set(5, 1_000_000, FlowletPath::Direct);
        assert_eq!(table.find(5, 1_000_000), Some(FlowletPath::Direct));
    }

    #[test]
    fn without_delta_each_packet_is_a_flowlet() {
        let mut table = Flowlets::new(1, 0);
        table.set(0, 0, FlowletPath::Via(1));
        assert_eq!(table.find(0, 0), None);
    }
}
