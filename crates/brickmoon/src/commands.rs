//! All commands except `up`, which is in `daemon`.

use std::time::Duration;

use bm_api::request;
use bm_cli::Failure;
use bm_daemon::NamespaceClaim;
use bm_serve::{causes, client};
use hyper::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::args::{
    Clear, ClearCommand, ClearCounters, Cli, ClusterArgs, ClusterCommand, Command, Explain, PassedOn, Ports,
    Query, RemoveMember, Routes, Show, ShowCommand, Socket, Status, Top, Watch,
};
use crate::client::Connection;
use crate::output::{self, write};
use crate::{bench, capture, doctor, lua, pages, relay};

/// Runs a command.
pub fn run(Cli { verbose, command }: Cli) -> Result<(), Failure> {
    match command {
        Command::Up(up) => bm_daemon::up(up.into(), lua::natives),
        Command::Stop(stop) => self::stop(&stop.socket, stop.keep),
        Command::Reload(query) => print(&query, Method::POST, request::RELOAD, bm_cli::reloaded),
        Command::Check { file } => bm_daemon::check(&file),
        Command::Doctor(doctor) => doctor::run(&doctor.options(), doctor.json),
        Command::Verify(query) => verify(&query),
        Command::Status(Status { query, watch }) => {
            watched(watch, query.json, || print(&query, Method::GET, request::STATUS, bm_cli::status))
        }
        Command::Show(Show { watch, what }) => watched(watch, is_json(&what), || show(what.clone())),
        Command::Clear(Clear { what: ClearCommand::Counters(clear) }) => self::clear(&clear),
        Command::Explain(explain) => self::explain(&explain),
        Command::Top(top) => self::top(top),
        Command::Capture(capture) => capture::run(&capture),
        Command::Trace(trace) => capture::trace::run(&trace),
        Command::Cluster(ClusterArgs { what: ClusterCommand::Status(query) }) => {
            show(ShowCommand::Cluster(query))
        }
        Command::Cluster(ClusterArgs { what: ClusterCommand::Drain(query) }) => {
            print(&query, Method::POST, request::DRAIN, bm_cli::cluster)
        }
        Command::Cluster(ClusterArgs { what: ClusterCommand::Join(query) }) => {
            print(&query, Method::POST, request::JOIN, bm_cli::cluster)
        }
        Command::Cluster(ClusterArgs { what: ClusterCommand::Relay(command) }) => relay::run(command),
        Command::Xfrm(xfrm) => Err(crate::xfrm::exec(xfrm)),
        Command::Cluster(ClusterArgs { what: ClusterCommand::Remove(RemoveMember { name, query }) }) => {
            let path = format!("{}?name={}", request::REMOVE, escape(&name));
            print(&query, Method::POST, &path, bm_cli::cluster)
        }
        Command::Run(run) => lua::run(run),
        Command::Snabb(snabb) => lua::snabb(snabb),
        Command::Cluster(ClusterArgs { what: ClusterCommand::Demo(PassedOn { arguments }) }) => {
            let arguments = std::iter::once("demo".into()).chain(arguments).collect();
            Err(bench::exec("cluster", verbose, PassedOn { arguments }))
        }
        Command::Bench(passed_on) => Err(bench::exec("bench", verbose, passed_on)),
        Command::Demo(passed_on) => Err(bench::exec("demo", verbose, passed_on)),
        Command::Simulate(passed_on) => Err(bench::exec("simulate", verbose, passed_on)),
        Command::Plan(passed_on) => Err(bench::exec("plan", verbose, passed_on)),
        Command::Completion { shell } => pages::completion(shell),
        Command::Man { folder } => pages::man(&folder),
        Command::WatchTables { grace_ms, confined } => {
            bm_daemon::watch_tables(Duration::from_millis(grace_ms), confined)
        }
    }
}

