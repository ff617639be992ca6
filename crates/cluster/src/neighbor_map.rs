//! Local neighbors in the map of the program, including those that an earlier daemon put there.

use std::net::IpAddr;

use bm_vlb::address::Node;
use bm_vlb::membership::Epoch;

use crate::error::ClusterError;
use crate::indices::Indices;
use crate::layout::Neighbor;
use crate::message::{Epochs, Key};
use crate::neighbor::{Index, LocalNeighbor};
use crate::program::Program;

/// The map entry of a neighbor.
pub(crate) fn to_layout(index: Index, local: &LocalNeighbor) -> Neighbor {
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
    let [to, from] = [local.to, local.from].map(|[a, b, c, d, e, f]| [a, b, c, d, e, f, 0, 0]);
    let (check, port) = (index.check.into(), local.port.into());
    Neighbor { to, from, ifindex: local.ifindex, check, port, family: family.cast_unsigned(), address }
}

fn from_layout(number: u16, neighbor: &Neighbor) -> Option<(Index, LocalNeighbor)> {
    let address = match neighbor.family.cast_signed() {
        libc::AF_INET => IpAddr::from(*neighbor.address.first_chunk::<4>()?),
        libc::AF_INET6 => IpAddr::from(neighbor.address),
        _ => return None,
    };
    let index = Index { number, check: u8::try_from(neighbor.check).ok()? };
    let (to, from) = (*neighbor.to.first_chunk()?, *neighbor.from.first_chunk()?);
    let (ifindex, port) = (neighbor.ifindex, u8::try_from(neighbor.port).ok()?);
    Some((index, LocalNeighbor { ifindex, port, address, to, from }))
}

/// Writes this node's number and epochs to the program. Returns the indices that an earlier daemon assigned, and the
/// epochs: if that daemon had another one, the program accepts frames of both.
///
/// # Errors
/// If the kernel rejects an update of a map.
pub fn inherited(
    program: &Program,
    epoch: Epoch,
    own: Node,
    key: Key,
) -> Result<(Indices, Epochs), ClusterError> {
    let earlier = program.epochs().filter(|_| program.inherited);
    let before = match earlier {
        Some((now, before)) if now == epoch => before,
        Some((now, _)) => Some(now),
        None => None,
    };
    program.set_own(own, epoch, before)?;
    let epochs = Epochs { now: epoch, before };
    let assigned = if earlier.is_some() { program.neighbors() } else { Vec::new() };
    let neighbors = assigned.iter().filter_map(|(number, neighbor)| from_layout(*number, neighbor));
    Ok((Indices::new(key, neighbors), epochs))
}
