//! Frames and their unresolved neighbors: hold, resolve, release, give up.

use std::net::IpAddr;

use bm_fib::NextHop;
use bm_fib::next_hop::Entry as Hop;
use bm_frame::Frame;
use bm_stats::Reason;
use bm_wire::Family;

use super::error::Error;
use super::header::Header;
use super::tell::{self, is_for_linux};
use super::waiter::Waiter;
use super::waiting::HoldResult;
use super::{Core, Now, Resolution, SlowCounter};
use crate::route::{self, Neighbor, Route};
use crate::stages::rewrite;
use crate::tables::Tables;
use crate::verdict::Verdict;

impl Core {
    /// Lets a frame wait for its neighbor, and makes the kernel resolve it.
    pub(super) fn hold(&mut self, tables: &Tables, waiter: Waiter, neighbor: Neighbor, now: Now) {
        // Checked first: an interface that is gone or down has no neighbors.
        let reason = match rewrite::egress(tables, neighbor.interface) {
            Ok(egress) if egress.mtu > 0 => None,
            Ok(_) => Some(Reason::InterfaceDown),
            Err(_) => Some(Reason::NoInterface),
        };
        if let Some(reason) = reason {
            return self.lose(waiter.frame, reason);
        }
        self.held(&waiter.frame, 1);
        match self.waiting.hold(neighbor, waiter, now.monotonic_ns) {
            HoldResult::Waits => {}
            HoldResult::Asks => self.ask(tables, &neighbor),
            HoldResult::Instead(other) | HoldResult::Full(other) => {
                self.held(&other.frame, -1);
                self.lose(other.frame, Reason::NeighborQueueFull);
            }
        }
    }

    /// Updates the gauge of frames held for a port.
    fn held(&mut self, frame: &Frame, change: isize) {
        if let Some(port) = self.ports.get_mut(usize::from(frame.meta().port)) {
            port.held = port.held.saturating_add_signed(change);
            port.account.set_held(port.held);
        }
    }

    fn ask(&mut self, tables: &Tables, neighbor: &Neighbor) {
        if let Some(interface) = tables.interfaces.get(usize::from(neighbor.interface)) {
            self.bump(SlowCounter::ResolveAsked);
            self.resolver.resolve(interface.ifindex, neighbor.address);
        }
    }

    /// Releases frames that need not wait any longer; returns how many.
    pub(super) fn look_after_waiting(&mut self, tables: &Tables, now: Now) -> usize {
        let mut released = 0;
        while let Some((ifindex, address, resolution)) = self.resolver.next_resolution() {
            let interface = tables.interfaces.iter().position(|other| other.ifindex == ifindex);
            if let Some(interface) = interface {
                let neighbor = Neighbor { interface: interface as u16, address };
                released += match resolution {
                    Resolution::Failed => self.give_up(tables, &neighbor, now),
                    Resolution::LeftToLinux => self.leave_to_linux(&neighbor),
                };
            }
        }
        let every = self.waiting.look_every_ns(now.monotonic_ns);
        let due = self.looked_ns.is_none_or(|last| now.monotonic_ns.saturating_sub(last) >= every);
        if self.waiting.is_empty() || !due {
            return released;
        }
        self.looked_ns = Some(now.monotonic_ns);
        // The tables decide: as soon as the first frame of a queue would take another route, all are released.
        let all: Vec<_> = self
            .waiting
            .heads()
            .map(|(neighbor, waiter)| {
                let route = way_of(tables, &waiter.frame);
                (*neighbor, matches!(route, Route::Resolve { neighbor: other, .. } if other == *neighbor))
            })
            .collect();
        for (neighbor, still_unknown) in all {
            if !still_unknown {
                self.bump(SlowCounter::ResolveAnswered);
                released += self.go_on(tables, &neighbor, now);
            } else if self.waiting.is_overdue(&neighbor, now.monotonic_ns) {
                released += self.give_up(tables, &neighbor, now);
            } else if self.waiting.asks_again(&neighbor, now.monotonic_ns) {
                self.ask(tables, &neighbor);
            }
        }
        released
    }

    /// Sends the frames that wait for the neighbor to which `frame` is about to leave: they came earlier.
    pub(super) fn let_waiting_go_first(
        &mut self,
        tables: &Tables,
        frame: &Frame,
        hop: NextHop,
        entry: Hop,
        now: Now,
    ) {
        if self.waiting.is_empty() {
            return;
        }
        let address = tables.next_hops.gateway(hop).address.or_else(|| destination(frame));
        if let Some(address) = address {
            let neighbor = Neighbor { interface: entry.interface(), address };
            self.go_on(tables, &neighbor, now);
        }
    }

