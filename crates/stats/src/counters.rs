//! Counters whose names are known at compile time. Each set of them is a type, so that code names a counter instead of
//! using its index or its exported name.

use std::marker::PhantomData;

use crate::scope::Scope;
use crate::shared::{Block, Registry, StatsError};

/// A set of counters, defined with [`counter_kind!`](crate::counter_kind).
pub trait CounterKind: Copy + 'static {
    /// All of them, in their order in a block.
    const ALL: &'static [Self];
    /// Their names, in the same order.
    const NAMES: &'static [&'static str];
    /// Its index in a block.
    fn index(self) -> usize;
}

/// Defines an enum of counters, each with its exported name.
///
/// ```
/// bm_stats::counter_kind! {
///     /// The counters of a cache.
///     pub enum CacheCounter {
///         /// Lookups that found an entry.
///         Hits = "hits",
///     }
/// }
/// use bm_stats::CounterKind;
/// assert_eq!(CacheCounter::NAMES, ["hits"]);
/// ```
#[macro_export]
macro_rules! counter_kind {
    (
        $(#[$about:meta])*
        $visibility:vis enum $kind:ident {
            $($(#[$about_one:meta])* $counter:ident = $name:literal,)+
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $visibility enum $kind {
            $($(#[$about_one])* $counter,)+
        }

        impl $crate::CounterKind for $kind {
            const ALL: &'static [Self] = &[$(Self::$counter),+];
            const NAMES: &'static [&'static str] = &[$($name),+];
            #[inline(always)]
            fn index(self) -> usize {
                self as usize
            }
        }
    };
}

/// All counters of one kind that belong to one scope. Only one thread writes them.
pub struct Counters<K>(Block, PhantomData<fn(K)>);

// Not derived: that would require `K: Clone` and `K: Copy`.
impl<K> Clone for Counters<K> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K> Copy for Counters<K> {}

impl<K: CounterKind> Counters<K> {
    /// Creates them with zeros. If they already exist in this process, they keep their values.
    ///
    /// # Errors
    /// As [`Registry::block`].
    pub fn open(registry: &Registry, scope: Scope<'_>) -> Result<Self, StatsError> {
        registry.block(&scope.to_string(), K::NAMES).map(|block| Self(block, PhantomData))
    }

    /// Adds `n`.
    #[inline]
    pub fn add(&self, counter: K, n: u64) {
        self.0.add(counter.index(), n);
    }

    /// Sets the value, for gauges and for sums that are kept elsewhere.
    #[inline]
    pub fn set(&self, counter: K, value: u64) {
        self.0.set(counter.index(), value);
    }

    /// The value now.
    #[inline]
    pub fn get(&self, counter: K) -> u64 {
        self.0.get(counter.index())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::counter_kind! {
        enum Test {
            First = "first",
            Second = "second",
        }
    }

    #[test]
    fn each_has_its_name_and_index() {
        let registry = Registry::anonymous(16).unwrap();
        let counters = Counters::open(&registry, Scope::Worker { worker: 3 }).unwrap();
        counters.add(Test::Second, 5);
        counters.add(Test::Second, 2);
        counters.set(Test::First, 9);
        assert_eq!(Test::ALL.iter().map(|&counter| counters.get(counter)).collect::<Vec<_>>(), [9, 7]);
        let expected = [("worker/3/first", 9), ("worker/3/second", 7)];
        assert_eq!(registry.counters(), expected.map(|(name, value)| (name.to_string(), value)));
    }

    #[test]
    fn counters_that_exist_keep_their_values() {
        let registry = Registry::anonymous(16).unwrap();
        let open = |worker| Counters::<Test>::open(&registry, Scope::Worker { worker }).unwrap();
        open(0).add(Test::First, 4);
        assert_eq!((open(0).get(Test::First), open(1).get(Test::First)), (4, 0));
    }
}
