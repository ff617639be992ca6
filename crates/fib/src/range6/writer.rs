//! The writer's hands: where words stand, and what the change under way will store.

use super::Range6Fib;
use super::arena::Arena;
use super::line::Word;
use crate::published::Readers;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};

/// A cell that readers follow.
#[derive(Clone, Copy, Debug)]
pub enum Link {
    Root(usize),
    Cell { line: u32, cell: usize },
}

/// What changes trees.
#[derive(Debug)]
pub struct Writer {
    pub fib: Arc<Range6Fib>,
    pub arena: Arena,
    /// What links the change under way, once all of its lines are filled.
    pub stores: Vec<(Link, u32)>,
    /// What cells were before, in the order of the stores, while changes stand or fall together.
    undo: Option<Vec<(Link, u32)>>,
}

impl Writer {
    pub fn new(fib: Arc<Range6Fib>, readers: &Readers) -> Self {
        Self { arena: Arena::new(fib.clone(), readers), fib, stores: Vec::new(), undo: None }
    }

    pub fn load(&self, link: Link) -> Word {
        Word(match link {
            Link::Root(slot) => self.fib.root[slot].load(Acquire),
            Link::Cell { line, cell } => self.arena.line(line).cell(cell),
        })
    }

    /// Links the change under way: readers see it from here on.
    pub fn carry_out(&mut self) {
        while let Some((link, value)) = self.stores.pop() {
            let before = self.load(link).0;
            if let Some(undo) = &mut self.undo {
                undo.push((link, before));
            }
            self.store(link, value);
        }
        if self.undo.is_none() {
            self.arena.commit();
        }
    }

    /// All changes from here on stand or fall together.
    pub fn begin(&mut self) {
        self.undo = Some(Vec::new());
    }

    /// Whether changes stand or fall together.
    pub fn has_begun(&self) -> bool {
        self.undo.is_some()
    }

    /// All changes since `begin` stand.
    pub fn end(&mut self) {
        self.undo = None;
        self.arena.commit();
    }

    /// No change since `begin` stands: every cell that readers follow is as it was, and so is what it
    /// leads to, since changes copy.
    pub fn withdraw(&mut self) {
        self.stores.clear();
        for (link, value) in self.undo.take().into_iter().flatten().rev() {
            self.store(link, value);
        }
        self.arena.withdraw();
    }

    fn store(&self, link: Link, value: u32) {
        match link {
            Link::Root(slot) => self.fib.root[slot].store(value, Release),
            Link::Cell { line, cell } => self.arena.line(line).set_cell(cell, value),
        }
    }

    /// Drops the change under way: nobody has seen any of it. Among several, the rest is to be withdrawn.
    pub fn forget(&mut self) {
        self.stores.clear();
        if self.undo.is_none() {
            self.arena.give_back();
        }
    }
}
