//! Sends packets in fragments: IPv4 packets that may be fragmented, and IPv6 packets of this router.

use bm_fib::NextHop;
use bm_fib::next_hop::Entry as Hop;
use bm_frame::Frame;
use bm_stats::{Entry, Reason};
use bm_wire::ethernet::{HEADER_LEN, TAG_LEN, ethertype};
use bm_wire::ipv4::Ipv4;

use super::{Core, fragment, fragment6};
use crate::stages::rewrite;
use crate::tables::Tables;

/// The fragments of a packet.
enum Plan<'a> {
    V4(fragment::Plan<'a>),
    V6(fragment6::Plan<'a>),
}

impl<'a> Plan<'a> {
    /// `None` if the packet cannot be fragmented, or need not. `id` tells fragments of an IPv6 packet from those of others.
    fn new(packet: &'a [u8], mtu: usize, id: u32) -> Option<Self> {
        match Ipv4::parse(packet) {
            Ok(ip) => fragment::Plan::new(&ip, mtu).map(Self::V4),
            Err(_) => fragment6::Plan::new(packet, mtu, id).map(Self::V6),
        }
    }

    fn count(&self) -> usize {
        match self {
            Self::V4(plan) => plan.count(),
            Self::V6(plan) => plan.count(),
        }
    }

    fn write(&self, index: usize, buffer: &mut [u8]) -> Option<usize> {
        match self {
            Self::V4(plan) => plan.write(index, buffer),
            Self::V6(plan) => plan.write(index, buffer),
        }
    }

    fn ethertype(&self) -> u16 {
        match self {
            Self::V4(_) => ethertype::IPV4,
            Self::V6(_) => ethertype::IPV6,
        }
    }
}

impl Core {
    /// Sends a packet in fragments, each as large as `mtu` allows, with the TTL that the packet has.
    pub(super) fn cut(&mut self, tables: &Tables, frame: Frame, hop: NextHop, entry: Hop, mtu: usize) {
        let network = usize::from(frame.meta().network);
        let egress = match rewrite::egress(tables, entry.interface()) {
            Ok(egress) => *egress,
            Err(_) => return self.lose(frame, Reason::NoInterface),
        };
        let id = self.random() as u32;
        let plan = Plan::new(frame.data().get(network..).unwrap_or(&[]), mtu, id);
        let Some(plan) = plan else { return self.lose(frame, Reason::TooBig) };
        tables.next_hops.mark_used(hop);
        for index in 0..plan.count() {
            self.count(&frame, Entry::Originated);
            let Some(mut piece) = self.frames.allocate() else {
                if let Some(account) = self.account(&frame) {
                    account.drop(Reason::NoMemory, 1);
                }
                continue;
            };
            *piece.meta_mut() = *frame.meta();
            let header = HEADER_LEN + TAG_LEN;
            let written = piece
                .set_len(header + mtu)
                .ok()
                .and_then(|()| plan.write(index, &mut piece.data_mut()[header..]));
            let made = written.and_then(|length| {
                rewrite::encapsulate(&mut piece, header, length, &egress, entry, plan.ethertype()).ok()
            });
            match made {
                Some(()) => self.send(piece, egress.port),
                None => self.lose(piece, Reason::Oversize),
            }
        }
        self.count(&frame, Entry::Consumed);
        self.frames.free(frame);
    }
}
