//! An outbound SA of a worker: its numbers, and the MTU of the route to its peer.

use std::net::IpAddr;

use bm_frame::Frame;
use bm_ipsec::{Failure, Lanes};
use bm_wire::ipv4::Ipv4;
use bm_wire::ipv6::{self, Ipv6};

use super::choice::List;
use super::frames::{self, WaitingFrame};
use super::live::Sender;
use super::{Stop, reason};
use crate::route::{self, Route};
use crate::stages::rewrite;
use crate::tables::Tables;

impl Sender {
    /// Encrypts packets, one outcome each.
    pub fn encrypt(
        &mut self,
        lanes: &mut Lanes,
        tables: &Tables,
        waiting: &mut [WaitingFrame<List>],
        outcomes: &mut [Result<(), Failure>],
        now_ns: u64,
    ) {
        // The route may have another MTU in other tables. Packets must be refused before they are encrypted, since their
        // sources get an error about them.
        let learned = self.status.path_mtu(now_ns);
        if self.looked_up_in != std::ptr::from_ref(tables).addr() || self.learned_mtu != learned {
            self.learned_mtu = learned;
            self.look_up_mtu(tables);
        }
        let mut done = 0;
        while let Some(rest) = waiting.get_mut(done..).filter(|rest| !rest.is_empty()) {
            if let Err(failure) = self.continue_numbers() {
                outcomes[done..].fill(Err(failure));
                break;
            }
            // Each packet takes one number at most, so the next block is taken when this one is used up.
            let count = rest.len().min(self.sa.numbers().left().clamp(1, rest.len() as u64) as usize);
            let (rest, outcomes) = (&mut rest[..count], &mut outcomes[done..done + count]);
            if count > 1 && self.sa.takes_bursts(lanes) {
                frames::change_all(rest, outcomes, |packets, outcomes| {
                    self.sa.encrypt_burst(lanes, packets, outcomes, now_ns);
                });
            } else {
                for (one, outcome) in rest.iter_mut().zip(outcomes) {
                    *outcome =
                        frames::change(&mut one.frame, one.network, |packet| self.sa.encrypt(packet, now_ns));
                }
            }
            done += count;
        }
        self.status.write(self.sa.used(), self.sa.numbers().next(), self.sa.expiry(now_ns));
    }

    /// Takes the next block of numbers if this one is used up, or if another sender has used higher ones.
    #[inline]
    fn continue_numbers(&mut self) -> Result<(), Failure> {
        let floor = self.status.floor();
        while self.sa.numbers().left() == 0 || self.sa.numbers().next() < floor {
            match self.more.pop() {
                Some(more) => drop(self.sa.continue_with(more)),
                None if self.sa.numbers().next() < floor => return Err(Failure::NoSequenceNumbers),
                None => break,
            }
        }
        Ok(())
    }

    /// Looks up the MTU of the route to the peer.
    pub fn look_up_mtu(&mut self, tables: &Tables) {
        let of_route = self.peer.and_then(|peer| mtu_to(tables, peer)).unwrap_or(u16::MAX);
        self.current_mtu = self.path_mtu.min(of_route).min(self.learned_mtu);
        self.sa.set_path_mtu(self.current_mtu);
        self.looked_up_in = std::ptr::from_ref(tables).addr();
    }

    /// The path MTU for packets whose source is this router, which therefore may send them in fragments over IPv6.
    pub fn path_mtu_of_own(&self) -> u16 {
        if self.peer.is_some() { self.current_mtu } else { u16::MAX }
    }

    /// What to do with a packet that was not encrypted. If it is too big and must not be fragmented, its source gets an
    /// ICMP error (RFC 4301 8.2.1).
    pub fn refused(&self, frame: &mut Frame, network: usize, failure: Failure) -> Stop {
        let packet = frames::packet(frame, network);
        let header = match (Ipv4::parse(packet), Ipv6::parse(packet)) {
            (Ok(ip), _) => ip.dont_fragment().then(|| (ip.header_len(), 0)),
            (_, Ok(_)) => Some((ipv6::HEADER_LEN, ipv6::MIN_MTU)),
            _ => None,
        };
        match header {
            Some((header, least)) if failure == Failure::TooBig => {
                let meta = frame.meta_mut();
                (meta.network, meta.interface) = (network as u16, u16::MAX);
                Stop::TooBig(self.sa.inner_mtu(header).max(least) as u16)
            }
            _ => Stop::Drop(reason(failure)),
        }
    }
}

/// The MTU of most links, for a way that only Linux knows.
const USUAL_MTU: u16 = 1500;

/// The MTU of the route to an address in the main table.
fn mtu_to(tables: &Tables, address: IpAddr) -> Option<u16> {
    let way = route::to(tables, 0, address, || 0);
    if way == Route::Host {
        return Some(USUAL_MTU);
    }
    let (hop, interface) = way.out()?;
    let egress = rewrite::egress(tables, interface).ok()?;
    Some(rewrite::mtu(egress, tables.next_hops.mtu(hop))).filter(|mtu| *mtu > 0)
}
