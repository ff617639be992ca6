//! Forwarding information bases: flat arrays, one writer, many readers, no locks.
//!
//! ```text
//! control: routes -> [ Rib ] -> builder --- one atomic store a change ---.
//!                                                                        v
//! workers: address -> Fib::lookup_burst -> NextHop -> NextHops -> MAC and interface
//! ```
//!
//! Control owns a builder ([`BuildFib`]) with all its routes and changes it; workers hold an `Arc` of
//! its reader ([`Fib`]) and never wait. Structures differ behind these two traits and in nothing else;
//! [`structure::IPV4`] and [`structure::IPV6`] list them by name. A lookup yields an index only: what is
//! done there is one 64-bit word in [`next_hop::NextHops`], so a changed MAC is one store and touches no
//! route.
//!
//! Absent on purpose: policy (VRFs, rules), packets, threads. Memory that a change frees is used again
//! only after every registered reader has said that it is past it ([`published::Readers`]).

// `loom` is a cfg set by hand for models of `published`; cargo does not know it.
#![allow(unexpected_cfgs)]

pub mod chunk;
pub mod cpu;
pub mod dir18;
pub mod dir24_8;
pub mod dxr;
pub mod memory;
pub mod next_hop;
pub mod published;
pub mod range6;
pub mod rib;
pub mod sets;
pub mod structure;
mod sync;

pub use chunk::{Chunk17, Chunk17Fib};
pub use cpu::Form;
pub use dir18::{Dir18, Dir18Fib};
pub use dir24_8::{Dir24_8, Dir24_8Fib};
pub use dxr::{D16R, D16X4R, D18R, D20R, Dxr, DxrFib};
pub use memory::{NotAttached, Source};
pub use next_hop::NextHop;
pub use range6::{Range6, Range6Fib};
pub use structure::Structure;

use bm_wire::prefix::{Address, Prefix};
use published::Readers;
use std::fmt;
use std::sync::Arc;

/// Longest-prefix match, as workers see it.
///
/// A lookup is always safe. It is *right* only while the calling thread is registered with the
/// [`Readers`] that the builder was given, and says [`published::ReaderHandle::quiescent`] only between
/// lookups: memory behind a reader that has not registered may be used anew under it.
pub trait Fib: Send + Sync {
    /// `u32` for IPv4, `u128` for IPv6, in host order.
    type Address: Address;

    /// The next hop of one address: [`NextHop::NONE`] where no route matches.
    fn lookup(&self, address: Self::Address) -> NextHop;

    /// Asks the cache for what lookups of `addresses` will read first. Worth it where other work lies between.
    fn prefetch(&self, _addresses: &[Self::Address]) {}

    /// Sets `hops[i]` for each `addresses[i]`; much faster than one by one, best at 32 and more.
    ///
    /// # Panics
    /// If `hops` is shorter than `addresses`.
    #[inline]
    fn lookup_burst(&self, addresses: &[Self::Address], hops: &mut [NextHop]) {
        self.lookup_burst_by(self.form(), addresses, hops);
    }

    /// The same in a given form, or the nearest that there is. Only tests and benches call it: `lookup_burst`
    /// takes the best. This one does one address after the other.
    ///
    /// # Panics
    /// If `hops` is shorter than `addresses`.
    fn lookup_burst_by(&self, _form: Form, addresses: &[Self::Address], hops: &mut [NextHop]) {
        let hops = &mut hops[..addresses.len()];
        hops.iter_mut().zip(addresses).for_each(|(hop, address)| *hop = self.lookup(*address));
    }

    /// The widest form that [`Self::lookup_burst`] takes on this CPU.
    fn form(&self) -> Form {
        Form::SCALAR
    }

    /// The pages that the largest array lies in.
    fn pages(&self) -> memory::Pages {
        memory::Pages::Plain
    }
}

