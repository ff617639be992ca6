//! Which SA protects a packet, and which worker has it.

use bm_frame::Frame;
use bm_graph::Io;
use bm_ipsec::{Action, key};

use super::{EncryptionState, From, List, Wants};
use crate::ipsec::frames::{self, WaitingFrame};
use crate::ipsec::live::{Report, Wanted};
use crate::ipsec::{Owner, Stop};
use crate::tables::Tables;

impl EncryptionState {
    /// Has an SA of the policy's action protect a packet, here or by its owner. Gives the frame back if there is none.
    #[inline]
    pub(super) fn protect_by(
        &mut self,
        io: &mut Io<'_>,
        tables: &Tables,
        protect: Action,
        from: From,
        waiting: WaitingFrame<List>,
    ) -> Result<(), Frame> {
        let packet = frames::packet(&waiting.frame, waiting.network);
        match self.owner(protect, packet, io.now_ns) {
            Some(Owner::Mine(at)) => {
                if from == From::Worker {
                    self.sas[at].status.handed_over();
                }
                self.protect(io, tables, at, waiting);
            }
            Some(Owner::Other(worker)) => {
                self.goes(io, waiting.frame, waiting.port, Err(Stop::To(worker)));
            }
            None => return Err(waiting.frame),
        }
        Ok(())
    }

    /// The owner of the SA that protects a packet. If there is none for a template, the daemon is asked for one.
    #[inline]
    fn owner(&mut self, protect: Action, packet: &[u8], now_ns: u64) -> Option<Owner> {
        let list = List::of(protect);
        let id = if let Action::Protect(id) = protect { Some(id) } else { self.choices.now(list) };
        let owner = id.and_then(|id| self.owners.find(id).copied());
        if let Action::Template(at, _) = protect
            && (owner.is_none() || self.choices.wants(list) != Wants::Nothing)
        {
            self.ask(at, packet, owner, now_ns);
        }
        owner
    }

    /// Asks for an SA for a packet. `owner` has the one that it uses meanwhile, if there is one.
    #[cold]
    fn ask(&mut self, template: u32, packet: &[u8], owner: Option<Owner>, now_ns: u64) {
        let Some(packet) = key(packet) else { return };
        if owner.is_some() && !self.choices.is_due(template, now_ns) {
            return;
        }
        let is_own = self.choices.wants(List::Template(template)) == Wants::Own && owner.is_some();
        let wanted = Wanted { template, packet, worker: is_own.then_some(self.worker as u32) };
        self.rings.commands.iter_mut().for_each(|commands| commands.report(Report::Wanted(wanted)));
    }
}
