//! Local neighbors in the map of the program, including those that an earlier daemon put there.

use std::net::IpAddr;

use bm_vlb::address::Node;
use bm_vlb::membership::Epoch;

use crate::error::ClusterError;
use crate::indices::Indices;
use crate::layout::Neighbor;
use crate::message::Epochs;
use crate::neighbor::LocalNeighbor;
use crate::program::Program;

/// The entry of a removed neighbor. Its family shows that the index was used.
pub const GONE: Neighbor =
    Neighbor { to: [0; 6], from: [0; 6], ifindex: 0, port: 0, family: 1, address: [0; 16] };

/// The map entry of a neighbor.
pub fn to_layout(local: &LocalNeighbor) -> Neighbor {
    let mut address = [0; 16];
    let family = match local.address {
        IpAddr::V4(four) => {
            address[..4].copy_from_slice(&four.octets());
            libc::AF_INET
        }
        IpAddr::V6(six) => {
            address = six.octets();
            libc::AF_INET6
        }
    };
    Neighbor {
        to: local.to,
        from: local.from,
        ifindex: local.ifindex,
        port: local.port.into(),
        family: family.cast_unsigned(),
        address,
    }
}

fn from_layout(neighbor: &Neighbor) -> Option<LocalNeighbor> {
    let address = match neighbor.family.cast_signed() {
        libc::AF_INET => IpAddr::from(*neighbor.address.first_chunk::<4>()?),
        libc::AF_INET6 => IpAddr::from(neighbor.address),
        _ => return None,
    };
    let (ifindex, port) = (neighbor.ifindex, u8::try_from(neighbor.port).ok()?);
    (ifindex != 0).then_some(LocalNeighbor { ifindex, port, address, to: neighbor.to, from: neighbor.from })
}

/// Writes this node's number and epochs to the program. Returns the indices that an earlier daemon assigned, and the
/// epochs: if that daemon had another one, the program accepts frames of both.
///
/// # Errors
/// If the kernel rejects an update of a map.
pub fn inherited(program: &Program, epoch: Epoch, own: Node) -> Result<(Indices, Epochs), ClusterError> {
    let earlier = program.epochs().filter(|_| program.inherited);
    let before = match earlier {
        Some((now, before)) if now == epoch => before,
        Some((now, _)) => Some(now),
        None => None,
    };
    program.set_own(own, epoch, before)?;
    let epochs = Epochs { now: epoch, before };
    if earlier.is_none() {
        return Ok((Indices::new([], 0), epochs));
    }
    let assigned = program.neighbors();
    let past = assigned.last().map_or(0, |(index, _)| u32::from(*index) + 1);
    let neighbors = assigned.iter().filter_map(|(index, neighbor)| Some((*index, from_layout(neighbor)?)));
    let mut indices = Indices::new(neighbors, past);
    if before.is_some() && earlier.is_some_and(|(now, _)| now != epoch) {
        indices.new_epoch();
    }
    Ok((indices, epochs))
}
