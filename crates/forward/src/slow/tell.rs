//! Telling the source: ICMP and ICMPv6 errors, chosen by others, allowed, built and routed here.
//!
//! ```text
//! may it be answered? -> is there a way back? -> is it within the limits? -> from which address? -> send
//! ```
//!
//! An error is routed like any packet of this router: with the table of the interface on which the original arrived.
//! An error that cannot be sent is not reported, but counted.

use std::net::IpAddr;

use bm_fib::NextHop;
use bm_frame::Frame;
use bm_stats::{Entry, Reason};
use bm_wire::Family;
use bm_wire::ethernet::HEADER_LEN;
use bm_wire::icmp::{self, Sender, unreachable};
use bm_wire::icmpv6;
use bm_wire::ipv4::{self, Ipv4};
use bm_wire::ipv6::Ipv6;
use bm_wire::prefix::Address as _;

use super::error::Error;
use super::header::Header;
use super::limit::LimitReached;
use super::waiter::Waiter;
use super::{Core, Now, SlowCounter, address};
use crate::route::{self, Route};
use crate::stages::rewrite;
use crate::tables::Tables;

impl Core {
    /// Sends an error about `original` to its source, if that is allowed.
    pub(super) fn tell(&mut self, tables: &Tables, original: &Frame, error: Error, now: Now) {
        let made = match error {
            Error::Ipv4 { problem, by_route, options } => {
                let allowed = self.allow_ipv4(tables, original, &problem, by_route, now);
                allowed.and_then(|(hop, interface)| {
                    self.make_ipv4(tables, original, &problem, hop, interface, options.bytes())
                })
            }
            Error::Ipv6 { problem } => {
                let allowed = self.allow_ipv6(tables, original, &problem, now);
                allowed.and_then(|(_, interface)| self.make_ipv6(tables, original, &problem, interface))
            }
        };
        match made {
            Ok(frame) => {
                self.bump(SlowCounter::ErrorsSent);
                self.send_own(tables, frame, now);
            }
            Err(why) => self.bump(why),
        }
    }

    /// Whether Linux sends an error about a packet, since its source is not certain here.
    pub(super) fn leaves_to_linux(&self, tables: &Tables, original: &Frame, family: Family) -> bool {
        !self.encrypts && is_for_linux(tables, original, family)
    }

    /// Whether an error may go to the source of `original`, and the way there.
    fn allow_ipv4(
        &mut self,
        tables: &Tables,
        original: &Frame,
        problem: &icmp::Problem,
        by_route: bool,
        now: Now,
    ) -> Result<(NextHop, u16), SlowCounter> {
        let ip = Ipv4::parse(packet(original)).map_err(|_| SlowCounter::ErrorsSilent)?;
        icmp::may_answer(&ip, false).map_err(|_| SlowCounter::ErrorsSilent)?;
        let always = problem.code == unreachable::FRAGMENTATION_NEEDED
            && problem.kind == icmp::kind::DESTINATION_UNREACHABLE;
        let kind = (!always).then_some(problem.kind);
        self.way_back(tables, original, ip.source().show(), kind, by_route, now)
    }

    /// Whether an ICMPv6 error may go to the source of `original`, and the way there.
    fn allow_ipv6(
        &mut self,
        tables: &Tables,
        original: &Frame,
        problem: &icmpv6::Problem,
        now: Now,
    ) -> Result<(NextHop, u16), SlowCounter> {
        let ip = Ipv6::parse(packet(original)).map_err(|_| SlowCounter::ErrorsSilent)?;
        icmpv6::may_answer(&ip, problem, false).map_err(|_| SlowCounter::ErrorsSilent)?;
        let kind = (problem.kind != icmpv6::kind::PACKET_TOO_BIG).then_some(problem.kind);
        self.way_back(tables, original, ip.source().show(), kind, false, now)
    }

