//! A table with one answer: for a family whose routing rules only Linux supports.

use bm_fib::{Fib, Form, NextHop};
use bm_wire::prefix::Address;
use std::marker::PhantomData;

/// All addresses have the same next hop.
pub(super) struct ConstFib<A> {
    hop: NextHop,
    addresses: PhantomData<A>,
}

impl<A> ConstFib<A> {
    pub fn new(hop: NextHop) -> Self {
        Self { hop, addresses: PhantomData }
    }
}

impl<A: Address> Fib for ConstFib<A> {
    type Address = A;

    fn lookup(&self, _address: A) -> NextHop {
        self.hop
    }

    fn lookup_burst_by(&self, _form: Form, addresses: &[A], hops: &mut [NextHop]) {
        hops[..addresses.len()].fill(self.hop);
    }
}