/// Whether a command prints JSON.
fn is_json(what: &ShowCommand) -> bool {
    match what {
        ShowCommand::Ports(ports) => ports.query.json,
        ShowCommand::Routes(routes) => routes.query.json,
        ShowCommand::Drops(drops) => drops.query.json,
        ShowCommand::Neighbors(query)
        | ShowCommand::Nexthops(query)
        | ShowCommand::Apps(query)
        | ShowCommand::Links(query)
        | ShowCommand::Workers(query)
        | ShowCommand::Switch(query)
        | ShowCommand::Macs(query)
        | ShowCommand::Cluster(query)
        | ShowCommand::Collectors(query)
        | ShowCommand::Hooks(query)
        | ShowCommand::Filters(query)
        | ShowCommand::Sas(query)
        | ShowCommand::Policies(query) => query.json,
    }
}

/// Shows something once, or again and again: on a terminal at the same place, else one after the other.
fn watched(watch: Watch, json: bool, show: impl Fn() -> Result<(), Failure>) -> Result<(), Failure> {
    use std::io::IsTerminal as _;
    let Some(seconds) = watch.watch else { return show() };
    let clears = !json && std::io::stdout().is_terminal();
    while !output::is_closed() {
        if clears {
            write("\x1b[H\x1b[2J")?;
        }
        show()?;
        std::thread::sleep(Duration::from_secs(seconds));
    }
    Ok(())
}

fn show(what: ShowCommand) -> Result<(), Failure> {
    let get = Method::GET;
    match what {
        ShowCommand::Ports(ports) => self::ports(&ports),
        ShowCommand::Routes(routes) => self::routes(routes),
        ShowCommand::Neighbors(query) => print(&query, get, request::NEIGHBORS, bm_cli::neighbors),
        ShowCommand::Nexthops(query) => print(&query, get, request::NEXT_HOPS, bm_cli::nexthops),
        ShowCommand::Apps(query) => print(&query, get, request::APPS, bm_cli::apps),
        ShowCommand::Links(query) => print(&query, get, request::LINKS, bm_cli::links),
        ShowCommand::Workers(query) => print(&query, get, request::WORKERS, bm_cli::workers),
        ShowCommand::Drops(drops) if drops.explain => {
            print_reply(drops.query.json, &causes::all(), bm_cli::causes)
        }
        ShowCommand::Drops(drops) => self::drops(&drops.query),
        ShowCommand::Collectors(query) => print(&query, get, request::COLLECTORS, bm_cli::collectors),
        ShowCommand::Hooks(query) => print(&query, get, request::HOOKS, bm_cli::hooks),
        ShowCommand::Switch(query) => print(&query, get, request::SWITCHES, bm_cli::switches),
        ShowCommand::Macs(query) => print(&query, get, request::MACS, bm_cli::macs),
        ShowCommand::Cluster(query) => print(&query, get, request::CLUSTER, bm_cli::cluster),
        ShowCommand::Filters(query) => print(&query, get, request::FILTERS, bm_cli::filters),
        ShowCommand::Sas(query) => print(&query, get, request::SAS, bm_cli::sas),
        ShowCommand::Policies(query) => print(&query, get, request::POLICIES, bm_cli::policies),
    }
}

/// Sends a request and prints the reply, as text or as JSON.
fn print<T: DeserializeOwned + Serialize>(
    query: &Query,
    method: Method,
    path: &str,
    text: fn(&T) -> String,
) -> Result<(), Failure> {
    let reply: T = client::ask(&query.socket.server(), method.clone(), &of_node(query, &method, path)?)?;
    print_reply(query.json, &reply, text)
}

/// The path by which another node answers, if one was named.
fn of_node(query: &Query, method: &Method, path: &str) -> Result<String, Failure> {
    match &query.node {
        None => Ok(path.into()),
        Some(node) if method == Method::GET => Ok(format!("{}{}{path}", request::NODES, escape(node))),
        Some(_) => Err(Failure::Usage(
            "--node is only for commands that show something; run others on that node".into(),
        )),
    }
}

