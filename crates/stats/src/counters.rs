//! Counters whose names are known when the program is compiled: a type for each set of them, so that nobody counts by
//! a number or spells a name.

use std::marker::PhantomData;

use crate::scope::Scope;
use crate::shared::{Block, Registry, StatsError};

/// A set of counters, made by [`counter_kind!`](crate::counter_kind).
pub trait CounterKind: Copy + 'static {
    /// All of them, in their order in a block.
    const ALL: &'static [Self];
    /// Their names, in the same order.
    const NAMES: &'static [&'static str];
    /// Its place in a block.
    fn index(self) -> usize;
}

/// Makes an enum of counters, each with the name that it is exported under.
///
/// ```
/// bm_stats::counter_kind! {
///     /// What a cook counts.
///     pub enum CookCounter {
///         /// Eggs that were boiled.
///         Boiled = "eggs_boiled",
///     }
/// }
/// use bm_stats::CounterKind;
/// assert_eq!(CookCounter::NAMES, ["eggs_boiled"]);
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

/// The counters of one kind and one scope, side by side. One thread writes them.
pub struct Counters<K>(Block, PhantomData<fn(K)>);

// By hand, since derived ones would ask for a kind that is `Clone`, and one that is `Copy`.
impl<K> Clone for Counters<K> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K> Copy for Counters<K> {}

impl<K: CounterKind> Counters<K> {
    /// Opens them: zero, or as they were left by whoever had them before in this process.
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

    /// Sets a gauge, or a sum that is kept elsewhere.
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
    fn each_has_its_name_and_its_place() {
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
    fn who_opens_them_again_counts_on() {
        let registry = Registry::anonymous(16).unwrap();
        let open = |worker| Counters::<Test>::open(&registry, Scope::Worker { worker }).unwrap();
        open(0).add(Test::First, 4);
        assert_eq!((open(0).get(Test::First), open(1).get(Test::First)), (4, 0));
    }
}
