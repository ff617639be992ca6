//! A FIB for tests: a list of routes behind a lock, with a limit on long prefixes.

use bm_fib::published::Readers;
use bm_fib::rib::Rib;
use bm_fib::{BuildFib, Change, Fib, NextHop, Shortage, Source, TableFull};
use bm_wire::prefix::{Address, Prefix};
use std::cell::Cell;
use std::sync::{Arc, RwLock};

thread_local! {
    /// Maximum number of prefixes longer than /24 in a table of this thread.
    pub static ROOM: Cell<usize> = const { Cell::new(usize::MAX) };
    /// Whether tables of this thread find no memory at all.
    pub static NO_MEMORY: Cell<bool> = const { Cell::new(false) };
    /// How often changes removed the last entry from a table of this thread.
    pub static EMPTIED: Cell<usize> = const { Cell::new(0) };
}

pub struct PlainFib<A>(RwLock<Rib<A>>);

impl<A: Address> Fib for PlainFib<A> {
    type Address = A;

    fn lookup(&self, address: A) -> NextHop {
        self.0.read().unwrap().longest_match(address).map_or(NextHop::NONE, |(_, hop)| hop)
    }
}

pub struct Plain<A> {
    rib: Rib<A>,
    fib: Arc<PlainFib<A>>,
}

impl<A: Address> BuildFib for Plain<A> {
    type Address = A;

    fn build_in(
        routes: impl IntoIterator<Item = (Prefix<A>, NextHop)>,
        _readers: &Readers,
        _source: &Source,
    ) -> Result<Self, TableFull<A>> {
        if NO_MEMORY.get() {
            let prefix = Prefix::host(A::default());
            return Err(TableFull { prefix, applied: 0, shortage: Shortage::Memory });
        }
        let mut plain = Self { rib: Rib::new(), fib: Arc::new(PlainFib(RwLock::new(Rib::new()))) };
        let sets: Vec<_> = routes.into_iter().map(|(prefix, hop)| Change::Set(prefix, hop)).collect();
        plain.apply(&sets)?;
        Ok(plain)
    }

    fn reader(&self) -> Arc<dyn Fib<Address = A>> {
        self.fib.clone()
    }

    fn apply(&mut self, changes: &[Change<A>]) -> Result<(), TableFull<A>> {
        let (mut outcome, before) = (Ok(()), self.rib.len());
        for (applied, change) in changes.iter().enumerate() {
            match *change {
                Change::Remove(prefix) => drop(self.rib.remove(prefix)),
                Change::Set(prefix, hop) => {
                    let long = self.rib.iter().filter(|(prefix, _)| prefix.length() > 24).count();
                    let fresh = prefix.length() > 24 && self.rib.get(prefix).is_none();
                    if fresh && long >= ROOM.get() {
                        outcome = Err(TableFull { prefix, applied, shortage: Shortage::Blocks });
                        break;
                    }
                    self.rib.insert(prefix, hop);
                }
            }
        }
        if before > 0 && self.rib.is_empty() {
            EMPTIED.set(EMPTIED.get() + 1);
        }
        *self.fib.0.write().unwrap() = self.rib.clone();
        outcome
    }

    fn rib(&self) -> &Rib<A> {
        &self.rib
    }

    fn memory_bytes(&self) -> usize {
        self.rib.memory_bytes()
    }

    fn reclaim(&mut self) {}
}
