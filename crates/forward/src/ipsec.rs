//! IPsec on workers: an app ahead of the router decrypts, another behind it encrypts.
//!
//! ```text
//! port ─► Decryption ─► router ─► Encryption ─► port        slow path ─► Encryption
//!             │                       │  └─ route of the tunnel's header; none yet: slow path
//!             └── rings to the worker that owns the SA ──┘
//! ```
//!
//! The router knows nothing of this, and without SAs and policies the two apps do not exist, so routing costs nothing
//! more. A packet is routed once in clear, and its ESP packet is looked up once more here, never again: what is sent
//! between the ends of a tunnel is not encrypted a second time. What is routed to an IPsec interface, and what comes out of
//! its SAs, is on a port of its own between the apps and the router (interfaces.rs).
//!
//! Each SA belongs to one worker, which alone has its sequence numbers, window and counters. Other workers hand it their
//! packets through rings, one for each pair of workers, and it sends or routes them itself. A policy can have an SA for each
//! worker, so that none is handed over (choice.rs).

mod choice;
mod current;
mod decryption;
mod encryption;
mod errors;
mod frames;
mod interfaces;
mod linux;
mod live;
mod path_mtu;
mod rings;
mod sender;
mod sleeper;
mod status;

use std::collections::HashMap;
use std::sync::Arc;

use bm_ipsec::{Block, Direction, Failure, Policies, Sa};
use bm_link::Consumer;
use bm_stats::Reason;

pub use choice::PolicySas;
pub use current::CurrentPolicies;
pub use decryption::Decryption;
pub use encryption::Encryption;
pub use interfaces::{IPSEC_PORT, if_id_of};
pub use live::{Controls, Moved, NewSa, Wanted};
pub use rings::IpsecWorker;
pub use status::{SaStatus, Status};

/// An SA for workers.
pub struct SaPlan {
    pub sa: Sa,
    /// Packets that it protects are handed over to this one.
    pub worker: usize,
    /// What it has done before these workers were started, and does now.
    pub status: Arc<SaStatus>,
    /// For an outbound SA, its sequence numbers.
    pub numbers: Option<SaNumbers>,
}

/// The sequence numbers of an outbound SA, and what its IVs are made with.
pub struct SaNumbers {
    /// The first numbers.
    pub block: Block,
    /// The numbers after them, reserved while the SA is in use.
    pub more: Consumer<Block>,
    /// As for `bm_ipsec::Outbound`.
    pub iv_mask: u64,
}

/// All SAs and policies for a number of workers.
pub struct IpsecPlan {
    pub policies: Arc<Policies>,
    /// The SAs of the lists that policies name by number.
    pub lists: Vec<PolicySas>,
    /// By the numbers of templates, their SAs.
    pub current: Vec<PolicySas>,
    pub sas: Vec<SaPlan>,
    /// Whether they are the kernel's own. What workers do not forward then goes to Linux as it came.
    pub of_kernel: bool,
}

/// Which worker has an SA.
#[derive(Clone, Copy, Debug)]
enum Owner {
    /// This one; the place in its list.
    Mine(usize),
    /// Another one.
    Other(usize),
}

/// The ends of a tunnel, between which packets are not encrypted again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Ends {
    source: std::net::IpAddr,
    destination: std::net::IpAddr,
}

impl IpsecPlan {
    /// The owners of all SAs of a direction, as `worker` sees them, in the order of its own list.
    fn owners(&self, worker: usize, direction: Direction) -> bm_ipsec::SaTable<Owner> {
        let mut table = bm_ipsec::SaTable::new();
        let mut mine = 0;
        for plan in self.sas.iter().filter(|plan| plan.sa.direction == direction) {
            let owner = if plan.worker == worker { Owner::Mine(mine) } else { Owner::Other(plan.worker) };
            mine += usize::from(plan.worker == worker);
            // Two SAs with one SPI and destination are refused with the configuration.
            let _taken = table.insert(plan.sa.id(), owner);
        }
        table
    }

    fn destinations(&self) -> Vec<std::net::IpAddr> {
        let inbound = self.sas.iter().filter(|plan| plan.sa.direction == Direction::In);
        let mut found: Vec<_> = inbound.map(|plan| plan.sa.destination).collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// How many outbound SAs have the same ends.
    fn tunnels(&self) -> HashMap<Ends, usize> {
        let tunnels = self
            .sas
            .iter()
            .filter(|plan| plan.sa.direction == Direction::Out && plan.sa.mode == bm_ipsec::Mode::Tunnel);
        let mut found = HashMap::new();
        tunnels.for_each(|plan| *found.entry(Ends::of(&plan.sa)).or_default() += 1);
        found
    }
}

impl Ends {
    fn of(sa: &Sa) -> Self {
        Self { source: sa.source, destination: sa.destination }
    }
}

/// The reason under which a frame is dropped for a failure.
fn reason(failure: Failure) -> Reason {
    match failure {
        Failure::Malformed => Reason::IpsecMalformed,
        Failure::Fragment => Reason::IpsecFragment,
        Failure::NotEsp => Reason::IpsecNotEsp,
        Failure::TooShort => Reason::IpsecTooShort,
        Failure::NoSa => Reason::IpsecNoSa,
        Failure::Encapsulation => Reason::IpsecEncapsulation,
        Failure::Replay => Reason::IpsecReplay,
        Failure::Integrity => Reason::IpsecIntegrity,
        Failure::Padding => Reason::IpsecPadding,
        Failure::NextHeader => Reason::IpsecNextHeader,
        Failure::Selector => Reason::IpsecSelector,
        Failure::Ecn => Reason::IpsecEcn,
        Failure::Dummy => Reason::IpsecDummy,
        Failure::Lifetime => Reason::IpsecLifetime,
        Failure::SequenceOverflow => Reason::IpsecSequenceOverflow,
        Failure::NoSequenceNumbers => Reason::IpsecNoSequenceNumbers,
        Failure::NoHeadroom => Reason::IpsecNoHeadroom,
        Failure::NoTailroom => Reason::IpsecNoTailroom,
        Failure::TooLong => Reason::IpsecTooLong,
        Failure::TooBig => Reason::IpsecTooBig,
    }
}

/// Why a frame does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    Drop(Reason),
    /// Handed to this worker.
    To(usize),
    /// The slow path sends it.
    Slow,
    /// The slow path sends its source an ICMP error with this MTU.
    TooBig(u16),
    /// The slow path sends its source an ICMP error: no SA protects it on the interface by which it leaves.
    Unprotected(Reason),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Drop(reason(failure))
    }
}

#[cfg(test)]
mod tests;
