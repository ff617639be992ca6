//! DIR-18-6-8 as control builds and changes it.
//!
//! A batch of changes is applied to the rib first; then each affected stretch of slots is processed once, in order,
//! and differences are linked. If there is no room, the batch is removed from the rib and applied one by one, so that
//! the change without room is found and those before it stay.

use super::blocks::Blocks;
use super::sweep::{self, Entries, Slots};
use super::{BLOCK, Dir18Fib, ROOT, ROOT_LENGTH, slot};
use crate::published::Readers;
use crate::rib::{Before, Rib};
use crate::{BuildFib, Change, Fib, NextHop, Shortage, Source, TableFull};
use bm_wire::prefix::Prefix;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// DIR-18-6-8 as control builds and changes it.
#[derive(Debug)]
pub struct Dir18 {
    rib: Rib<u32>,
    fib: Arc<Dir18Fib>,
    pub(super) blocks: Blocks,
}

impl Dir18 {
    /// All of `changes` or none.
    fn apply_together(&mut self, changes: &[Change<u32>]) -> Result<(), Shortage> {
        let before = self.rib.apply(changes);
        let stretches = stretches(&before);
        self.refresh(&stretches).map_err(|(_, shortage)| shortage).inspect_err(|_| self.rib.take_back(before))
    }

    /// Processes these stretches of slots, first and last, and links differences; or returns the slot for which there
    /// was no room, and links nothing.
    fn refresh(&mut self, stretches: &[(u32, u32)]) -> Result<(), (Prefix<u32>, Shortage)> {
        let mut changed = Entries::new();
        let fib = self.fib.clone();
        for &(first, last) in stretches {
            let mut slots = Slots::new(first, &mut self.blocks, &fib.root, &mut changed);
            let start = first << (32 - ROOT_LENGTH);
            let end = last << (32 - ROOT_LENGTH) | u32::MAX >> ROOT_LENGTH;
            let swept = sweep::runs(&self.rib, start, end, |start, hop| slots.run(start, hop));
            if let Err(shortage) = swept.and_then(|()| slots.fill_to(last + 1)) {
                let at = slots.at();
                self.blocks.give_back();
                return Err((at, shortage));
            }
        }
        self.link(&changed);
        Ok(())
    }

    fn link(&mut self, changed: &Entries) {
        self.blocks.commit();
        let mut replaced = Vec::new();
        for (slot, entry) in changed {
            let root = &self.fib.root[*slot as usize];
            self.blocks.behind(root.load(Relaxed), &mut replaced);
            root.store(*entry, Release);
        }
        self.blocks.retire(replaced);
    }
}

/// The stretches of slots that these prefixes touch, in order and apart.
fn stretches(changed: &[Before<u32>]) -> Vec<(u32, u32)> {
    let mut all: Vec<(u32, u32)> =
        changed.iter().map(|(prefix, _)| (slot(prefix.first()) as u32, slot(prefix.last()) as u32)).collect();
    all.sort_unstable();
    all.dedup_by(|next, before| {
        let touches = next.0 <= before.1 + 1;
        before.1 = if touches { before.1.max(next.1) } else { before.1 };
        touches
    });
    all
}

/// The first of `changes` that no table could hold.
fn refused(changes: &[Change<u32>]) -> Option<(usize, TableFull<u32>)> {
    changes.iter().enumerate().find_map(|(applied, change)| match *change {
        Change::Set(prefix, hop) if hop.0 >= BLOCK => {
            Some((applied, TableFull { prefix, applied, shortage: Shortage::NextHop(hop) }))
        }
        _ => None,
    })
}

impl BuildFib for Dir18 {
    type Address = u32;

    fn build_in(
        routes: impl IntoIterator<Item = (Prefix<u32>, NextHop)>,
        readers: &Readers,
        source: &Source,
    ) -> Result<Self, TableFull<u32>> {
        let fib = Arc::new(Dir18Fib::new(source).map_err(TableFull::no_memory)?);
        let mut hop_max = NextHop::NONE;
        let rib: Rib<u32> = routes.into_iter().inspect(|(_, hop)| hop_max = hop_max.max(*hop)).collect();
        let mut table = Self { rib, blocks: Blocks::new(fib.clone(), readers), fib };
        let mut routes = table.rib.iter().enumerate();
        if hop_max.0 >= BLOCK
            && let Some((applied, (prefix, hop))) = routes.find(|(_, (_, hop))| hop.0 >= BLOCK)
        {
            return Err(TableFull { prefix, applied, shortage: Shortage::NextHop(hop) });
        }
        if let Err((full, shortage)) = table.refresh(&[(0, ROOT as u32 - 1)]) {
            let mut routes = table.rib.iter().map(|(prefix, _)| prefix).enumerate();
            let first_inside = routes.find(|(_, prefix)| prefix.first() >= full.first());
            let (applied, prefix) = first_inside.unwrap_or((0, full));
            return Err(TableFull { prefix, applied, shortage });
        }
        Ok(table)
    }

    fn reader(&self) -> Arc<dyn Fib<Address = u32>> {
        self.fib.clone()
    }

    fn apply(&mut self, changes: &[Change<u32>]) -> Result<(), TableFull<u32>> {
        let refused = refused(changes);
        let admitted = &changes[..refused.map_or(changes.len(), |(applied, _)| applied)];
        match self.apply_together(admitted) {
            Ok(()) => refused.map_or(Ok(()), |(_, refused)| Err(refused)),
            Err(_) => (0..).zip(admitted).try_for_each(|(applied, change)| {
                let prefix = change.prefix();
                self.apply_together(std::slice::from_ref(change)).map_err(|shortage| TableFull {
                    prefix,
                    applied,
                    shortage,
                })
            }),
        }
    }

    fn rib(&self) -> &Rib<u32> {
        &self.rib
    }

    fn memory_bytes(&self) -> usize {
        ROOT * size_of::<u32>() + self.blocks.ever_used() * size_of::<u64>()
    }

    fn reclaim(&mut self) {
        self.blocks.reclaim();
    }
}
