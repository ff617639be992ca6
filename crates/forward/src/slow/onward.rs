//! The last decision on a packet, the same for both families: route, hops left, size, neighbor.

use bm_stats::Reason;
use bm_wire::Family;

use super::Fate;
use super::error::Error;
use super::header::Header;
use crate::route::Way;
use crate::stages::rewrite;
use crate::tables::Tables;

/// What is done with a packet whose way is known. With IPsec (`encrypts`) no error is left to Linux.
pub(super) fn onward(tables: &Tables, packet: &[u8], way: Way, encrypts: bool) -> Fate {
    let Some(header) = Header::parse(packet) else { return Fate::Drop(Reason::EthernetShort) };
    let family = header.family;
    let (hop, interface) = match way {
        Way::Host => return Fate::Host,
        Way::Blackhole => return Fate::Drop(Reason::Blackhole),
        Way::None => return Fate::Tell(Error::no_route(family), Reason::NoRoute),
        Way::Unreachable => return Fate::Tell(Error::unreachable(family), Reason::Unreachable),
        Way::Prohibit => return Fate::Tell(Error::prohibited(family), Reason::Prohibit),
        Way::Forward { hop, entry } => (hop, entry.interface()),
        Way::Resolve { hop, neighbor } => (hop, neighbor.interface),
    };
    if header.ttl <= 1 {
        return Fate::Tell(Error::time_exceeded(family), Reason::TtlExceeded);
    }
    let egress = match rewrite::egress(tables, interface) {
        Ok(egress) if egress.mtu > 0 => egress,
        Ok(_) => return Fate::Drop(Reason::InterfaceDown),
        Err(refusal) => return refusal.into(),
    };
    let of_route = tables.next_hops.mtu(hop);
    let mtu = rewrite::mtu(egress, of_route).into();
    let too_big = header.length > mtu;
    match way {
        // Linux compares with the MTU of the interface or a locked one, takes a hop, and then compares with that of the
        // route. Which one it was decides what the error quotes, and which MTU it has.
        _ if too_big && family == Family::V6 && of_route != 0 && !encrypts => Fate::Host,
        // Linux sends packets that are greater than the interface's MTU if the route says so.
        _ if too_big && of_route > egress.mtu && !encrypts => Fate::Host,
        _ if too_big && !header.may_be_cut => Fate::Tell(Error::too_big(family, mtu), Reason::TooBig),
        Way::Resolve { neighbor, .. } => Fate::Hold(neighbor),
        _ if too_big && tables.interfaces.get(usize::from(interface)).is_some_and(|out| out.linux_cuts) => {
            Fate::Host
        }
        Way::Forward { hop, entry } if too_big => Fate::Cut(hop, entry, mtu),
        Way::Forward { hop, entry } => Fate::Send(hop, entry),
        _ => Fate::Drop(Reason::NoRoute),
    }
}
