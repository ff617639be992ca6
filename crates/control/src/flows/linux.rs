//! What the thread for flows asks of Linux, so that tests can answer in its place.

use std::io;
use std::net::Ipv4Addr;

use bm_conntrack::{Connection, Conntrack, Settings, Tuple, Update};
use bm_fastpath::Grace;
use bm_fib::published::{Epoch, Readers};

/// Connections of Linux.
pub(super) trait Connections {
    /// Changes connections; the result of each, in their order.
    fn update(&mut self, updates: &[Update]) -> Vec<io::Result<()>>;

    /// The connection with this tuple.
    fn get(&mut self, original: &Tuple, zone: u16) -> Option<Connection>;

    /// How long Linux keeps a TCP connection in this state without packets, in seconds.
    fn tcp_timeout_s(&mut self, state: u8) -> io::Result<u32>;

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
pub(super) struct KernelConnections(Conntrack);

impl KernelConnections {
    /// Opens a socket in the network namespace of the calling thread.
    pub fn open() -> io::Result<Self> {
        let mut conntrack = Conntrack::open()?;
        let nobody = Ipv4Addr::UNSPECIFIED.into();
        let none =
            Tuple { source: nobody, destination: nobody, source_port: 0, destination_port: 0, protocol: 0 };
        // Has the kernel load connection tracking, whose functions programs call: those that are loaded before lack them.
        if let Err(error) = conntrack.get(&none, 0) {
            tracing::debug!(%error, "no connection tracking");
        }
        Ok(Self(conntrack))
    }
}

impl Connections for KernelConnections {
    fn update(&mut self, updates: &[Update]) -> Vec<io::Result<()>> {
        self.0.update(updates).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot change connections");
            updates.iter().map(|_| Err(io::ErrorKind::Other.into())).collect()
        })
    }

    fn get(&mut self, original: &Tuple, zone: u16) -> Option<Connection> {
        self.0.get(original, zone).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read a connection");
            None
        })
    }

    fn tcp_timeout_s(&mut self, state: u8) -> io::Result<u32> {
        Settings::tcp_timeout_s(state)
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