    /// The way to `source` for an error of `kind`, unless there is none or the limits forbid the error.
    fn way_back(
        &mut self,
        tables: &Tables,
        original: &Frame,
        source: IpAddr,
        kind: Option<u8>,
        by_route: bool,
        now: Now,
    ) -> Result<(NextHop, u16), SlowCounter> {
        let vrf = vrf(tables, original);
        let way = route::to(tables, vrf, source, || rewrite::hash(tables, packet(original)));
        let out = way.out().ok_or(SlowCounter::ErrorsSilent)?;
        let target = (vrf, source);
        let now_ns = now.monotonic_ns;
        if by_route {
            self.limits.allow_reject(target, now_ns)?;
        }
        self.limits.allow(&tables.settings, kind, target, now_ns)?;
        Ok(out)
    }

    fn make_ipv4(
        &mut self,
        tables: &Tables,
        original: &Frame,
        problem: &icmp::Problem,
        hop: NextHop,
        interface: u16,
        options: &[u8],
    ) -> Result<Frame, SlowCounter> {
        let packet = packet(original);
        let ip = Ipv4::parse(packet).map_err(|_| SlowCounter::ErrorsSilent)?;
        let source = if tables.settings.icmp_source_inbound {
            address::ipv4(tables, original.meta().interface, Some(ip.source()), ip.source())
        } else {
            address::ipv4(tables, interface, address::gateway_ipv4(tables, hop), ip.source())
        };
        let sender = Sender { source, ttl: tables.settings.default_ttl, id: self.random() as u16 };
        let mtu = rewrite::egress(tables, interface).map_or(icmp::ERROR_LEN_MAX, |egress| {
            usize::from(rewrite::mtu(egress, tables.next_hops.mtu(hop))).min(icmp::ERROR_LEN_MAX)
        });
        // An error that leaves through a narrow link, or has options, quotes less.
        let room = mtu.saturating_sub(ipv4::HEADER_LEN + options.len() + icmp::HEADER_LEN);
        let quoted =
            Ipv4::parse_quoted(&packet[..packet.len().min(room)]).map_err(|_| SlowCounter::ErrorsSilent)?;
        self.fresh(original, icmp::ERROR_LEN_MAX, |buffer| {
            let length = problem.emit(&sender, &quoted, buffer).ok()?;
            insert_options(buffer, length, options)
        })
    }

    fn make_ipv6(
        &mut self,
        tables: &Tables,
        original: &Frame,
        problem: &icmpv6::Problem,
        interface: u16,
    ) -> Result<Frame, SlowCounter> {
        let ip = Ipv6::parse(packet(original)).map_err(|_| SlowCounter::ErrorsSilent)?;
        let source = address::ipv6(tables, original.meta().interface, ip.source());
        let source = source.ok_or(SlowCounter::ErrorsSilent)?;
        let leaves_on = tables.interfaces.get(usize::from(interface));
        let hop_limit = leaves_on.map_or(tables.settings.default_ttl, |interface| interface.hop_limit);
        let sender = icmpv6::Sender { source, hop_limit };
        self.fresh(original, icmpv6::ERROR_LEN_MAX, |buffer| problem.emit(&sender, &ip, buffer).ok())
    }

