//! The links between the servers: a full mesh if each server has enough ports for it, otherwise a k-ary n-fly.

use serde::Serialize;

use super::{NicType, Requirements, ServerType};

/// Load of a link in the worst case, in shares of R/N, or of R in an n-fly.
const WORST: f64 = 3.0;
/// Load of a link with uniform traffic and permutations, in the same shares.
const USUAL: f64 = 2.0;

/// Ports of a server for links to other servers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fan {
    /// Name of the card.
    pub nic: String,
    pub cards: u64,
    /// Ports on these cards, and those left on the cards of the external ports if these are of the same kind.
    pub ports: u64,
    pub rate_gbps: f64,
}

/// A fabric that can be built.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fabric {
    /// `mesh`, or `K-ary N-fly`.
    pub topology: String,
    /// Servers with external ports.
    pub servers: u64,
    /// Servers that only connect other servers.
    pub relays: u64,
    /// Cables between servers.
    pub cables: u64,
    /// Cables between two connected servers.
    pub parallel: u64,
    /// The cards for them.
    pub fan: Fan,
    /// What all cables between two servers can carry together, in Gbit/s.
    pub link_gbps: f64,
    /// What they must carry with uniform traffic and permutations, and in the worst case: the same with both quotas
    /// except for the direct part.
    pub load_usual_gbps: f64,
    /// In the worst case.
    pub load_worst_gbps: f64,
    /// Load of the busiest link, in R/N or R, under a permutation with the quota R/N.
    pub load_one_share: f64,
    /// Load of the busiest link under a permutation with the quota 2R/N.
    pub load_two_shares: f64,
    /// What a server handles, divided by R: with uniform traffic and in the worst case.
    pub c: [f64; 2],
    /// Price of servers and cards.
    pub price: f64,
    /// Their power.
    pub power_w: f64,
}

/// Cards of a server with external ports.
struct Cards<'w> {
    external: &'w NicType,
    external_cards: u64,
    fabric: &'w NicType,
    fan: Fan,
}

/// R of a server: what its external ports receive together.
fn r(wanted: &Requirements, server: &ServerType) -> f64 {
    wanted.rate_gbps * server.ports as f64
}

/// All choices of cards: the cheapest for the external ports, and each for the others.
fn cards<'w>(wanted: &'w Requirements, server: &ServerType) -> Result<Vec<Cards<'w>>, String> {
    let fast = wanted.nic.iter().filter(|nic| nic.rate_gbps >= wanted.rate_gbps);
    let external = fast.min_by_key(|nic| server.ports.div_ceil(nic.ports)).ok_or_else(|| {
        format!("external ports: no network card has ports of {} Gbit/s or more", wanted.rate_gbps)
    })?;
    let external_cards = server.ports.div_ceil(external.ports);
    let left = server.slots.checked_sub(external_cards).ok_or_else(|| {
        format!(
            "slots: {} external ports need {external_cards} cards, and the server has {} slots",
            server.ports, server.slots
        )
    })?;
    let unused = external_cards * external.ports - server.ports;
    let all = wanted.nic.iter().map(|fabric| {
        // Ports left on the external cards serve as links if they are fast enough.
        let more = if external.rate_gbps >= fabric.rate_gbps { unused } else { 0 };
        let fan = Fan {
            nic: fabric.name.clone(),
            cards: left,
            ports: left * fabric.ports + more,
            rate_gbps: fabric.rate_gbps,
        };
        Cards { external, external_cards, fabric, fan }
    });
    Ok(all.collect())
}

/// Rate of one direct path between two of `servers`, in the worst case.
fn share(r_gbps: f64, servers: u64) -> f64 {
    r_gbps / servers as f64
}

/// The largest full mesh of such servers, in external ports.
pub fn mesh_max(wanted: &Requirements, server: &ServerType) -> u64 {
    let mut most = 0;
    for cards in cards(wanted, server).unwrap_or_default() {
        let servers = cards.fan.ports + 1;
        let smallest = (WORST * r(wanted, server) / cards.fan.rate_gbps).ceil() as u64;
        // With fewer servers than this, each pair has several cables; with the maximum there is one.
        if smallest <= servers {
            most = most.max(servers * server.ports);
        }
    }
    most
}

/// The cheapest fabric with this server type.
pub fn build(wanted: &Requirements, server: &ServerType) -> Result<Fabric, String> {
    let c = [USUAL, WORST];
    if let Some(handles) = server.handles_gbps.filter(|handles| *handles < c[1] * r(wanted, server)) {
        return Err(format!(
            "processing: a server handles up to 3 R = {:.1} Gbit/s, and this one can handle {handles}; give it fewer ports",
            c[1] * r(wanted, server)
        ));
    }
    let all = cards(wanted, server)?;
    let meshes: Vec<Result<Fabric, String>> = all.iter().map(|cards| mesh(wanted, server, cards)).collect();
    if let Some(mesh) = cheapest(&meshes) {
        return Ok(mesh);
    }
    let flies: Vec<Result<Fabric, String>> = all.iter().map(|cards| fly(wanted, server, cards)).collect();
    if let Some(fly) = cheapest(&flies) {
        return Ok(fly);
    }
    let [mesh, fly] = [meshes, flies].map(|plans| plans.into_iter().find_map(Result::err));
    Err(format!("mesh: {}; n-fly: {}", mesh.unwrap_or_default(), fly.unwrap_or_default()))
}

