//! Reads what programs write into a ring (`BPF_MAP_TYPE_RINGBUF`).

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use libbpf_rs::{ErrorKind, MapCore, RingBuffer, RingBufferBuilder};

/// Records that are read at once; the rest stays in the ring.
const AT_ONCE: usize = 4096;

/// The reader of a ring. One at a time: two would share the records.
pub struct RingReader<T> {
    ring: RingBuffer<'static>,
    inbox: Rc<RefCell<Vec<T>>>,
}

impl<T: 'static> RingReader<T> {
    /// `parse` returns `None` for bytes that are no record.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open(map: &dyn MapCore, parse: fn(&[u8]) -> Option<T>) -> libbpf_rs::Result<Self> {
        let inbox = Rc::<RefCell<Vec<T>>>::default();
        let to = inbox.clone();
        let mut builder = RingBufferBuilder::new();
        builder.add(map, move |bytes: &[u8]| {
            let mut to = to.borrow_mut();
            to.extend(parse(bytes));
            // A negative number ends the reading for now; libbpf ignores others.
            -i32::from(to.len() >= AT_ONCE)
        })?;
        Ok(Self { ring: builder.build()?, inbox })
    }

    /// The records that have come, after waiting for the first one for this time at most.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn poll(&self, longest: Duration) -> libbpf_rs::Result<Vec<T>> {
        self.taken(self.ring.poll(longest))
    }

    /// The records that have come, without a system call.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn take(&self) -> libbpf_rs::Result<Vec<T>> {
        self.taken(self.ring.consume())
    }

    fn taken(&self, read: libbpf_rs::Result<()>) -> libbpf_rs::Result<Vec<T>> {
        match read {
            Err(error) if error.kind() != ErrorKind::Interrupted && self.inbox.borrow().is_empty() => {
                Err(error)
            }
            _ => Ok(self.inbox.take()),
        }
    }
}
