//! `brickmoon up`: starts the router from its configuration, and hands all packets back to Linux at the end.
//!
//! ```text
//! Config ─► ports open (no packets yet) ─► control: tables ready ─► workers, slow path ─► ports take packets
//! ```
//!
//! The end takes the reverse order: Linux gets all packets again first, then the threads end.

pub mod apps;
mod checks;
mod confine;
mod connections;
mod dataplane;
mod dpdk;
mod health;
mod hooks;
mod kernel_ports;
mod limits;
mod notify;
mod path;
mod places;
mod ports;
mod presence;
mod queues;
pub mod report;
mod rights;
mod running;
pub mod server;
pub mod socket;
mod spare;
mod state;
mod switches;
pub mod watcher;

use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak, mpsc};
use std::time::{Duration, Instant};

use bm_control::config::{self, Config, Device, IdleChoice, PathChoice, Port};
use bm_fastpath::AttachChoice;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{self, Poll, Up};
use crate::{Failure, log};
use rights::Rights;
use state::Daemon;

pub use dataplane::{Shared, slow_path};
pub use ports::{OpenPort, Rings, open as open_ports};
pub use state::random;

/// The text of a failure.
pub fn why(failure: Failure) -> String {
    match failure {
        Failure::Failed(why) | Failure::Usage(why) => why,
        Failure::Status(status) => format!("exit status {status}"),
    }
}

/// How often the data path is checked, and how often Lua scripts are, which may hang.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const LOOK_AT_LUA_EVERY: Duration = Duration::from_millis(20);

/// How long the end may take; after that the process exits without waiting for threads that hang.
const END_MAX: Duration = Duration::from_secs(15);
/// How long requests that are in progress at the end may take.
const ANSWERS_MAX: Duration = Duration::from_secs(1);

/// `brickmoon check`: reports what is wrong with a configuration file, and warns of missing interfaces.
pub fn check(file: &Path) -> Result<(), Failure> {
    let config = Config::load(file).map_err(Failure::usage)?;
    // The devices may be on another machine, or appear later.
    let paths = path::choose(&config, |_| None)?;
    checks::all(Some(file), &config, &paths).map_err(Failure::usage)?;
    for name in config.ports.iter().filter_map(missing) {
        log::say(&format!("warning: port {name}: {}", presence::missing(name)));
    }
    Ok(())
}

/// The interface of a port, if it does not exist.
fn missing(port: &Port) -> Option<&str> {
    let Device::Xdp(name) = &port.device else { return None };
    (!bm_fastpath::is_there(name)).then_some(name)
}

/// `brickmoon up`: runs until a signal or `brickmoon stop`.
pub fn up(mut up: Up) -> Result<(), Failure> {
    let started = Instant::now();
    // Until privileges are dropped, which must happen before there is a second thread.
    log::hold();
    limits::raise();
    bm_privilege::give_memory_back();
    if up.config.is_none() && up.ports.is_empty() {
        up.config = Some(config::FILE.into()).filter(|file: &PathBuf| file.exists());
    }
    let config = configuration(&up)?;
    let runtime = server::runtime().map_err(Failure::failed)?;
    let ended = runtime.block_on(async {
        let readers = rights::group(config.daemon.read_group.as_deref())?;
        let socket = socket::Socket::listen(&config.daemon.socket, readers.is_some()).await?;
        let metrics = match config.daemon.metrics {
            Some(address) => Some(server::listen_for_metrics(address).await?),
            None => None,
        };
        let unconfined = confine::confine(&config, up.config.as_deref());
        log::release();
        let daemon = Arc::new(Daemon::start(config, up, started, unconfined)?);
        daemon.watch_links()?;
        let answering = tokio::spawn(socket.serve(answers(&daemon, readers)));
        if let Some(listener) = metrics {
            tokio::spawn(server::serve_metrics(listener, daemon.clone()));
        }
        say_ready(daemon.ready());
        if let Some(note) = daemon.no_ports() {
            tracing::warn!("{note}");
        }
        notify::notify("READY=1");
        let ended = watch(&daemon).await;
        notify::notify("STOPPING=1");
        end_within(END_MAX, Arc::downgrade(&daemon));
        daemon.end();
        // The answer to `stop` goes out before its socket closes.
        tokio::time::sleep(Duration::from_millis(20)).await;
        answering.abort();
        let _aborted = answering.await;
        ended
    });
    // A request that is still in progress waits for a thread that hangs.
    runtime.shutdown_timeout(ANSWERS_MAX);
    ended
}

