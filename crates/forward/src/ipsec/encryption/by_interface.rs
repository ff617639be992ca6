//! Packets that leave by an IPsec interface: an SA of this interface protects them, or they do not leave.

use bm_frame::Frame;
use bm_graph::Io;
use bm_ipsec::{Action, Direction, key};
use bm_stats::Reason;

use super::{EncryptionState, From, List};
use crate::ipsec::Stop;
use crate::ipsec::frames::{self, WaitingFrame};
use crate::ipsec::interfaces::if_id_of;
use crate::tables::Tables;

impl EncryptionState {
    /// One frame that the router sends by an IPsec interface. Without an SA for it, its source gets an ICMP error, as from
    /// Linux.
    pub(super) fn leaves_by_interface(
        &mut self,
        io: &mut Io<'_>,
        tables: &Tables,
        mut frame: Frame,
        from: From,
        port: usize,
    ) {
        let Some(network) = frames::network(frame.data()) else {
            return self.lose(io, frame, Reason::IpsecMalformed);
        };
        let packet = frames::packet(&frame, network);
        // The route to a peer leads back to the interface: its ESP packet would be encrypted again and again.
        if from == From::SlowPath && self.is_in_tunnel(packet) {
            return self.lose(io, frame, Reason::NoRoute);
        }
        let policies = self.policies.of_interface(if_id_of(frame.data()));
        let found = key(packet).and_then(|key| policies?.find(Direction::Out, &key));
        let reason = match found.map(|found| found.action) {
            Some(protect @ (Action::Protect(_) | Action::OneOf(_) | Action::Template(..))) => {
                let waiting = WaitingFrame { frame, network, port, more: List::of(protect) };
                let Err(unprotected) = self.protect_by(io, tables, protect, from, waiting) else { return };
                frame = unprotected;
                Reason::IpsecNoSa
            }
            Some(Action::Discard | Action::Bypass) | None => Reason::IpsecPolicy,
        };
        frame.meta_mut().network = network as u16;
        self.note_interface(tables, &mut frame, port);
        self.goes(io, frame, port, Err(Stop::Unprotected(reason)));
    }

    /// For errors about a packet that leaves by an IPsec interface: they are routed by the table of this interface.
    pub(super) fn note_interface(&self, tables: &Tables, frame: &mut Frame, port: usize) {
        if Some(port) == self.ipsec_port
            && let Some(out) = tables.compiled.ipsec_interface(if_id_of(frame.data()))
        {
            frame.meta_mut().interface = out.interface;
        }
    }
}
