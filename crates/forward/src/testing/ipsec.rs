//! A lab with IPsec: the two apps between its ports and its router.

use bm_graph::{Network, Waker};

use super::AllCounters;
use crate::tables::PublishedTables;
use crate::{Decryption, Encryption, IPSEC_PORT, IpsecPlan, IpsecWorker, PuntQueue};

/// When the SAs are added.
const NOW_NS: u64 = 1_000_000_000;

/// Links every port with the router over the apps of a single worker.
pub(super) fn join(
    network: &mut Network,
    ports: &[String],
    mut plan: IpsecPlan,
    tables: &PublishedTables,
    punt_queue: PuntQueue,
    books: &mut AllCounters,
) {
    let mut worker = IpsecWorker::all(&[Waker::new().expect("an eventfd")], 64).0.remove(0);
    let (into, out) = (books.open("decryption"), books.open("encryption"));
    let decryption = Decryption::new(&plan, &mut worker, ports.to_vec(), tables, into, NOW_NS);
    let encryption = Encryption::new(&mut plan, &mut worker, ports.to_vec(), tables, punt_queue, out, NOW_NS);
    network.app("decryption", Box::new(decryption.expect("SAs that work"))).expect("names differ");
    network.app("encryption", Box::new(encryption.expect("SAs that work"))).expect("names differ");
    for name in ports {
        if name == IPSEC_PORT {
            for link in [
                format!("decryption.{name} -> router.{name}"),
                format!("router.{name} -> encryption.router:{name}"),
                format!("slow.{name} -> encryption.slow:{name}"),
            ] {
                network.link(&link).expect("the link is well-formed");
            }
            continue;
        }
        for link in [
            format!("{name}.output -> decryption.{name}"),
            format!("decryption.{name} -> router.{name}"),
            format!("router.{name} -> encryption.router:{name}"),
            format!("slow.{name} -> encryption.slow:{name}"),
            format!("encryption.{name} -> {name}.input"),
        ] {
            network.link(&link).expect("the link is well-formed");
        }
    }
}
