//! The route of ESP packets, which is looked up once for packets of one SA that follow each other.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bm_fib::next_hop::Entry;
use bm_frame::Frame;
use bm_ipsec::Failure;
use bm_stats::Reason;
use bm_wire::ethernet::ethertype;
use bm_wire::ipv4::Ipv4;
use bm_wire::ipv6::Ipv6;

use crate::compiled::Egress;
use crate::ipsec::{Stop, frames};
use crate::route::{self, Route};
use crate::stages::rewrite;
use crate::tables::Tables;

/// The route to an address.
#[derive(Clone, Copy)]
pub(super) struct EspRoute<'t> {
    destination: IpAddr,
    entry: Entry,
    egress: &'t Egress,
    mtu: usize,
}

/// The one further lookup: the way of an ESP packet, in the main table. `last` is the one of the packet before. Routers on
/// the way do not fragment IPv6, so this one does where `path_mtu` demands it.
pub(super) fn find<'t>(
    tables: &'t Tables,
    frame: &mut Frame,
    network: usize,
    path_mtu: u16,
    last: &mut Option<EspRoute<'t>>,
) -> Result<usize, Stop> {
    let packet = frames::packet(frame, network);
    let malformed = Stop::from(Failure::Malformed);
    let (destination, length, may_be_cut): (IpAddr, _, _) = match packet.first().map(|first| first >> 4) {
        Some(4) => {
            let ip = Ipv4::parse(packet).map_err(|_| malformed)?;
            (Ipv4Addr::from(ip.destination()).into(), usize::from(ip.total_len()), !ip.dont_fragment())
        }
        _ => {
            let ip = Ipv6::parse(packet).map_err(|_| malformed)?;
            // This router is the source, which may.
            (Ipv6Addr::from(ip.destination()).into(), packet.len(), true)
        }
    };
    let found = match last {
        Some(last) if last.destination == destination => *last,
        _ => look_up(tables, frame, network, path_mtu, destination, last)?,
    };
    let mtu = if destination.is_ipv6() { found.mtu.min(path_mtu.into()) } else { found.mtu };
    if length > mtu {
        return Err(if may_be_cut {
            for_slow_path(frame, network, path_mtu)
        } else {
            Failure::TooBig.into()
        });
    }
    let kind = if destination.is_ipv4() { ethertype::IPV4 } else { ethertype::IPV6 };
    rewrite::encapsulate(frame, network, length, found.egress, found.entry, kind)
        .map_err(|_| Stop::from(Failure::NoHeadroom))?;
    Ok(usize::from(found.egress.port))
}

/// Looks up a route; `last` becomes the same, unless there are several next hops.
fn look_up<'t>(
    tables: &'t Tables,
    frame: &mut Frame,
    network: usize,
    path_mtu: u16,
    destination: IpAddr,
    last: &mut Option<EspRoute<'t>>,
) -> Result<EspRoute<'t>, Stop> {
    let mut has_several = false;
    let way = route::to(tables, 0, destination, || {
        has_several = true;
        rewrite::hash(tables, frames::packet(frame, network))
    });
    let (hop, entry) = match way {
        Route::Forward { hop, entry } => (hop, entry),
        Route::Resolve { .. } | Route::Host => return Err(for_slow_path(frame, network, path_mtu)),
        Route::Blackhole => return Err(Stop::Drop(Reason::Blackhole)),
        Route::Unreachable => return Err(Stop::Drop(Reason::Unreachable)),
        Route::Prohibit => return Err(Stop::Drop(Reason::Prohibit)),
        Route::None => return Err(Stop::Drop(Reason::NoRoute)),
    };
    let egress = rewrite::egress(tables, entry.interface()).map_err(|_| Stop::Drop(Reason::NoInterface))?;
    if tables.interfaces.get(usize::from(entry.interface())).is_some_and(|out| out.if_id != 0) {
        // Nothing is encrypted twice.
        return Err(Stop::Drop(Reason::NoRoute));
    }
    if egress.mtu == 0 {
        return Err(Stop::Drop(Reason::InterfaceDown));
    }
    tables.next_hops.mark_used(hop);
    let mtu = rewrite::mtu(egress, tables.next_hops.mtu(hop)).into();
    let found = EspRoute { destination, entry, egress, mtu };
    *last = Some(found).filter(|_| !has_several);
    Ok(found)
}

/// The slow path routes a packet by the table of its interface: none has this one, so it takes the main table.
fn for_slow_path(frame: &mut Frame, network: usize, path_mtu: u16) -> Stop {
    let meta = frame.meta_mut();
    (meta.network, meta.interface, meta.chosen) = (network as u16, u16::MAX, 0);
    meta.next_hop = path_mtu.into();
    Stop::Slow
}