    /// Sends the frames that waited for a neighbor, in order.
    fn go_on(&mut self, tables: &Tables, neighbor: &Neighbor, now: Now) -> usize {
        let frames = self.waiting.release(neighbor);
        let count = frames.len();
        for Waiter { mut frame, own } in frames {
            self.held(&frame, -1);
            if frame.meta().chosen != 0 && !leads_to(tables, way_of(tables, &frame), neighbor) {
                // While it waited the hook's next hop became another's number.
                frame.meta_mut().chosen = 0;
            }
            let is_esp = frame.meta().verdict == Verdict::Encrypted as u16;
            match own {
                true if is_esp => self.send_encrypted(tables, frame, now),
                true => self.send_own(tables, frame, now),
                false => self.handle(tables, frame, now),
            }
        }
        count
    }

    /// The neighbor does not answer: each source gets an error, as from Linux, with the TTL decremented.
    fn give_up(&mut self, tables: &Tables, neighbor: &Neighbor, now: Now) -> usize {
        let frames = self.waiting.release(neighbor);
        let count = frames.len();
        if count > 0 {
            self.bump(SlowCounter::ResolveFailed);
        }
        for Waiter { mut frame, own } in frames {
            self.held(&frame, -1);
            let family = tell::family(&frame);
            if !own && family.is_some_and(|family| tables.linux_tells(family)) {
                self.deliver_linux_only(frame);
                continue;
            }
            let is_linuxs =
                family.is_some_and(|family| has_options(&frame) || is_for_linux(tables, &frame, family));
            if !own && !self.encrypts && is_linuxs {
                self.deliver(frame);
                continue;
            }
            if !own && let Some(family) = decrement_ttl(&mut frame) {
                self.tell(tables, &frame, Error::neighbor_unresolved(family), now);
            }
            self.lose(frame, Reason::NeighborUnresolved);
        }
        count
    }

    /// Hands Linux the frames that wait for a neighbor which only Linux can reach. Packets of this router itself are dropped.
    fn leave_to_linux(&mut self, neighbor: &Neighbor) -> usize {
        let frames = self.waiting.release(neighbor);
        let count = frames.len();
        for Waiter { frame, own } in frames {
            self.held(&frame, -1);
            if own { self.lose(frame, Reason::NeighborUnresolved) } else { self.deliver_linux_only(frame) }
        }
        count
    }

    /// Frees everything that waits, at the end.
    pub(super) fn drop_waiting(&mut self) {
        let all: Vec<_> = self.waiting.drain().collect();
        for Waiter { frame, .. } in all {
            self.held(&frame, -1);
            self.lose(frame, Reason::Stopped);
        }
    }
}

/// Whether a packet has options of IPv4, which an error would quote as Linux has written them.
fn has_options(frame: &Frame) -> bool {
    tell::packet(frame).first().is_some_and(|first| first >> 4 == 4 && first & 0xf > 5)
}

/// Whether a route uses a neighbor.
fn leads_to(tables: &Tables, way: Route, neighbor: &Neighbor) -> bool {
    match way {
        Route::Forward { hop, entry } => {
            let address = tables.next_hops.gateway(hop).address;
            entry.interface() == neighbor.interface
                && address.is_none_or(|address| address == neighbor.address)
        }
        Route::Resolve { neighbor: other, .. } => other == *neighbor,
        _ => false,
    }
}

/// The destination of a frame's packet.
fn destination(frame: &Frame) -> Option<IpAddr> {
    Header::parse(tell::packet(frame)).map(|header| header.destination)
}

/// Where a waiting frame would go now.
fn way_of(tables: &Tables, frame: &Frame) -> Route {
    let (packet, vrf) = (tell::packet(frame), tell::vrf(tables, frame));
    destination(frame)
        .map_or(Route::None, |destination| route::of_packet(tables, frame.meta(), vrf, destination, packet))
}

/// Decrements the TTL of a packet that was about to be sent; returns its family.
pub(super) fn decrement_ttl(frame: &mut Frame) -> Option<Family> {
    let network = usize::from(frame.meta().network);
    let packet = frame.data_mut().get_mut(network..)?;
    match packet.first()? >> 4 {
        4 => {
            let header = packet.first_chunk_mut()?;
            rewrite::decrement_ttl(header);
            Some(Family::V4)
        }
        6 => {
            let hops = packet.get_mut(7)?;
            *hops = hops.saturating_sub(1);
            Some(Family::V6)
        }
        _ => None,
    }
}
