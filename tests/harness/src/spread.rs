//! Finds out which next hop each of many flows takes, with one packet per flow.

use crate::lab::{Lab, SIDES, Side};
use crate::sys;
use bm_wire::Mac;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Where a packet came out: at which end, and to which MAC address.
pub type Exit = (Side, Mac);

/// Packets sent before waiting for their arrival: fewer than any ring on the way can hold.
const CHUNK: usize = 64;
/// How long a chunk may take.
const PATIENCE: Duration = Duration::from_millis(500);
/// Precedes a packet's number.
const MARK: &[u8; 8] = b"bm-many:";

/// The data at the end of a packet by which it is recognized.
pub fn label(number: u32) -> Vec<u8> {
    [&MARK[..], &number.to_be_bytes()].concat()
}

/// Sends packet `n` with data ending in `label(n)`, and returns where each came out; lost ones are absent.
pub fn exits(lab: &Lab, packets: &[Vec<u8>]) -> BTreeMap<u32, Exit> {
    lab.drain();
    let mut exits = BTreeMap::new();
    for (index, chunk) in packets.chunks(CHUNK).enumerate() {
        for packet in chunk {
            lab.send(Side::Src, &Side::Src.to_router(packet));
        }
        let expected = index * CHUNK + chunk.len();
        let deadline = Instant::now() + PATIENCE;
        while exits.len() < expected && Instant::now() < deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            sys::wait_readable(&lab.sockets(), left).expect("poll works on open sockets");
            for side in SIDES {
                while let Some(captured) = lab.receive(side) {
                    exits.extend(exit(side, &captured.frame));
                }
            }
        }
    }
    exits
}

fn exit(side: Side, frame: &[u8]) -> Option<(u32, Exit)> {
    let start = frame.len().checked_sub(12)?;
    let (mark, number) = frame[start..].split_at(8);
    let mac = Mac(frame[..6].try_into().ok()?);
    let number = u32::from_be_bytes(number.try_into().ok()?);
    // Only errors, which quote our packets, are sent towards the source.
    (mark == MARK && side != Side::Src).then_some((number, (side, mac)))
}

/// How many packets each exit had.
pub fn shares(exits: &BTreeMap<u32, Exit>) -> BTreeMap<Exit, usize> {
    let mut shares = BTreeMap::new();
    for exit in exits.values() {
        *shares.entry(*exit).or_default() += 1;
    }
    shares
}
