//! ESP packets of this router that workers could not send: their neighbor has to be resolved, or they are fragmented; and
//! packets for which a tunnel has no room, or no SA.

use bm_frame::Frame;
use bm_stats::{Entry, Reason};
use bm_wire::Family;

use super::error::Error;
use super::header::Header;
use super::{Core, Now, tell};
use crate::route::{self, Route};
use crate::stages::rewrite;
use crate::tables::Tables;

impl Core {
    /// Sends an ESP packet of this router.
    pub(super) fn send_encrypted(&mut self, tables: &Tables, frame: Frame, now: Now) {
        let packet = tell::packet(&frame);
        let Some(header) = Header::parse(packet) else { return self.lose(frame, Reason::NoRoute) };
        let vrf = tell::vrf(tables, &frame);
        let way = route::to(tables, vrf, header.destination, || rewrite::hash(tables, packet));
        if way == Route::Host {
            return self.send_by_linux(frame);
        }
        if let Route::Forward { hop, entry } = way
            && let Ok(egress) = rewrite::egress(tables, entry.interface())
        {
            let of_route = usize::from(rewrite::mtu(egress, tables.next_hops.mtu(hop)));
            let of_path = frame.meta().next_hop as usize;
            // This router is the source of its ESP packets, so those of IPv6 may be fragmented here.
            let (mtu, may_be_cut) = match header.family {
                Family::V4 => (of_route, header.may_be_cut),
                Family::V6 => (of_route.min(of_path), true),
            };
            if header.length > mtu && may_be_cut {
                return self.cut(tables, frame, hop, entry, mtu);
            }
        }
        self.send_own(tables, frame, now);
    }

    /// Only Linux knows the way: it leads by an interface that is no port, say, or Linux has learned a path MTU for it.
    fn send_by_linux(&mut self, frame: Frame) {
        let packet = tell::packet(&frame);
        match self.own_packets.as_mut().map(|own_packets| own_packets.send(packet)) {
            Some(Ok(())) => {
                self.count(&frame, Entry::Host);
                self.frames.free(frame);
            }
            Some(Err(_)) => self.lose(frame, Reason::HostRefused),
            None => self.lose(frame, Reason::NoRoute),
        }
    }

    /// Sends the source of a packet an ICMP error with the MTU of the tunnel, and drops the packet.
    pub(super) fn refuse_too_big_for_esp(&mut self, tables: &Tables, frame: Frame, now: Now) {
        let mtu = frame.meta().next_hop as usize;
        // Linux, which may have to change or drop errors, does not know of the tunnel.
        if let Some(header) = Header::parse(tell::packet(&frame))
            && !tables.linux_tells(header.family)
        {
            self.tell(tables, &frame, Error::too_big(header.family, mtu), now);
        }
        self.lose(frame, Reason::IpsecTooBig);
    }

    /// Tells the source of a packet that no SA protects on the interface by which it leaves, as Linux does, and drops the
    /// packet.
    pub(super) fn refuse_unprotected(&mut self, tables: &Tables, frame: Frame, now: Now) {
        let reason = Reason::ALL.get(frame.meta().next_hop as usize).copied();
        if let Some(header) = Header::parse(tell::packet(&frame))
            && !tables.linux_tells(header.family)
        {
            self.tell(tables, &frame, Error::neighbor_unresolved(header.family), now);
        }
        self.lose(frame, reason.unwrap_or(Reason::IpsecPolicy));
    }
}
