//! Messages of rtnetlink: links, addresses, neighbors, routes, next hops, rules.
//!
//! Checks: a message is read or refused; two mirrors that have read the same messages are equal; every route has a
//! body; tables compiled from the mirror equal it, also after it has changed.

use bm_api::Area;
use bm_control::compile::{Compiler, Options};
use bm_fib::published::Readers;
use bm_netlink::mirror::Findings;
use bm_netlink::{Message, Mirror, Routes};

/// Most routes for which a compiler runs, since it is slow.
const COMPILED: usize = 64;

/// Reads a buffer of messages.
pub fn run(bytes: &[u8]) {
    let messages: Vec<Message> =
        each(bytes).filter_map(|one| Message::read_all(one).ok()).flatten().collect();
    // The kernel would send the whole buffer at once.
    let _refused = Message::read_all(bytes);
    let [mut mirror, twin] = [(); 2].map(|()| {
        let mut mirror = Mirror::default();
        messages.iter().cloned().for_each(|message| mirror.apply(message));
        mirror
    });
    bodies_are_there(mirror.ipv4());
    bodies_are_there(mirror.ipv6());
    let mut findings = Findings::up_to(4);
    let changes = mirror.take_changes();
    mirror.adopt(twin, &mut findings);
    assert!(findings.list.is_empty(), "mirrors of the same messages differ: {:?}", findings.list);
    if messages.len() <= COMPILED {
        compiled(&mirror, changes);
    }
}

/// Reads each message separately, so that a malformed one does not hide others.
fn each(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
        let one = bytes.get(..length.max(16)).unwrap_or(bytes);
        bytes = bytes.get(one.len().next_multiple_of(4)..).unwrap_or_default();
        Some(one)
    })
}

fn bodies_are_there<A: bm_wire::prefix::Address>(routes: &Routes<A>) {
    for (_, table) in routes.tables() {
        for (prefix, ids) in table.iter() {
            assert!(!ids.is_empty(), "{prefix} has no route");
            assert!(ids.iter().all(|id| routes.body(*id).is_some()), "a route to {prefix} has no body");
        }
    }
}

fn compiled(mirror: &Mirror, changes: Vec<bm_netlink::Change>) {
    let readers = Readers::new();
    let options = Options { next_hops: 4096, group_buckets: 1 << 12, ..Options::default() };
    let mut compiler = Compiler::new(&readers, options).expect("memory for small tables");
    let ports = mirror.links().take(4).map(|link| Some(link.ifindex)).collect();
    compiler.set_ports(ports);
    compiler.apply(mirror, &changes).expect("memory for small tables");
    let checked = compiler.verify(mirror);
    // Routes that cannot be compiled are left to Linux and reported.
    let wrong = checked.differences.iter().find(|(area, _)| *area != Area::Refused);
    assert_eq!(wrong, None, "tables differ from the mirror");
}
