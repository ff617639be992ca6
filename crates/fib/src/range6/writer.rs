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
}

impl Writer {
    pub fn new(fib: Arc<Range6Fib>, readers: &Readers) -> Self {
        Self { arena: Arena::new(fib.clone(), readers), fib, stores: Vec::new() }
    }

    pub fn load(&self, link: Link) -> Word {
        Word(match link {
            Link::Root(slot) => self.fib.root[slot].load(Acquire),
            Link::Cell { line, cell } => self.arena.line(line).cell(cell),
        })
    }

    /// Links the change under way: readers see it from here on.
    pub fn carry_out(&mut self) {
        for (link, value) in self.stores.drain(..) {
            match link {
                Link::Root(slot) => self.fib.root[slot].store(value, Release),
                Link::Cell { line, cell } => self.arena.line(line).set_cell(cell, value),
            }
        }
        self.arena.commit();
    }

    /// Drops the change under way: nobody has seen any of it.
    pub fn forget(&mut self) {
        self.stores.clear();
        self.arena.give_back();
    }
}