/// The routes of the control socket: for root, and for members of the group with read access.
fn answers(daemon: &Arc<Daemon>, readers: Option<u32>) -> Rights {
    let all = server::routes(daemon.clone());
    match readers {
        None => Rights::of_all(all),
        Some(group) => Rights::of_group(all, group, server::routes_of_readers(daemon.clone())),
    }
}

/// Ends the process after `longest`, even if a thread hangs. The programs in the kernel are detached first, so that Linux
/// forwards. A daemon that has been dropped by then has detached them itself: this must not keep it alive.
fn end_within(longest: Duration, daemon: Weak<Daemon>) {
    let end = move || {
        std::thread::sleep(longest);
        // On a thread of its own: a thread that hangs may hold what this waits for.
        let (done, waiting) = mpsc::channel();
        let let_go = move || {
            if let Some(daemon) = daemon.upgrade() {
                daemon.let_go();
            }
            let _nobody_waits = done.send(());
        };
        if std::thread::Builder::new().name("bm-let-go".into()).spawn(let_go).is_ok() {
            let _took_too_long = waiting.recv_timeout(ANSWERS_MAX);
        }
        log::say(&format!(
            "brickmoon: some threads have not ended within {} s: exiting without them",
            longest.as_secs()
        ));
        log::flush();
        std::process::exit(1);
    };
    if let Err(error) = std::thread::Builder::new().name("bm-end".into()).spawn(end) {
        tracing::warn!("cannot start the thread that limits the time to end: {error}");
    }
}

/// Prints the ready line on standard output, on a thread of its own since the reader may be slow or gone.
fn say_ready(ready: String) {
    let say = move || {
        if let Err(error) = writeln!(std::io::stdout(), "{ready}") {
            tracing::warn!("cannot write \"{ready}\" to standard output: {error}");
        }
    };
    if let Err(error) = std::thread::Builder::new().name("bm-ready".into()).spawn(say) {
        tracing::warn!("cannot write the ready line to standard output: {error}");
    }
}

/// Reads and checks the configuration: the file, overridden by the command line.
fn configuration(up: &Up) -> Result<Config, Failure> {
    let config = match &up.config {
        Some(file) => Config::load(file).map_err(Failure::usage)?,
        None => Config::default(),
    };
    let config = with_arguments(config, up)?;
    // Ports can be added to a file later; without a file they never can.
    if up.config.is_none() {
        checks::has_ports(&config).map_err(Failure::usage)?;
    }
    asked_for(&config, up)?;
    let paths = path::choose(&config, path::obstacle)?;
    checks::all(up.config.as_deref(), &config, &paths).map_err(Failure::usage)?;
    Ok(config)
}

/// Checks that the interfaces named on the command line exist. Such a name is more often mistyped than meant for an
/// interface that appears later.
fn asked_for(config: &Config, up: &Up) -> Result<(), Failure> {
    let is_asked = |port: &&Port| up.ports.iter().any(|asked| asked.parse().as_ref() == Ok(&port.device));
    match config.ports.iter().filter(is_asked).find_map(missing) {
        None => Ok(()),
        Some(name) => Err(Failure::Failed(format!(
            "interface {name:?} does not exist: `ip link` lists interfaces; a [[port]] in a configuration file waits for its interface"
        ))),
    }
}

