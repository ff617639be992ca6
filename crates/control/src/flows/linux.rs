//! What the thread for flows asks of Linux, so that tests can answer in its place.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use bm_conntrack::{Arrival, Connection, Conntrack, EventKind, Events, Settings, Tuple, Update};
use bm_fastpath::Grace;
use bm_fib::published::{Epoch, Readers};

/// Connections of Linux.
pub(super) trait Connections {
    /// Changes connections; the result of each, in their order.
    fn update(&mut self, updates: &[Update]) -> Vec<io::Result<()>>;

    /// The connection with this tuple.
    fn get(&mut self, original: &Tuple, zone: u16) -> Option<Connection>;

    /// All connections.
    fn list(&mut self) -> io::Result<Vec<Connection>>;

    /// Some of the events that have come; without any there are none at the moment.
    fn events(&mut self) -> Arrival;

    /// Settings of conntrack; [`io::ErrorKind::NotFound`] if there is none.
    fn settings(&mut self) -> io::Result<Settings>;
}

/// Grace periods of the programs that read the table.
pub(super) trait GracePeriods {
    /// Begins one. Of an earlier one that has not ended, nothing is known from then on.
    fn begin(&mut self);

    /// Whether the last one has ended.
    fn has_passed(&self) -> bool;
}

/// Connection tracking, by ctnetlink.
pub(super) struct KernelConnections {
    conntrack: Conntrack,
    events: Events,
}

impl KernelConnections {
    /// Opens sockets in the network namespace of the calling thread.
    pub fn open() -> io::Result<Self> {
        let conntrack = Conntrack::open()?;
        let kinds = [EventKind::Updated, EventKind::Destroyed];
        let events = Events::open(&kinds, Some(&conntrack), Events::BUFFER)?;
        Ok(Self { conntrack, events })
    }

    /// Readable when there are events.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

impl Connections for KernelConnections {
    fn update(&mut self, updates: &[Update]) -> Vec<io::Result<()>> {
        self.conntrack.update(updates).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot change connections");
            updates.iter().map(|_| Err(io::ErrorKind::Other.into())).collect()
        })
    }

    fn get(&mut self, original: &Tuple, zone: u16) -> Option<Connection> {
        self.conntrack.get(original, zone).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read a connection");
            None
        })
    }

    fn list(&mut self) -> io::Result<Vec<Connection>> {
        Ok(self.conntrack.list(None)?)
    }

    fn events(&mut self) -> Arrival {
        self.events.read().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read events of connections");
            Arrival::Overrun
        })
    }

    fn settings(&mut self) -> io::Result<Settings> {
        Settings::read()
    }
}

/// Grace periods of the kernel, for which a thread of their own waits.
pub(super) struct KernelGrace {
    readers: Readers,
    grace: Grace,
    asked: Option<Epoch>,
}

impl KernelGrace {
    pub fn start() -> io::Result<Self> {
        let readers = Readers::new();
        let grace = Grace::start(&readers)?;
        Ok(Self { readers, grace, asked: None })
    }
}

impl GracePeriods for KernelGrace {
    fn begin(&mut self) {
        self.asked = Some(self.readers.begin_epoch());
        self.grace.ask();
    }

    fn has_passed(&self) -> bool {
        self.asked.is_none_or(|epoch| self.readers.passed(epoch))
    }
}
