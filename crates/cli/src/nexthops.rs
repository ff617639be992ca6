//! `brickmoon show nexthops` and `brickmoon show neighbors`.

use bm_api::{Neighbors, NextHops};

use crate::number::count;
use crate::routes::{action, hop};
use crate::table::{
    Align::{Left, Right},
    Table,
};

/// One line per next hop, with the members of groups.
pub fn nexthops(reply: &NextHops) -> String {
    let columns = [
        ("NEXT HOP", Right),
        ("ACTION", Left),
        ("VIA", Left),
        ("MTU", Right),
        ("USERS", Right),
        ("OBJECT", Right),
    ];
    let mut table = Table::new(&columns, "no next hops");
    for next_hop in &reply.next_hops {
        let members = next_hop.members.iter().map(|share| format!("{} x{}", share.index, share.weight));
        let via = next_hop.hop.as_ref().map(hop).into_iter().chain(members).collect::<Vec<_>>().join(", ");
        table.row([
            next_hop.index.to_string(),
            action(next_hop.action).into(),
            via,
            or_empty(next_hop.mtu_bytes),
            count(next_hop.users),
            or_empty(next_hop.object.unwrap_or_default()),
        ]);
    }
    table.to_string()
}

/// A number; nothing for 0.
fn or_empty(number: u32) -> String {
    if number == 0 { String::new() } else { number.to_string() }
}

/// One line per neighbor, as in `ip neigh`.
pub fn neighbors(reply: &Neighbors) -> String {
    let columns = [("ADDRESS", Left), ("INTERFACE", Left), ("MAC", Left), ("STATE", Left)];
    let mut table = Table::new(&columns, "no neighbors");
    for neighbor in &reply.neighbors {
        let mac = neighbor.mac.map(|mac| mac.to_string()).unwrap_or_default();
        table.row([neighbor.address.to_string(), neighbor.interface.clone(), mac, neighbor.state.clone()]);
    }
    table.to_string()
}
