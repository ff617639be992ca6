//! `brickmoon show cluster`.

use std::fmt::Write as _;

use bm_api::{Cluster, FabricLink};

use crate::number::{count, counted};
use crate::table::{
    Align::{Left, Right},
    Table,
};

/// This node, one line per link, then what is wrong.
pub fn cluster(reply: &Cluster) -> String {
    if reply.members == 0 {
        return "no cluster: the configuration has no [cluster]\n".into();
    }
    let columns = [
        ("LINK", Left),
        ("PEER", Left),
        ("STATE", Left),
        ("RTT", Right),
        ("TIMEOUT", Right),
        ("SENT", Right),
        ("RECEIVED", Right),
        ("LOST", Right),
        ("TRANSIT", Right),
        ("OUTPUT", Right),
        ("HOST", Right),
        ("DROPPED", Right),
    ];
    let mut table = Table::new(&columns, "no links");
    for link in &reply.links {
        let counter = |name| count(link.counters.get(name).copied().unwrap_or(0));
        table.row([
            link.device.clone(),
            format!("{} ({})", link.peer, link.node),
            link.state.clone(),
            link.round_trip_us.map_or("-".into(), |us| format!("{} us", count(us))),
            if link.timeout_us == 0 { "-".into() } else { format!("{} ms", link.timeout_us / 1000) },
            count(link.sent),
            count(link.account.received),
            link.from_peer.map_or("-".into(), |from_peer| count(from_peer.lost)),
            counter("transit"),
            counter("output"),
            count(link.account.host),
            count(link.account.dropped),
        ]);
    }
    let mut text = format!(
        "node {} ({}) of {}, epoch {}: {}, {} to other nodes\n{table}",
        reply.name,
        reply.node,
        reply.members,
        reply.epoch,
        counted(reply.neighbors as u64, "neighbor"),
        counted(reply.routes as u64, "route"),
    );
    if reply.drained {
        text += "drained: other nodes send nothing over this one; `brickmoon cluster join` ends that\n";
    }
    text += &balanced(reply);
    text += &order(reply);
    if reply.neighbors_without_index > 0 {
        let _written = writeln!(
            text,
            "  {} without an index: all indices of this epoch are used; configure the next epoch on all nodes",
            counted(reply.neighbors_without_index as u64, "neighbor")
        );
    }
    text += &store(reply);
    for link in &reply.links {
        if let Some(remarks) = remarks(link) {
            let _written = writeln!(text, "  {}: {remarks}", link.device);
        }
    }
    text
}

/// Where the members come from; empty if they are configured.
fn store(reply: &Cluster) -> String {
    let mut text = String::new();
    if !reply.not_members.is_empty() {
        text += &format!("not members: {}\n", reply.not_members.join(", "));
    }
    let Some(store) = &reply.store else { return text };
    let members = reply.member_list.keys();
    let missing = members.filter(|member| !store.registered.iter().any(|node| node.name == **member));
    let missing: Vec<_> = missing.cloned().collect();
    text += &format!(
        "store: {}, {}; {} of {} members are registered{}\n",
        store.endpoint,
        if store.connected { "connected" } else { "cannot be reached: the members stay as they are" },
        count((reply.member_list.len() - missing.len()) as u64),
        count(reply.member_list.len() as u64),
        if missing.is_empty() { String::new() } else { format!(", not {}", missing.join(", ")) },
    );
    if let Some(trouble) = &store.trouble {
        text += &format!("  store: {trouble}\n");
    }
    for name in &store.other_key {
        text += &format!("  store: {name} is registered with another key\n");
    }
    text
}

/// What workers have done with packets for other nodes; empty without workers.
fn balanced(reply: &Cluster) -> String {
    if reply.balanced.is_empty() {
        return String::new();
    }
    let counter = |name| reply.balanced.get(name).copied().unwrap_or(0);
    let (direct, intermediate) = (counter("direct"), counter("intermediate"));
    format!(
        "balancing: {} for {} Mbit/s; {} direct ({}), {} over other nodes; {} and {} split; gap {} us\n",
        reply.balancing,
        count(reply.speed),
        count(direct),
        percent(direct, direct + intermediate),
        count(intermediate),
        counted(counter("flowlets"), "flowlet"),
        count(counter("split")),
        count(reply.flowlet_gap_us),
    )
}

/// In which order numbered packets came that this node has sent on to their neighbors; empty if there were none.
fn order(reply: &Cluster) -> String {
    let of_links = |name: &str| reply.links.iter().filter_map(|link| link.counters.get(name)).sum::<u64>();
    match of_links("sampled") {
        0 => String::new(),
        all => format!(
            "order: {} of {} numbered packets that left here came late\n",
            count(of_links("reordered")),
            count(all)
        ),
    }
}

fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".into() } else { format!("{:.1} %", part as f64 * 100.0 / whole as f64) }
}

/// The problem of a link, and why frames were dropped; `None` if there is neither.
fn remarks(link: &FabricLink) -> Option<String> {
    let dropped =
        link.account.drops.iter().map(|(reason, frames)| format!("{} dropped: {reason}", count(*frames)));
    let failures = (link.failures > 0).then(|| format!("found down {}", counted(link.failures, "time")));
    let drained = link.drained.then(|| format!("{} is drained: nothing is sent over it", link.peer));
    let epoch = link.epoch.map(|epoch| format!("{} still has epoch {epoch}", link.peer));
    let lost = link.from_peer.filter(|from_peer| from_peer.lost > 0).map(|from_peer| {
        let (lost, sent) = (count(from_peer.lost), count(from_peer.sent));
        format!("{lost} of {sent} frames that {} sent were lost", link.peer)
    });
    let all: Vec<_> = link
        .trouble
        .iter()
        .cloned()
        .chain(epoch)
        .chain(drained)
        .chain(failures)
        .chain(lost)
        .chain(dropped)
        .collect();
    (!all.is_empty()).then(|| all.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_api::Account;

    #[test]
    fn shows_links_and_problems() {
        let counters = |transit, output| [("transit".into(), transit), ("output".into(), output)].into();
        let fine = FabricLink {
            device: "fab1".into(),
            peer: "b".into(),
            node: 1,
            state: "up".into(),
            round_trip_us: Some(1234),
            timeout_us: 25_400,
            failures: 2,
            sent: 4321,
            from_peer: Some(bm_api::Carried { sent: 1290, arrived: 1288, lost: 2 }),
            account: Account { received: 1300, passed: 1234, host: 66, ..Account::default() },
            counters: counters(34, 1200),
            ..FabricLink::default()
        };
        let bad = FabricLink {
            device: "fab2".into(),
            peer: "c".into(),
            node: 2,
            state: "down".into(),
            trouble: Some("its cable is loose".into()),
            account: Account {
                received: 7,
                dropped: 7,
                drops: [("epoch".into(), 7)].into(),
                ..Account::default()
            },
            counters: counters(0, 0),
            ..FabricLink::default()
        };
        let node = Cluster {
            name: "a".into(),
            epoch: 3,
            members: 3,
            neighbors: 5,
            neighbors_without_index: 1,
            routes: 12,
            links: vec![fine, bad],
            ..Cluster::default()
        };
        let expected = "\
node a (0) of 3, epoch 3: 5 neighbors, 12 routes to other nodes
LINK  PEER   STATE       RTT  TIMEOUT   SENT  RECEIVED  LOST  TRANSIT  OUTPUT  HOST  DROPPED
fab1  b (1)  up     1,234 us    25 ms  4,321     1,300     2       34   1,200    66        0
fab2  c (2)  down          -        -      0         7     -        0       0     0        7
  1 neighbor without an index: all indices of this epoch are used; configure the next epoch on all nodes
  fab1: found down 2 times; 2 of 1,290 frames that b sent were lost
  fab2: its cable is loose; 7 dropped: epoch
";
        assert_eq!(cluster(&node), expected);
        let counters = [("direct", 3), ("intermediate", 1), ("flowlets", 2), ("split", 1)];
        let mut node = Cluster { balancing: "vlb".into(), speed: 10_000, flowlet_gap_us: 1000, ..node };
        node.balanced = counters.map(|(name, packets)| (name.into(), packets)).into();
        node.links[0].counters.extend([("sampled".into(), 7), ("reordered".into(), 2)]);
        let balanced = "\
balancing: vlb for 10,000 Mbit/s; 3 direct (75.0 %), 1 over other nodes; 2 flowlets and 1 split; gap 1,000 us
order: 2 of 7 numbered packets that left here came late
";
        assert!(cluster(&node).contains(balanced), "{}", cluster(&node));
        assert!(!cluster(&node).contains("drained"));
        (node.drained, node.links[1].drained) = (true, true);
        let text = cluster(&node);
        assert!(
            text.contains("\ndrained: other nodes") && text.contains("; c is drained: nothing"),
            "{text}"
        );
        assert_eq!(cluster(&Cluster::default()), "no cluster: the configuration has no [cluster]\n");
    }
}
