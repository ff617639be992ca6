//! All commands except `show`, and `up`, which is the daemon.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bm_api::request::{self, ClearQuery, ExplainQuery, MemberQuery, NoParameters, StopQuery};
use bm_cli::Failure;
use bm_daemon::NamespaceClaim;
use bm_serve::client;

use crate::args::{
    Clear, ClearCommand, ClearCounters, Cli, ClusterCommand, Command, Explain, PassedOn, RemoveMember,
    Status, Top,
};
use crate::client::Connection;
use crate::output::write;
use crate::query::{Query, Socket, print, print_reply, print_with, watched};
use crate::show::{ShowCommand, show};
use crate::{bench, capture, doctor, lua, pages, relay};

/// Runs a command.
pub fn run(Cli { verbose, command }: Cli) -> Result<(), Failure> {
    match command {
        Command::Up(up) => bm_daemon::up(up.into(), lua::natives),
        Command::Stop(stop) => self::stop(&stop.socket, stop.keep),
        Command::Reload(query) => print(&query, request::RELOAD, bm_cli::reloaded),
        Command::Check { file } => bm_daemon::check(&file),
        Command::Doctor(doctor) => doctor::run(&doctor.options(), doctor.json),
        Command::Verify(query) => verify(&query),
        Command::Status(Status { query, watch }) => {
            watched(watch, query.json, || print(&query, request::STATUS, bm_cli::status))
        }
        Command::Show(show) => show.run(),
        Command::Clear(Clear { what: ClearCommand::Counters(clear) }) => self::clear(&clear),
        Command::Clear(Clear { what: ClearCommand::Flows(query) }) => {
            print(&query, request::CLEAR_FLOWS, bm_cli::flows_cleared)
        }
        Command::Explain(explain) => self::explain(explain),
        Command::Top(top) => self::top(top),
        Command::Capture(capture) => capture::run(&capture),
        Command::Trace(trace) => capture::trace::run(&trace),
        Command::Cluster(cluster) => self::cluster(verbose, cluster.what),
        Command::Xfrm(xfrm) => Err(crate::xfrm::exec(xfrm)),
        Command::Run(run) => lua::run(run),
        Command::Snabb(snabb) => lua::snabb(snabb),
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

fn cluster(verbose: u8, command: ClusterCommand) -> Result<(), Failure> {
    match command {
        ClusterCommand::Status(query) => show(&query, &ShowCommand::Cluster),
        ClusterCommand::Drain(query) => print(&query, request::DRAIN, bm_cli::cluster),
        ClusterCommand::Join(query) => print(&query, request::JOIN, bm_cli::cluster),
        ClusterCommand::Remove(RemoveMember { name, query }) => {
            print_with(&query, request::REMOVE, &MemberQuery { name }, bm_cli::cluster)
        }
        ClusterCommand::Relay(command) => relay::run(command),
        ClusterCommand::Demo(PassedOn { arguments }) => {
            let arguments = std::iter::once("demo".into()).chain(arguments).collect();
            Err(bench::exec("cluster", verbose, PassedOn { arguments }))
        }
    }
}

fn clear(ClearCounters { undo, query }: &ClearCounters) -> Result<(), Failure> {
    print_with(query, request::CLEAR, &ClearQuery { undo: *undo }, bm_cli::cleared)
}

fn explain(explain: Explain) -> Result<(), Failure> {
    let parameters = ExplainQuery {
        frame: explain.frame,
        port: explain.port,
        vrf: explain.vrf,
        from: explain.from,
        to: explain.of.or(explain.to),
        protocol: explain.protocol,
        source_port: explain.sport,
        destination_port: explain.dport,
        ttl: explain.ttl,
        length: explain.length,
    };
    print_with(&explain.query, request::EXPLAIN, &parameters, bm_cli::explanation)
}

fn top(top: Top) -> Result<(), Failure> {
    let Top { query, interval, view, once } = top;
    if query.node.is_some() {
        return Err(Failure::Usage("`brickmoon top` shows this node only; run it on the other one".into()));
    }
    let mut session = Connection(client::Session::new(query.server())?);
    let options = bm_tui::Options { interval, view };
    if once || query.json {
        return write(&bm_tui::once(options, &mut session, query.json).map_err(Failure::Failed)?);
    }
    bm_tui::run(options, Box::new(session)).map_err(Failure::Failed)
}

fn verify(query: &Query) -> Result<(), Failure> {
    let reply = client::ask(&query.server(), request::VERIFY, &NoParameters {})?;
    print_reply(query.json, &reply, bm_cli::verify)?;
    if reply.equal { Ok(()) } else { Err(Failure::failed("the tables differ from the kernel's")) }
}

/// Removes what a daemon that has ended left in the kernel; false if there was nothing.
fn detach_leftovers(socket: &Path) -> Result<bool, Failure> {
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
    let stopping = client::ask(&socket.server(), request::STOP, &StopQuery { keep })?;
    let process = PathBuf::from(format!("/proc/{}", stopping.pid));
    for _ in 0..500 {
        // A zombie has ended; its parent has not reaped it yet.
        let state = std::fs::read_to_string(process.join("stat")).unwrap_or_default();
        if state.is_empty() || state.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'))
        {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err(Failure::Failed(format!("process {} has not stopped within 10 s", stopping.pid)))
}