/// A structure whose reader can live in another process than its builder.
pub trait SharedFib: Fib + Sized {
    /// The reader of what [`BuildFib::build_in`] put, or is putting, into the file behind `source`. It
    /// follows every later change.
    ///
    /// # Errors
    /// If the file holds another structure.
    fn attach(source: &Source) -> Result<Self, NotAttached>;
}

/// Longest-prefix match, as the control plane makes and changes it. There is one builder a table.
///
/// All but building works on a `dyn BuildFib`, since which structure it is, is configured.
pub trait BuildFib {
    /// `u32` for IPv4, `u128` for IPv6, in host order.
    type Address: Address;

    /// A table of all `routes` in memory from `source`; what later changes free waits for `readers`.
    fn build_in(
        routes: impl IntoIterator<Item = (Prefix<Self::Address>, NextHop)>,
        readers: &Readers,
        source: &Source,
    ) -> Result<Self, TableFull<Self::Address>>
    where
        Self: Sized;

    /// The same in memory of this process alone.
    fn build(
        routes: impl IntoIterator<Item = (Prefix<Self::Address>, NextHop)>,
        readers: &Readers,
    ) -> Result<Self, TableFull<Self::Address>>
    where
        Self: Sized,
    {
        Self::build_in(routes, readers, &Source::anonymous())
    }

    /// The readers' side: clone it once a worker. It follows every later change.
    fn reader(&self) -> Arc<dyn Fib<Address = Self::Address>>;

    /// Carries out `changes` in order. Each address sees the old next hop or the new one.
    ///
    /// A change that does not fit leaves the table as it was before that change and stops there: those
    /// before it stand, and [`TableFull::applied`] tells how many they are, so that a caller can leave
    /// the refused one out and go on. Removing a prefix that has no route is no error.
    fn apply(&mut self, changes: &[Change<Self::Address>]) -> Result<(), TableFull<Self::Address>>;

    /// Every route of the table.
    fn rib(&self) -> &rib::Rib<Self::Address>;

    /// What the lookup structure holds, in bytes; the [`rib::Rib`] is not counted.
    fn memory_bytes(&self) -> usize;

    /// Takes back what all readers have moved past. `apply` does so as well.
    fn reclaim(&mut self);
}

/// One change to a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<A: Address> {
    /// The route to this prefix is now through this next hop, whether or not there was one.
    Set(Prefix<A>, NextHop),
    /// This prefix has no route of its own any more.
    Remove(Prefix<A>),
}

impl<A: Address> Change<A> {
    /// The prefix that changes.
    pub fn prefix(&self) -> Prefix<A> {
        match *self {
            Self::Set(prefix, _) | Self::Remove(prefix) => prefix,
        }
    }
}

/// A route does not fit. The table is as it was before this route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableFull<A: Address> {
    /// The route refused.
    pub prefix: Prefix<A>,
    /// How many changes of the same call stand before it.
    pub applied: usize,
    /// What ran out.
    pub lack: Lack,
}

/// What a table ran out of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// Entries are too narrow for this next hop's index.
    NextHop(NextHop),
    /// No blocks are left for what lies below the first level (counting those that readers still hold).
    Blocks,
    /// The system gave no memory for the table.
    Memory,
}

impl<A: Address> TableFull<A> {
    /// There is no memory for the structure itself, whatever its routes.
    pub fn no_memory(_: memory::OutOfMemory) -> Self {
        Self { prefix: Prefix::default(), applied: 0, lack: Lack::Memory }
    }
}

impl<A: Address> fmt::Display for TableFull<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no room for the route to {}: ", self.prefix)?;
        match self.lack {
            Lack::NextHop(hop) => {
                write!(
                    f,
                    "next hop number {hop} is too large for a table entry; use fewer distinct next hops"
                )
            }
            Lack::Blocks => f.write_str("no blocks are left for long prefixes; use fewer long prefixes"),
            Lack::Memory => f.write_str("out of memory; raise the memory limit, or free some memory"),
        }
    }
}

impl<A: Address> std::error::Error for TableFull<A> {}