/// Prints a reply, as text or as JSON.
fn print_reply<T: Serialize>(json: bool, reply: &T, text: fn(&T) -> String) -> Result<(), Failure> {
    let text = if json { serde_json::to_string(reply).map_err(Failure::failed)? + "\n" } else { text(reply) };
    write(&text)
}

fn ports(Ports { port, account, query }: &Ports) -> Result<(), Failure> {
    // First: counters that are read later are not smaller.
    let cleared = if query.json { bm_api::Cleared::default() } else { cleared(query)? };
    let mut reply: bm_api::Ports =
        client::ask(&query.socket.server(), Method::GET, &of_node(query, &Method::GET, request::PORTS)?)?;
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
        return print(query, Method::GET, request::DROPS, bm_cli::drops);
    }
    // First: counters that are read later are not smaller.
    let cleared = cleared(query)?;
    let reply =
        client::ask(&query.socket.server(), Method::GET, &of_node(query, &Method::GET, request::DROPS)?)?;
    write(&(bm_cli::drops(&bm_cli::drops_since(reply, &cleared)) + &bm_cli::counted_since(&cleared)))
}

/// What the counters were when they were cleared; a Lua program, or a node with an older version, does not know.
fn cleared(query: &Query) -> Result<bm_api::Cleared, Failure> {
    let path = of_node(query, &Method::GET, request::CLEARED)?;
    Ok(client::ask(&query.socket.server(), Method::GET, &path).unwrap_or_default())
}

fn clear(ClearCounters { undo, query }: &ClearCounters) -> Result<(), Failure> {
    let path = if *undo { format!("{}?undo=true", request::CLEAR) } else { request::CLEAR.into() };
    print(query, Method::POST, &path, bm_cli::cleared)
}

/// The port of this name, or with an interface of this name.
fn only(mut reply: bm_api::Ports, name: &str) -> Result<bm_api::Ports, Failure> {
    let names: Vec<String> = reply.ports.iter().map(|port| port.name.clone()).collect();
    reply.ports.retain(|port| {
        let interfaces = || port.interfaces.iter().any(|interface| interface.name == name);
        port.name == name || port.device == name || interfaces()
    });
    match (reply.ports.is_empty(), names.is_empty()) {
        (false, _) => Ok(reply),
        (true, true) => Err(Failure::Usage(format!("no port is called {name:?}: the daemon has no ports"))),
        (true, false) => {
            Err(Failure::Usage(format!("no port is called {name:?}; there is {}", names.join(", "))))
        }
    }
}

fn routes(routes: Routes) -> Result<(), Failure> {
    let Routes { of, vrf, family, after, limit, query } = routes;
    let (prefix, address) = match of {
        Some(of) if of.contains('/') => (Some(of), None),
        of => (None, of),
    };
    let limit = limit.to_string();
    let family = family.map(|family| family.to_string());
    let parameters = [
        ("address", address.as_deref()),
        ("prefix", prefix.as_deref()),
        ("vrf", vrf.as_deref()),
        ("family", family.as_deref()),
        ("after", after.as_deref()),
        ("limit", Some(limit.as_str())),
    ];
    let parameters =
        parameters.iter().filter_map(|(name, value)| Some(format!("{name}={}", escape((*value)?))));
    let path = format!("{}?{}", request::ROUTES, parameters.collect::<Vec<_>>().join("&"));
    print(&query, Method::GET, &path, bm_cli::routes)
}

