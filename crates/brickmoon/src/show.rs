//! `brickmoon show`: its arguments, and for each command the request that it sends and the text that it prints.

use bm_api::FlowQuery;
use bm_api::request::{self, NoParameters, RouteQuery};
use bm_cli::Failure;
use bm_serve::{causes, client};
use clap::{Args, Subcommand, ValueEnum};

use crate::output::write;
use crate::query::{Query, Watch, print, print_reply, print_with, watched};

const SHOW_EXAMPLES: &str = "\
Examples:
  brickmoon show ports                     packets, bytes and rates of every port
  brickmoon show ports eth0 --watch 5      everything about one port, every five seconds
  brickmoon show drops --explain           what each name of `show drops` means
  brickmoon show routes 192.0.2.1 --json   the route of an address, for programs";

/// `brickmoon show`.
#[derive(Debug, Args)]
#[command(infer_subcommands = true, after_help = SHOW_EXAMPLES)]
pub struct Show {
    #[command(flatten)]
    pub watch: Watch,
    #[command(flatten)]
    pub query: Query,
    /// What to show.
    #[command(subcommand)]
    pub what: ShowCommand,
}

/// What to show.
#[derive(Clone, Debug, Subcommand)]
pub enum ShowCommand {
    /// The ports: state, packets and bytes on the wire, rates, packets dropped or left to Linux.
    // Without `po`, `show po` could also be policies.
    #[command(visible_alias = "interfaces", alias = "po")]
    Ports(Ports),
    /// The routes, and what brickmoon does with packets to each prefix.
    Routes(Routes),
    /// The kernel's neighbors on brickmoon's ports.
    Neighbors,
    /// The next hops that routes lead to.
    Nexthops,
    /// The apps and their frame counters.
    Apps,
    /// The links between apps.
    Links,
    /// The workers, with their cores, queues and load.
    Workers,
    /// Dropped frames by reason, what was left to Linux and why, and what Linux dropped.
    Drops(Drops),
    /// The switches and their ports.
    Switch,
    /// The MAC addresses that switches have learned, and their ports.
    Macs,
    /// This node of a cluster, its fabric links and their counters.
    Cluster,
    /// The collectors of sFlow and IPFIX, and how many samples and datagrams were sent to each.
    Collectors,
    /// The Lua hooks: cost, counters, drops and last error of each.
    Hooks,
    /// The filter rules, and how many packets each has matched.
    Filters,
    /// The flows of connections that Linux's firewall has accepted, with their translation of addresses.
    Flows(Flows),
    /// The IPsec security associations, with what they have encrypted and decrypted.
    Sas,
    /// The IPsec policies.
    Policies,
}

/// `brickmoon show ports`.
#[derive(Clone, Debug, Args)]
pub struct Ports {
    /// Show everything about this port, by its name or that of one of its interfaces.
    #[arg(value_name = "PORT")]
    pub port: Option<String>,
    /// Show the account of each port: what happened to the packets that arrived there.
    #[arg(long)]
    pub account: bool,
}

/// `brickmoon show drops`.
#[derive(Clone, Debug, Args)]
pub struct Drops {
    /// Print every name that `show drops` and metrics may use, with its meaning; works without a daemon.
    #[arg(long)]
    pub explain: bool,
}

/// `brickmoon show flows`.
#[derive(Clone, Debug, Args)]
pub struct Flows {
    /// Which flows, in tcpdump's language: host, net and port, with src or dst before them, tcp, udp, ip, ip6, `in PORT`
    /// and `out PORT`, joined by `and`, with `not` before any of them [default: all].
    #[arg(value_name = "FILTER")]
    pub filter: Vec<String>,
    /// Sort by packets or bytes, most first, or by the time since the last packet, least first.
    #[arg(long, value_enum, value_name = "BY")]
    pub sort: Option<SortFlows>,
    /// Print only how many there are.
    #[arg(long, conflicts_with = "limit")]
    pub count: bool,
    /// Show at most this many flows.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub limit: usize,
}

/// How flows are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SortFlows {
    /// By packets, most first.
    Packets,
    /// By bytes, most first.
    Bytes,
    /// By the time since the last packet, least first.
    Idle,
}

/// `brickmoon show routes`.
#[derive(Clone, Debug, Args)]
pub struct Routes {
    /// An address: the route that packets to it take. A prefix: this prefix and all longer ones within it.
    #[arg(value_name = "ADDRESS|PREFIX")]
    pub of: Option<String>,
    /// Show the routes of this VRF [default: the main table].
    #[arg(long, value_name = "NAME")]
    pub vrf: Option<String>,
    /// Show only IPv4 (4) or IPv6 (6).
    #[arg(long, value_parser = clap::value_parser!(u8).range(4..=6))]
    pub family: Option<u8>,
    /// Continue after this prefix, which the previous reply named.
    #[arg(long, value_name = "PREFIX")]
    pub after: Option<String>,
    /// Show at most this many routes.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub limit: usize,
}

impl Show {
    /// Shows it once, or again and again.
    pub fn run(self) -> Result<(), Failure> {
        let Self { watch, query, what } = self;
        watched(watch, query.json, || show(&query, &what))
    }
}

