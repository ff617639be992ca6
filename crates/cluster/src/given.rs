//! Neighbors as they are in the map of the program, also those that an earlier daemon has put there.

use std::net::IpAddr;

use bm_vlb::address::Node;
use bm_vlb::membership::Epoch;

use crate::error::ClusterError;
use crate::indices::{Indices, Meaning};
use crate::layout::Neighbor;
use crate::program::Program;

/// A neighbor that is gone. Its family shows that the index was used.
pub const GONE: Neighbor =
    Neighbor { to: [0; 6], from: [0; 6], ifindex: 0, port: 0, family: 1, address: [0; 16] };

/// What the program has to know of a neighbor.
pub fn to_layout(meaning: &Meaning) -> Neighbor {
    let mut address = [0; 16];
    let family = match meaning.address {
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
        to: meaning.to,
        from: meaning.from,
        ifindex: meaning.ifindex,
        port: meaning.port.into(),
        family: family.cast_unsigned(),
        address,
    }
}

fn from_layout(neighbor: &Neighbor) -> Option<Meaning> {
    let address = match neighbor.family.cast_signed() {
        libc::AF_INET => IpAddr::from(*neighbor.address.first_chunk::<4>()?),
        libc::AF_INET6 => IpAddr::from(neighbor.address),
        _ => return None,
    };
    let (ifindex, port) = (neighbor.ifindex, u8::try_from(neighbor.port).ok()?);
    (ifindex != 0).then_some(Meaning { ifindex, port, address, to: neighbor.to, from: neighbor.from })
}

/// Tells the program who we are. Returns the indices that an earlier daemon has given out; its epoch is the one before ours.
///
/// # Errors
/// What the kernel refused.
pub fn inherited(program: &Program, epoch: Epoch, own: Node) -> Result<Indices, ClusterError> {
    let earlier = program.epochs().filter(|_| program.inherited);
    let before = match earlier {
        Some((now, before)) if now == epoch => before,
        Some((now, _)) => Some(now),
        None => None,
    };
    program.set_own(own, epoch, before)?;
    if earlier.is_none() {
        return Ok(Indices::new([], 0));
    }
    let given = program.neighbors();
    let past = given.last().map_or(0, |(index, _)| u32::from(*index) + 1);
    let meanings = given.iter().filter_map(|(index, neighbor)| Some((*index, from_layout(neighbor)?)));
    let mut indices = Indices::new(meanings, past);
    if before.is_some() && earlier.is_some_and(|(now, _)| now != epoch) {
        indices.new_epoch();
    }
    Ok(indices)
}
