//! What a node does with a frame from another node, by its two addresses alone.
//!
//! ```text
//! intermediate named ─┬─ this node ─► name removed ─┐
//!                     └─ another ─► (relay) on to it │
//! none named ──────────────────────────────────────┴─┬─ output is this node ─► epoch known? ─► deliver
//!                                                    └─ another ─► on to it (intermediate or relay)
//! ```
//!
//! A relay is a server of an n-fly that has no external ports and only connects others. Elsewhere a frame that names
//! this node neither as intermediate nor as output is refused: so no frame can go in circles, although it has no hop
//! limit of its own.

use crate::address::{Destination, Node, Source};
use crate::membership::Accepted;

/// The next step of a frame.
#[derive(Debug, PartialEq, Eq)]
pub enum Step<'t, T> {
    /// This is its output node, which does what the table of its epoch says.
    Deliver(&'t T),
    /// On towards this node, with this source address.
    Forward(Node, Source),
    /// Dropped and counted.
    Drop(TransitDrop),
}

/// Why a frame is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransitDrop {
    /// Its epoch is one that this node does not know, or knows no longer.
    Epoch,
    /// It names other nodes only.
    Stray,
}

/// The next step of a frame at node `own`.
#[inline]
pub fn receive<'t, T>(
    own: Node,
    is_relay: bool,
    to: &Destination,
    source: Source,
    tables: &'t mut Accepted<T>,
) -> Step<'t, T> {
    let here = source.arrived(own);
    let was_intermediate = here.via != source.via;
    match here.via {
        None if to.output == own => match tables.find(to.epoch) {
            Some(table) => Step::Deliver(table),
            None => Step::Drop(TransitDrop::Epoch),
        },
        None if was_intermediate || is_relay => Step::Forward(to.output, here),
        Some(via) if is_relay => Step::Forward(via, here),
        _ => Step::Drop(TransitDrop::Stray),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::{Port, To};
    use crate::membership::Epoch;

    fn node(number: u16) -> Node {
        Node::new(number).expect("a node")
    }

    #[test]
    fn each_frame_has_one_next_step() {
        let epoch = Epoch::new(7);
        let to = |output, epoch| Destination {
            epoch,
            output: node(output),
            port: Port::new(0).expect("a port"),
            to: To::Neighbor(1),
        };
        let from = |via: Option<u16>| Source { input: node(0), via: via.map(node), sample: None };
        let mut tables = Accepted::new(epoch, "table");
        let mut at = |own, is_relay, destination, source| {
            let step = receive(node(own), is_relay, &destination, source, &mut tables);
            match step {
                Step::Deliver(table) => Ok((*table).to_string()),
                Step::Forward(to, source) => {
                    Ok(format!("{} via {:?}", to.number(), source.via.map(Node::number)))
                }
                Step::Drop(why) => Err(why),
            }
        };
        assert_eq!(at(2, false, to(2, epoch), from(None)), Ok("table".into()));
        assert_eq!(at(2, false, to(2, Epoch::new(6)), from(None)), Err(TransitDrop::Epoch));
        assert_eq!(at(1, false, to(2, epoch), from(Some(1))), Ok("2 via None".into()));
        assert_eq!(at(1, false, to(2, epoch), from(None)), Err(TransitDrop::Stray));
        assert_eq!(at(1, false, to(2, epoch), from(Some(3))), Err(TransitDrop::Stray));
        assert_eq!(at(9, true, to(2, epoch), from(Some(3))), Ok("3 via Some(3)".into()));
        assert_eq!(at(9, true, to(2, epoch), from(None)), Ok("2 via None".into()));
        assert_eq!(tables.refused(), 1);
    }
}