/// Sends the request of a command, and prints the reply.
pub fn show(query: &Query, what: &ShowCommand) -> Result<(), Failure> {
    match what {
        ShowCommand::Ports(ports) => self::ports(query, ports),
        ShowCommand::Routes(routes) => self::routes(query, routes),
        ShowCommand::Neighbors => print(query, request::NEIGHBORS, bm_cli::neighbors),
        ShowCommand::Nexthops => print(query, request::NEXT_HOPS, bm_cli::nexthops),
        ShowCommand::Apps => print(query, request::APPS, bm_cli::apps),
        ShowCommand::Links => print(query, request::LINKS, bm_cli::links),
        ShowCommand::Workers => print(query, request::WORKERS, bm_cli::workers),
        ShowCommand::Drops(Drops { explain: true }) => {
            print_reply(query.json, &causes::all(), bm_cli::causes)
        }
        ShowCommand::Drops(_) => drops(query),
        ShowCommand::Switch => print(query, request::SWITCHES, bm_cli::switches),
        ShowCommand::Macs => print(query, request::MACS, bm_cli::macs),
        ShowCommand::Cluster => print(query, request::CLUSTER, bm_cli::cluster),
        ShowCommand::Collectors => print(query, request::COLLECTORS, bm_cli::collectors),
        ShowCommand::Hooks => print(query, request::HOOKS, bm_cli::hooks),
        ShowCommand::Filters => print(query, request::FILTERS, bm_cli::filters),
        ShowCommand::Flows(flows) => self::flows(query, flows),
        ShowCommand::Sas => print(query, request::SAS, bm_cli::sas),
        ShowCommand::Policies => print(query, request::POLICIES, bm_cli::policies),
    }
}

fn ports(query: &Query, Ports { port, account }: &Ports) -> Result<(), Failure> {
    // First: counters that are read later are not smaller.
    let cleared = if query.json { bm_api::Cleared::default() } else { cleared(query) };
    let mut reply = client::ask(&query.server(), request::PORTS, &NoParameters {})?;
    if let Some(name) = port {
        reply = only(reply, name)?;
    }
    let text = match (account, port) {
        (true, _) => bm_cli::accounts,
        (false, Some(_)) => bm_cli::port_details,
        (false, None) => bm_cli::ports,
    };
    if query.json {
        return print_reply(true, &reply, text);
    }
    write(&(text(&bm_cli::ports_since(reply, &cleared)) + &bm_cli::counted_since(&cleared)))
}

fn drops(query: &Query) -> Result<(), Failure> {
    if query.json {
        return print(query, request::DROPS, bm_cli::drops);
    }
    // First: counters that are read later are not smaller.
    let cleared = cleared(query);
    let reply = client::ask(&query.server(), request::DROPS, &NoParameters {})?;
    write(&(bm_cli::drops(&bm_cli::drops_since(reply, &cleared)) + &bm_cli::counted_since(&cleared)))
}

/// What the counters were when they were cleared; a Lua program, or a node with an older version, does not know.
fn cleared(query: &Query) -> bm_api::Cleared {
    client::ask(&query.server(), request::CLEARED, &NoParameters {}).unwrap_or_default()
}

/// The port of this name, or with an interface of this name.
fn only(mut reply: bm_api::Ports, name: &str) -> Result<bm_api::Ports, Failure> {
    let names: Vec<String> = reply.ports.iter().map(|port| port.name.clone()).collect();
    reply.ports.retain(|port| {
        port.name == name
            || port.device == name
            || port.interfaces.iter().any(|interface| interface.name == name)
    });
    match (reply.ports.is_empty(), names.is_empty()) {
        (false, _) => Ok(reply),
        (true, true) => Err(Failure::Usage(format!("no port is called {name:?}: the daemon has no ports"))),
        (true, false) => {
            Err(Failure::Usage(format!("no port is called {name:?}; there is {}", names.join(", "))))
        }
    }
}

fn flows(query: &Query, flows: &Flows) -> Result<(), Failure> {
    let sort = flows.sort.map(|sort| match sort {
        SortFlows::Packets => "packets".into(),
        SortFlows::Bytes => "bytes".into(),
        SortFlows::Idle => "idle".into(),
    });
    let filter = Some(flows.filter.join(" ")).filter(|filter| !filter.is_empty());
    let limit = Some(if flows.count { 0 } else { flows.limit });
    print_with(query, request::FLOWS, &FlowQuery { filter, sort, limit }, bm_cli::flows)
}

fn routes(query: &Query, routes: &Routes) -> Result<(), Failure> {
    let is_prefix = routes.of.as_ref().is_some_and(|of| of.contains('/'));
    let parameters = RouteQuery {
        address: routes.of.clone().filter(|_| !is_prefix),
        prefix: routes.of.clone().filter(|_| is_prefix),
        vrf: routes.vrf.clone(),
        family: routes.family,
        after: routes.after.clone(),
        limit: Some(routes.limit),
    };
    print_with(query, request::ROUTES, &parameters, bm_cli::routes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_found_by_its_names_or_the_others_are_listed() {
        let interface = |name: &str| bm_api::Interface { name: name.into(), ..bm_api::Interface::default() };
        let port = |name: &str, interfaces: &[&str]| bm_api::Port {
            name: name.into(),
            device: format!("xdp:{name}"),
            interfaces: interfaces.iter().map(|name| interface(name)).collect(),
            ..bm_api::Port::default()
        };
        let all = bm_api::Ports { ports: vec![port("r0", &["r0", "r0.7"]), port("r1", &["r1"])] };
        for (name, expected) in [("r0", "r0"), ("xdp:r1", "r1"), ("r0.7", "r0")] {
            assert_eq!(only(all.clone(), name).unwrap().ports[0].name, expected);
        }
        let refused = only(all, "r9").unwrap_err().to_string();
        assert_eq!(refused, "no port is called \"r9\"; there is r0, r1");
        assert!(only(bm_api::Ports::default(), "r9").unwrap_err().to_string().contains("has no ports"));
    }
}
