//! Forwarding information bases: flat arrays, one writer, many readers, no locks.
//!
//! ```text
//! control: routes -> [ Rib ] -> builder --- one atomic store per change ---.
//!                                                                        v
//! workers: address -> Fib::lookup_burst -> NextHop -> NextHops -> MAC and interface
//! ```
//!
//! Control owns a builder ([`BuildFib`]) with all its routes and changes it; workers have an `Arc` of its reader
//! ([`Fib`]) and never wait. Structures differ only behind these two traits; [`structure::IPV4`] and
//! [`structure::IPV6`] list them by name. A lookup only gives an index: the action there is one 64-bit word in
//! [`next_hop::NextHops`], so a changed MAC address is one store and changes no route.
//!
//! Absent on purpose: policy (VRFs, rules), packets, threads. Memory that a change frees is reused only after every
//! registered reader has announced that it is past it ([`published::Readers`]).

// `loom` is a cfg set by hand for models of `published`; cargo does not know it.
#![allow(unexpected_cfgs)]

pub mod chunk;
pub mod cpu;
pub mod dir18;
pub mod dir24_8;
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
/// A lookup is always memory-safe. Its result is *correct* only while the calling thread is registered with the
/// [`Readers`] that the builder got, and calls [`published::ReaderHandle::quiescent`] only between lookups: memory
/// may be reused under a reader that is not registered.
pub trait Fib: Send + Sync {
    /// `u32` for IPv4, `u128` for IPv6, in host order.
    type Address: Address;

    /// The next hop of one address: [`NextHop::NONE`] if no route matches.
    fn lookup(&self, address: Self::Address) -> NextHop;

    /// Prefetches what lookups of `addresses` will read first. Useful if other work is done in between.
    fn prefetch(&self, _addresses: &[Self::Address]) {}

    /// Sets `hops[i]` for each `addresses[i]`; much faster than one by one, best with 32 and more.
    ///
    /// # Panics
    /// If `hops` is shorter than `addresses`.
    #[inline]
    fn lookup_burst(&self, addresses: &[Self::Address], hops: &mut [NextHop]) {
        self.lookup_burst_by(self.form(), addresses, hops);
    }

    /// [`lookup_burst`](Self::lookup_burst) in a given form, or the nearest available. Only tests and benches call it:
    /// `lookup_burst` uses the best. This default looks up one address after the other.
    ///
    /// # Panics
    /// If `hops` is shorter than `addresses`.
    fn lookup_burst_by(&self, _form: Form, addresses: &[Self::Address], hops: &mut [NextHop]) {
        let hops = &mut hops[..addresses.len()];
        hops.iter_mut().zip(addresses).for_each(|(hop, address)| *hop = self.lookup(*address));
    }

    /// The widest form that [`Self::lookup_burst`] uses on this CPU.
    fn form(&self) -> Form {
        Form::SCALAR
    }

    /// The kind of pages of the largest array.
    fn pages(&self) -> memory::Pages {
        memory::Pages::Plain
    }
}

/// A structure whose reader can live in another process than its builder.
pub trait SharedFib: Fib + Sized {
    /// The reader of what [`BuildFib::build_in`] has put, or is putting, into the file of `source`. It sees every
    /// later change.
    ///
    /// # Errors
    /// If the file contains another structure.
    fn attach(source: &Source) -> Result<Self, NotAttached>;
}

/// Longest-prefix match, for the control plane, which creates and changes it. There is one builder per table.
///
/// Everything except building works on a `dyn BuildFib`, because the structure is configurable.
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

    /// A table of all `routes` in memory of this process; what later changes free waits for `readers`.
    fn build(
        routes: impl IntoIterator<Item = (Prefix<Self::Address>, NextHop)>,
        readers: &Readers,
    ) -> Result<Self, TableFull<Self::Address>>
    where
        Self: Sized,
    {
        Self::build_in(routes, readers, &Source::anonymous())
    }

    /// The readers' side: clone it once per worker. It follows every later change.
    fn reader(&self) -> Arc<dyn Fib<Address = Self::Address>>;

    /// Carries out `changes` in order. Each address sees the old next hop or the new one.
    ///
    /// A change that does not fit leaves the table as it was before that change, and ends the call: earlier changes
    /// stay, and [`TableFull::applied`] is their number, so that a caller can skip the refused one and continue.
    /// Removing a prefix without a route is not an error.
    fn apply(&mut self, changes: &[Change<Self::Address>]) -> Result<(), TableFull<Self::Address>>;

    /// Every route of the table.
    fn rib(&self) -> &rib::Rib<Self::Address>;

    /// The size of the lookup structure in bytes; the [`rib::Rib`] is not included.
    fn memory_bytes(&self) -> usize;

    /// Frees memory whose grace period has ended: all readers have moved past it. `apply` does so as well.
    fn reclaim(&mut self);
}

/// One change to a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<A: Address> {
    /// Sets the route to this prefix to this next hop, whether or not there was one.
    Set(Prefix<A>, NextHop),
    /// Removes the route to this prefix.
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
    /// The refused route.
    pub prefix: Prefix<A>,
    /// The number of changes of the same call before it.
    pub applied: usize,
    /// The resource that ran out.
    pub shortage: Shortage,
}

/// The resource that a table ran out of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// Entries are too narrow for this next hop's index.
    NextHop(NextHop),
    /// No blocks are left below the first level (including those that readers may still use).
    Blocks,
    /// The system gave no memory for the table.
    Memory,
}

impl<A: Address> TableFull<A> {
    /// There is no memory for the structure itself, whatever its routes.
    pub fn no_memory(_: memory::OutOfMemory) -> Self {
        Self { prefix: Prefix::default(), applied: 0, shortage: Shortage::Memory }
    }
}

impl<A: Address> fmt::Display for TableFull<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no room for the route to {}: ", self.prefix)?;
        match self.shortage {
            Shortage::NextHop(hop) => {
                write!(
                    f,
                    "next hop number {hop} is too large for a table entry; use fewer distinct next hops"
                )
            }
            Shortage::Blocks => f.write_str("no blocks are left for long prefixes; use fewer long prefixes"),
            Shortage::Memory => f.write_str("out of memory; raise the memory limit, or free some memory"),
        }
    }
}

impl<A: Address> std::error::Error for TableFull<A> {}
