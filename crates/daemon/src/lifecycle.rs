//! Start, signals and end of the daemon.

use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Weak, mpsc};
use std::time::{Duration, Instant};

use bm_cli::Failure;
use bm_control::config;
use bm_serve::rights::{self, Rights};
use bm_serve::{Answers, server, socket, web};
use tokio::signal::unix::{SignalKind, signal};

use crate::configuration::configuration;
use crate::guard::{confine, health, notify};
use crate::log;
use crate::namespace_claim::NamespaceClaim;
use crate::observe::answers::{self, Daemon};
use crate::observe::linux_drops::LinuxDrops;
use crate::options::Options;
use crate::router::{Forwarder, MakeNatives, Scripts};

/// How often the data path is checked, and how often Lua scripts are, which may hang.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const LOOK_AT_LUA_EVERY: Duration = Duration::from_millis(20);

/// How long the end may take; after that the process exits without waiting for threads that hang.
const END_MAX: Duration = Duration::from_secs(15);
/// How long requests that are in progress at the end may take.
const ANSWERS_MAX: Duration = Duration::from_secs(1);

/// `brickmoon up`: runs until a signal or `brickmoon stop`.
pub fn up(mut options: Options, natives: MakeNatives) -> Result<(), Failure> {
    let started = Instant::now();
    // Until privileges are dropped, which must happen before there is a second thread.
    log::hold();
    confine::raise_limits();
    bm_privilege::give_memory_back();
    if options.config.is_none() && options.ports.is_empty() {
        options.config = Some(config::FILE.into()).filter(|file: &PathBuf| file.exists());
    }
    let (config, machine) = configuration(&options)?;
    let runtime = server::runtime().map_err(Failure::failed)?;
    let ended = runtime.block_on(async {
        let readers = rights::group(config.daemon.read_group.as_deref())?;
        let socket = socket::Socket::listen(&config.daemon.socket, readers.is_some()).await?;
        let Some(_claim) = NamespaceClaim::take(&config.daemon.socket).map_err(Failure::failed)? else {
            return Err(Failure::Usage(format!(
                "a daemon in another mount namespace has the socket {} in this network namespace, so both would use the same tables of nftables: set another `socket` in [daemon]",
                config.daemon.socket.display()
            )));
        };
        let metrics = match config.daemon.metrics {
            Some(address) => Some(server::listen_for_metrics(address).await?),
            None => None,
        };
        let page = match config.daemon.web {
            Some(address) => Some(web::Page::listen(address, config.daemon.web_token.as_deref()).await?),
            None => None,
        };
        let linux_drops = LinuxDrops::load();
        let unconfined = confine::confine(&config, options.config.as_deref());
        log::release();
        let forwarder = Arc::new(Forwarder::start(config, machine, options.config.clone(), natives, linux_drops)?);
        let web = page.as_ref().map(web::Page::address);
        let daemon = Arc::new(Daemon::new(forwarder.clone(), options, started, unconfined, web));
        forwarder.watch_links()?;
        let programs = (forwarder.serve_xfrm()?, forwarder.follow_kernel_ipsec()?);
        let answers = answers::all();
        let answering = tokio::spawn(socket.serve(rights(&answers, &daemon, readers)));
        if let Some(listener) = metrics {
            tokio::spawn(server::serve_metrics(listener, answers.routes_of_metrics(daemon.clone())));
        }
        if let Some(page) = page {
            tokio::spawn(page.serve(answers.routes_of_page(daemon.clone())));
        }
        say_ready(daemon.ready());
        match daemon.no_ports() {
            Some(note) => tracing::warn!("{note}"),
            None => log::say(UNSEEN),
        }
        notify::notify("READY=1");
        let ended = watch(&daemon, &forwarder).await;
        notify::notify("STOPPING=1");
        end_within(END_MAX, Arc::downgrade(&forwarder), forwarder.scripts());
        drop(programs);
        forwarder.end();
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

/// What clients of the control socket may do: everything, or only read for members of the group `readers`.
fn rights(answers: &Answers<Daemon>, daemon: &Arc<Daemon>, readers: Option<u32>) -> Rights {
    let all = answers.routes(daemon.clone());
    match readers {
        None => Rights::of_all(all),
        Some(group) => Rights::of_group(all, group, answers.routes_of_readers(daemon.clone())),
    }
}

/// Ends the process after `longest`, even if a thread hangs. The programs in the kernel are detached first, so that Linux
/// forwards. A forwarder that has been dropped by then has detached them itself: this must not keep it alive.
/// Lua code is supervised until then: if it does not return, nobody waits for it.
fn end_within(longest: Duration, forwarder: Weak<Forwarder>, scripts: Scripts) {
    let spawned = std::thread::Builder::new().name("bm-end".into()).spawn(move || {
        let begin = Instant::now();
        while begin.elapsed() < longest && !scripts.hang() {
            std::thread::sleep(LOOK_AT_LUA_EVERY);
        }
        exit_without_threads(forwarder, begin.elapsed())
    });
    if let Err(error) = spawned {
        tracing::warn!("cannot start the thread that limits the time to end: {error}");
    }
}

/// Detaches the programs in the kernel and ends the process, after having waited for so long.
fn exit_without_threads(forwarder: Weak<Forwarder>, waited: Duration) -> ! {
    // On a thread of its own: a thread that hangs may hold what this waits for.
    let (done, waiting) = mpsc::channel();
    let spawned = std::thread::Builder::new().name("bm-detach".into()).spawn(move || {
        if let Some(forwarder) = forwarder.upgrade() {
            forwarder.detach_without_waiting();
        }
        let _nobody_waits = done.send(());
    });
    if spawned.is_ok() {
        let _took_too_long = waiting.recv_timeout(ANSWERS_MAX);
    }
    log::say(&format!(
        "brickmoon: some threads have not ended within {} s: exiting without them",
        waited.as_secs()
    ));
    log::flush();
    std::process::exit(1);
}

/// Printed at each start, for users of tcpdump.
const UNSEEN: &str = "tcpdump does not see the packets that brickmoon forwards; `brickmoon capture PORT` and `brickmoon trace` do";

/// Prints the ready line on standard output, on a thread of its own since the reader may be slow or gone.
fn say_ready(ready: String) {
    let spawned = std::thread::Builder::new().name("bm-ready".into()).spawn(move || {
        if let Err(error) = writeln!(std::io::stdout(), "{ready}") {
            tracing::warn!("cannot write \"{ready}\" to standard output: {error}");
        }
    });
    if let Err(error) = spawned {
        tracing::warn!("cannot write the ready line to standard output: {error}");
    }
}

/// Makes ports follow their interfaces.
async fn follow(forwarder: &Arc<Forwarder>) -> Result<(), Failure> {
    let forwarder = forwarder.clone();
    tokio::task::spawn_blocking(move || forwarder.follow()).await.map_err(Failure::failed)?
}

/// Runs until a signal or request to end, or until the data path cannot be restarted.
async fn watch(daemon: &Arc<Daemon>, forwarder: &Arc<Forwarder>) -> Result<(), Failure> {
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::failed)?;
    tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        () = daemon.end.notified() => Ok(()),
        ended = tend(daemon, forwarder) => ended,
    }
}

/// Supervises the data path; returns when it cannot be restarted.
async fn tend(daemon: &Arc<Daemon>, forwarder: &Arc<Forwarder>) -> Result<(), Failure> {
    let _watched = bm_sys::heartbeat::watch(health::MAIN_SILENT_MAX);
    let mut hangup = signal(SignalKind::hangup()).map_err(Failure::failed)?;
    let mut look = tokio::time::interval(LOOK_EVERY);
    let mut look_at_lua = tokio::time::interval(LOOK_AT_LUA_EVERY);
    look_at_lua.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        bm_sys::heartbeat::beat();
        tokio::select! {
            _ = hangup.recv() => {
                let daemon = daemon.clone();
                let reloaded = tokio::task::spawn_blocking(move || daemon.reload()).await;
                match reloaded.map_err(Failure::failed)? {
                    Ok(reloaded) => tracing::info!(?reloaded, "reloaded the configuration"),
                    Err(error) => tracing::error!(%error, "cannot reload the configuration"),
                }
            }
            _ = look_at_lua.tick(), if forwarder.has_scripts() => {
                let looked = forwarder.clone();
                tokio::task::spawn_blocking(move || looked.supervise_lua()).await.map_err(Failure::failed)??;
            }
            () = forwarder.links.notified() => follow(forwarder).await?,
            _ = look.tick() => {
                let looked = forwarder.clone();
                tokio::task::spawn_blocking(move || looked.supervise()).await.map_err(Failure::failed)??;
                if forwarder.has_refused() {
                    follow(forwarder).await?;
                }
            }
        }
    }
}
