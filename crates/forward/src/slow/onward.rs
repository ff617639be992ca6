//! The last decision on a packet, the same for both families: route, hops left, size, neighbor.

use bm_stats::Reason;
use bm_wire::Family;

use super::Decision;
use super::error::Error;
use super::header::Header;
use crate::route::Route;
use crate::stages::rewrite;
use crate::tables::Tables;

/// What is done with a packet whose way is known. With IPsec (`encrypts`) no error is left to Linux.
pub(super) fn onward(tables: &Tables, packet: &[u8], way: Route, encrypts: bool) -> Decision {
    let Some(header) = Header::parse(packet) else { return Decision::Drop(Reason::EthernetShort) };
    let family = header.family;
    let (hop, interface) = match way {
        Route::Host => return Decision::Host,
        Route::Blackhole => return Decision::Drop(Reason::Blackhole),
        Route::None => return Decision::Tell(Error::no_route(family), Reason::NoRoute),
        Route::Unreachable => return Decision::Tell(Error::unreachable(family), Reason::Unreachable),
        Route::Prohibit => return Decision::Tell(Error::prohibited(family), Reason::Prohibit),
        Route::Forward { hop, entry } => (hop, entry.interface()),
        Route::Resolve { hop, neighbor } => (hop, neighbor.interface),
    };
    if header.ttl <= 1 {
        return Decision::Tell(Error::time_exceeded(family), Reason::TtlExceeded);
    }
    let egress = match rewrite::egress(tables, interface) {
        Ok(egress) if egress.mtu > 0 => egress,
        Ok(_) => return Decision::Drop(Reason::InterfaceDown),
        Err(refusal) => return refusal.into(),
    };
    let of_route = tables.next_hops.mtu(hop);
    let mtu = rewrite::mtu(egress, of_route).into();
    let too_big = header.length > mtu;
    match way {
        // Linux compares with the MTU of the interface or a locked one, takes a hop, and then compares with that of the
        // route. Which one it was decides what the error quotes, and which MTU it has.
        _ if too_big && family == Family::V6 && of_route != 0 && !encrypts => Decision::Host,
        // Linux sends packets that are greater than the interface's MTU if the route says so.
        _ if too_big && of_route > egress.mtu && !encrypts => Decision::Host,
        _ if too_big && !header.may_be_cut => Decision::Tell(Error::too_big(family, mtu), Reason::TooBig),
        Route::Resolve { neighbor, .. } => Decision::Hold(neighbor),
        _ if too_big && tables.interfaces.get(usize::from(interface)).is_some_and(|out| out.linux_cuts) => {
            Decision::Host
        }
        Route::Forward { hop, entry } if too_big => Decision::Cut(hop, entry, mtu),
        Route::Forward { hop, entry } => Decision::Send(hop, entry),
        _ => Decision::Drop(Reason::NoRoute),
    }
}