fn cheapest(plans: &[Result<Fabric, String>]) -> Option<Fabric> {
    plans.iter().flatten().min_by(|a, b| a.price.total_cmp(&b.price)).cloned()
}

fn mesh(wanted: &Requirements, server: &ServerType, cards: &Cards) -> Result<Fabric, String> {
    let servers = wanted.ports.div_ceil(server.ports).max(2);
    let others = servers - 1;
    let fan = &cards.fan;
    if fan.ports < others {
        return Err(format!(
            "fan-out: {servers} servers need {others} links each, and a server has {} ports of {:?} for them",
            fan.ports, fan.nic
        ));
    }
    let share = share(r(wanted, server), servers);
    let parallel = ((WORST * share / fan.rate_gbps).ceil() as u64).max(1);
    if parallel * others > fan.ports {
        return Err(format!(
            "link rate: a link carries up to 3 R/N = {:.2} Gbit/s, which takes {parallel} ports of {} Gbit/s to each of {others} servers; a server has {}",
            WORST * share,
            fan.rate_gbps,
            fan.ports
        ));
    }
    let needed = parallel * others;
    let used = Fan { cards: cards_for(needed, cards), ports: needed, ..fan.clone() };
    Ok(Fabric {
        topology: "mesh".into(),
        servers,
        relays: 0,
        cables: servers * others / 2 * parallel,
        parallel,
        link_gbps: fan.rate_gbps * parallel as f64,
        load_usual_gbps: USUAL * share,
        load_worst_gbps: WORST * share,
        load_one_share: permutation(1.0, servers),
        load_two_shares: permutation(2.0, servers),
        c: [USUAL, WORST],
        price: servers as f64 * cost(server, cards, used.cards, |price, _| price),
        power_w: servers as f64 * cost(server, cards, used.cards, |_, power| power),
        fan: used,
    })
}

/// Load of a link under a permutation, in R/N: the direct part, and the transit of the other inputs.
fn permutation(quota: f64, servers: u64) -> f64 {
    let n = servers as f64;
    if servers < 3 {
        return n;
    }
    let transit = (n - quota).max(0.0) / (n - 2.0);
    // Direct and transit meet on no link: a link to the own output carries the quota, others both phases.
    quota.max(2.0 * transit)
}

fn fly(wanted: &Requirements, server: &ServerType, cards: &Cards) -> Result<Fabric, String> {
    let servers = wanted.ports.div_ceil(server.ports).max(2);
    let r = r(wanted, server);
    let parallel = ((WORST * r / cards.fan.rate_gbps).ceil() as u64).max(1);
    // A server has one link into the fly and one out of it.
    if 2 * parallel > cards.fan.ports {
        return Err(format!(
            "link rate: a server sends up to 3 R = {:.1} Gbit/s into the fly and receives as much, which takes {} ports of {} Gbit/s; it has {}",
            WORST * r,
            2 * parallel,
            cards.fan.rate_gbps,
            cards.fan.ports
        ));
    }
    let relay_ports = server.slots * cards.fabric.ports;
    let k = relay_ports / (2 * parallel);
    if k < 2 {
        return Err(format!(
            "fan-out: a relay needs {} ports of {} Gbit/s for two links in and two out, and has {relay_ports}",
            4 * parallel,
            cards.fan.rate_gbps
        ));
    }
    let stages = stages(k, servers);
    let relays = stages * servers.div_ceil(k);
    let used = Fan { cards: cards_for(2 * parallel, cards), ports: 2 * parallel, ..cards.fan.clone() };
    let relay_cards = (2 * parallel * k).div_ceil(cards.fabric.ports);
    let of_relay = |price: f64, card: f64| price + card * relay_cards as f64;
    let (terminals, between) = (servers as f64, relays as f64);
    Ok(Fabric {
        topology: format!("{k}-ary {stages}-fly"),
        servers,
        relays,
        cables: servers * (stages + 1) * parallel,
        parallel,
        link_gbps: cards.fan.rate_gbps * parallel as f64,
        load_usual_gbps: USUAL * r,
        load_worst_gbps: WORST * r,
        load_one_share: USUAL,
        load_two_shares: USUAL,
        c: [USUAL, WORST],
        price: terminals * cost(server, cards, used.cards, |price, _| price)
            + between * of_relay(server.price, cards.fabric.price),
        power_w: terminals * cost(server, cards, used.cards, |_, power| power)
            + between * of_relay(server.power_w, cards.fabric.power_w),
        fan: used,
    })
}

/// Number of digits in base k that number the servers.
fn stages(k: u64, servers: u64) -> u64 {
    let mut stages = 1;
    while k.saturating_pow(stages) < servers {
        stages += 1;
    }
    stages.into()
}

/// Cards for this many links, in addition to ports that are left on the external cards.
fn cards_for(links: u64, cards: &Cards) -> u64 {
    let spare = cards.fan.ports - cards.fan.cards * cards.fabric.ports;
    links.saturating_sub(spare).div_ceil(cards.fabric.ports)
}

/// Price or power of a server with its cards.
fn cost(server: &ServerType, cards: &Cards, fabric_cards: u64, of: impl Fn(f64, f64) -> f64) -> f64 {
    let nic = |nic: &NicType, count: u64| of(nic.price, nic.power_w) * count as f64;
    of(server.price, server.power_w)
        + nic(cards.external, cards.external_cards)
        + nic(cards.fabric, fabric_cards)
}