fn explain(explain: &Explain) -> Result<(), Failure> {
    let Explain { of, from, to, frame, port, vrf, protocol, sport, dport, ttl, length, query } = explain;
    let number = |number: Option<u16>| number.map(|number| number.to_string());
    let [sport, dport, length] = [*sport, *dport, *length].map(number);
    let ttl = number(ttl.map(u16::from));
    let parameters = [
        ("frame", frame.as_ref()),
        ("port", port.as_ref()),
        ("vrf", vrf.as_ref()),
        ("from", from.as_ref()),
        ("to", of.as_ref().or(to.as_ref())),
        ("protocol", protocol.as_ref()),
        ("source_port", sport.as_ref()),
        ("destination_port", dport.as_ref()),
        ("ttl", ttl.as_ref()),
        ("length", length.as_ref()),
    ];
    let parameters =
        parameters.iter().filter_map(|(name, value)| Some(format!("{name}={}", escape((*value)?))));
    let path = format!("{}?{}", request::EXPLAIN, parameters.collect::<Vec<_>>().join("&"));
    print(query, Method::GET, &path, bm_cli::explanation)
}

/// A value, percent-encoded for a query (RFC 3986 2.3).
fn escape(value: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:/".contains(&byte);
    value
        .bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

fn top(top: Top) -> Result<(), Failure> {
    let Top { query: Query { socket, node, json }, interval, view, once } = top;
    if node.is_some() {
        return Err(Failure::Usage("`brickmoon top` shows this node only; run it on the other one".into()));
    }
    let mut session = Connection(client::Session::new(socket.server())?);
    let options = bm_tui::Options { interval, view };
    if once || json {
        return write(&bm_tui::once(options, &mut session, json).map_err(Failure::Failed)?);
    }
    bm_tui::run(options, Box::new(session)).map_err(Failure::Failed)
}

fn verify(query: &Query) -> Result<(), Failure> {
    let path = of_node(query, &Method::POST, request::VERIFY)?;
    let reply: bm_api::Verify = client::ask(&query.socket.server(), Method::POST, &path)?;
    print_reply(query.json, &reply, bm_cli::verify)?;
    if reply.equal { Ok(()) } else { Err(Failure::failed("the tables differ from the kernel's")) }
}

/// Removes what a daemon that has ended left in the kernel; false if there was nothing.
fn detach_leftovers(socket: &std::path::Path) -> Result<bool, Failure> {
    let Some(_no_daemon) = NamespaceClaim::take(socket).map_err(Failure::failed)? else {
        return Err(Failure::Failed(format!(
            "a daemon runs here whose files this command cannot see, in another mount namespace: run `brickmoon stop` there (nsenter --mount), or with the path by which {} is reached from here; nothing was removed",
            socket.display()
        )));
    };
    let mut interfaces = bm_fastpath::remove_kept().unwrap_or_default();
    bm_control::watcher::dismiss();
    interfaces.extend(bm_switch::remove_kept_but(&[]));
    interfaces.extend(bm_cluster::remove_kept());
    interfaces.extend(bm_control::nftables::remove(&bm_control::nftables::name(socket)));
    if interfaces.is_empty() {
        return Ok(false);
    }
    write(&format!(
        "no daemon answers at {}; removed what the last one left in the kernel on {}: Linux forwards now\n",
        socket.display(),
        interfaces.join(", ")
    ))?;
    Ok(true)
}

/// Makes the daemon end, and waits until it has.
fn stop(socket: &Socket, keep: bool) -> Result<(), Failure> {
    if !keep && !client::is_listening(&socket.socket)? && detach_leftovers(&socket.socket)? {
        return Ok(());
    }
    let path = if keep { format!("{}?keep=true", request::STOP) } else { request::STOP.into() };
    let stopping: bm_api::Stopping = client::ask(&socket.server(), Method::POST, &path)?;
    let process = std::path::PathBuf::from(format!("/proc/{}", stopping.pid));
    for _ in 0..500 {
        // A zombie has ended; its parent has not reaped it yet.
        let state = std::fs::read_to_string(process.join("stat")).unwrap_or_default();
        if state.is_empty() || state.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'))
        {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    Err(Failure::Failed(format!("process {} has not stopped within 10 s", stopping.pid)))
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
