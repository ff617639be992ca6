//! The writer's tools: positions of words, and the stores of the change in progress.

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

/// Changes trees.
#[derive(Debug)]
pub struct Writer {
    pub fib: Arc<Range6Fib>,
    pub arena: Arena,
    /// The stores that link the change in progress, once all of its lines are filled.
    pub stores: Vec<(Link, u32)>,
    /// Previous values of cells, in the order of the stores, while changes are atomic together.
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

    /// All changes from here on succeed or fail together.
    pub fn begin(&mut self) {
        self.undo = Some(Vec::new());
    }

    /// Whether changes succeed or fail together.
    pub fn has_begun(&self) -> bool {
        self.undo.is_some()
    }

    /// Keeps all changes since `begin`.
    pub fn end(&mut self) {
        self.undo = None;
        self.arena.commit();
    }

    /// Reverts all changes since `begin`: every cell that readers follow is as before, and so is what it leads to,
    /// since changes copy.
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

    /// Discards the change in progress, which no reader has seen. Among several, the rest must be reverted.
    pub fn forget(&mut self) {
        self.stores.clear();
        if self.undo.is_none() {
            self.arena.give_back();
        }
    }
}