    /// A new frame about `original`, whose packet `write` puts after the space for a link header.
    fn fresh(
        &mut self,
        original: &Frame,
        length_max: usize,
        write: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> Result<Frame, SlowCounter> {
        let mut frame = self.frames.allocate().ok_or(SlowCounter::ErrorsSilent)?;
        *frame.meta_mut() = *original.meta();
        let meta = frame.meta_mut();
        (meta.network, meta.chosen) = (HEADER_LEN as u16, 0);
        let written = frame
            .set_len(HEADER_LEN + length_max)
            .ok()
            .and_then(|()| write(&mut frame.data_mut()[HEADER_LEN..]))
            .and_then(|length| frame.set_len(HEADER_LEN + length).ok());
        if written.is_none() {
            self.frames.free(frame);
            return Err(SlowCounter::ErrorsSilent);
        }
        self.count(&frame, Entry::Originated);
        Ok(frame)
    }

    /// Sends, or holds, a packet of this router.
    pub(super) fn send_own(&mut self, tables: &Tables, mut frame: Frame, now: Now) {
        let (network, vrf) = (usize::from(frame.meta().network), vrf(tables, &frame));
        let packet = packet(&frame);
        let Some(header) = Header::parse(packet) else { return self.lose(frame, Reason::NoRoute) };
        let way = route::to(tables, vrf, header.destination, || rewrite::hash(tables, packet));
        match way {
            Route::Resolve { neighbor, .. } => {
                self.hold(tables, Waiter { frame, own: true }, neighbor, now);
            }
            Route::Forward { hop, entry } => {
                tables.next_hops.mark_used(hop);
                let egress = rewrite::egress(tables, entry.interface()).copied();
                let made = egress.and_then(|egress| {
                    let made = rewrite::encapsulate(
                        &mut frame,
                        network,
                        header.length,
                        &egress,
                        entry,
                        header.ethertype(),
                    );
                    made.map(|()| egress)
                });
                match made {
                    Ok(egress) if egress.mtu > 0 => self.send(frame, egress.port),
                    Ok(_) => self.lose(frame, Reason::InterfaceDown),
                    Err(_) => self.lose(frame, Reason::NoInterface),
                }
            }
            _ => self.lose(frame, Reason::NoRoute),
        }
    }
}

/// Whether Linux has to send an error about `original`: it alone knows its source or the way back.
pub(super) fn is_for_linux(tables: &Tables, original: &Frame, family: Family) -> bool {
    let arrival = original.meta().interface;
    let source = match family {
        Family::V4 => Ipv4::parse(packet(original)).map(|ip| ip.source().show()).ok(),
        Family::V6 => Ipv6::parse(packet(original)).map(|ip| ip.source().show()).ok(),
    };
    let Some(source) = source else { return false };
    match route::to(tables, vrf(tables, original), source, || rewrite::hash(tables, packet(original))) {
        Route::Host => true,
        _ if family == Family::V6 => !address::is_certain_ipv6(tables, arrival),
        way => way.out().is_some_and(|(_, out)| {
            let from = if tables.settings.icmp_source_inbound { arrival } else { out };
            !address::is_certain_ipv4(tables, from)
        }),
    }
}

/// Makes room for `options` in the packet of `length` bytes in `buffer`; returns its new length.
fn insert_options(buffer: &mut [u8], length: usize, options: &[u8]) -> Option<usize> {
    if options.is_empty() {
        return Some(length);
    }
    let mut header = Ipv4::parse(&buffer[..length]).ok()?.repr();
    let whole = length + options.len();
    buffer.get(..whole)?;
    buffer.copy_within(ipv4::HEADER_LEN..length, ipv4::HEADER_LEN + options.len());
    header.total_len = whole as u16;
    header.emit_with_options(options, &mut buffer[..whole]).ok()?;
    Some(whole)
}

impl From<LimitReached> for SlowCounter {
    fn from(limited: LimitReached) -> Self {
        match limited {
            LimitReached::All => Self::ErrorsLimitedAll,
            LimitReached::Address => Self::ErrorsLimitedAddress,
        }
    }
}

/// The packet of a frame, from its network header on.
pub(super) fn packet(frame: &Frame) -> &[u8] {
    frame.data().get(usize::from(frame.meta().network)..).unwrap_or(&[])
}

/// The family of a frame's packet.
pub(super) fn family(frame: &Frame) -> Option<Family> {
    Header::parse(packet(frame)).map(|header| header.family)
}

/// The routing table of the interface that a frame came in on.
pub(super) fn vrf(tables: &Tables, frame: &Frame) -> u16 {
    tables.compiled.ingress.get(usize::from(frame.meta().interface)).map_or(0, |on| on.vrf)
}