/// Overrides a configuration with the options of the command line.
fn with_arguments(mut config: Config, up: &Up) -> Result<Config, Failure> {
    let mut named = HashSet::new();
    for port in &up.ports {
        let device: Device = port.parse().map_err(Failure::usage)?;
        if !named.insert(device.clone()) {
            return Err(Failure::Usage(format!("--port {port}: duplicate port {device}")));
        }
        if config.ports.iter().all(|other| other.device != device) {
            config.ports.push(Port::new(device));
        }
    }
    if let Some(socket) = &up.socket {
        config.daemon.socket.clone_from(socket);
    }
    config.daemon.metrics = up.metrics.or(config.daemon.metrics);
    config.daemon.idle = up.poll.map_or(config.daemon.idle, |poll| match poll {
        Poll::Busy => IdleChoice::Busy,
        Poll::Sleep => IdleChoice::Sleep,
    });
    config.daemon.workers = up.workers.map(|workers| workers as u32).or(config.daemon.workers);
    config.daemon.attach = up.attach.map_or(config.daemon.attach, |attach| match attach {
        args::Attach::Xdp => AttachChoice::Xdp,
        args::Attach::Tc => AttachChoice::Tc,
        args::Attach::Auto => AttachChoice::Auto,
    });
    for said in &up.paths {
        let path = match said.path {
            args::Path::Kernel => PathChoice::Kernel,
            args::Path::User => PathChoice::User,
            args::Path::Auto => PathChoice::Auto,
        };
        let Some(name) = &said.port else {
            config.daemon.path = path;
            continue;
        };
        let is_it = |port: &&mut Port| {
            port.device.to_string() == *name || port.device.interface() == Some(name.as_str())
        };
        let Some(port) = config.ports.iter_mut().find(is_it) else {
            return Err(Failure::Usage(format!("--path {name}=..: unknown port; add it with --port")));
        };
        port.path = path;
    }
    Ok(config)
}

/// Makes ports follow their interfaces.
async fn follow(daemon: &Arc<Daemon>) -> Result<(), Failure> {
    let daemon = daemon.clone();
    tokio::task::spawn_blocking(move || daemon.follow()).await.map_err(Failure::failed)?
}

/// Runs until a signal or request to end, or until the data path cannot be restarted.
async fn watch(daemon: &Arc<Daemon>) -> Result<(), Failure> {
    let on = |kind| signal(kind).map_err(Failure::failed);
    let (mut terminate, mut interrupt) = (on(SignalKind::terminate())?, on(SignalKind::interrupt())?);
    tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        () = daemon.end.notified() => Ok(()),
        ended = tend(daemon) => ended,
    }
}

/// Supervises the data path; returns when it cannot be restarted.
async fn tend(daemon: &Arc<Daemon>) -> Result<(), Failure> {
    let _watched = bm_heartbeat::watch(health::MAIN_SILENT_MAX);
    let mut hangup = signal(SignalKind::hangup()).map_err(Failure::failed)?;
    let mut look = tokio::time::interval(LOOK_EVERY);
    let mut look_at_lua = tokio::time::interval(LOOK_AT_LUA_EVERY);
    look_at_lua.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        bm_heartbeat::beat();
        tokio::select! {
            _ = hangup.recv() => {
                let daemon = daemon.clone();
                let reloaded = tokio::task::spawn_blocking(move || daemon.reload()).await;
                match reloaded.map_err(Failure::failed)? {
                    Ok(reloaded) => tracing::info!(?reloaded, "reloaded the configuration"),
                    Err(error) => tracing::error!(%error, "cannot reload the configuration"),
                }
            }
            _ = look_at_lua.tick(), if daemon.has_scripts() => {
                let daemon = daemon.clone();
                tokio::task::spawn_blocking(move || daemon.look_after_lua()).await.map_err(Failure::failed)??;
            }
            () = daemon.links.notified() => follow(daemon).await?,
            _ = look.tick() => {
                let looked = daemon.clone();
                tokio::task::spawn_blocking(move || looked.look_after()).await.map_err(Failure::failed)??;
                if daemon.has_refused() {
                    follow(daemon).await?;
                }
            }
        }
    }
}
