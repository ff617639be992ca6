//! The thread that serves XFRM messages, and ends SAs at their lifetimes.
//!
//! An answer goes out when workers have carried out what was asked for: an IKE daemon that has added an SA can tell the
//! peer to use it.

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bm_forward::Wanted;
use bm_graph::clock_ns;
use bm_ipsec::SaId;
use bm_xfrm::{Answer, Context, Database, Now, Server, Usage};

use super::Ipsec;
use crate::daemon::lock::lock;
use crate::daemon::random::random;
use crate::failure::Failure;

/// How often lifetimes are compared, and packets without an SA looked for.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Workers that hang delay each change by half a second, and a program may send many at once.
const SILENT_MAX: Duration = Duration::from_secs(30);
/// At most one line in the log about strangers and slow programs in this time.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// The thread; it ends on drop.
pub struct Served {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    /// Listens at `path`.
    pub fn start(path: &Path, ipsec: Arc<Mutex<Ipsec>>) -> Result<Self, Failure> {
        let failed = |error: io::Error| {
            Failure::Failed(format!(
                "cannot listen at {}: {error}; set xfrm_socket in [ipsec] to another path",
                path.display()
            ))
        };
        let server = Server::listen(path).map_err(failed)?;
        let ends = Arc::new(AtomicBool::new(false));
        let (path, end) = (PathBuf::from(path), ends.clone());
        let run = move || {
            let mut serving = Serving { server, database: Database::default(), ipsec, logged: None };
            if let Err(error) = serving.run(&end) {
                tracing::error!("{} is not served any more: {error}; restart the daemon", path.display());
            }
        };
        let thread = std::thread::Builder::new().name("bm-xfrm".into()).spawn(run).map_err(failed)?;
        Ok(Self { ends, thread: Some(thread) })
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        // It looks often.
        drop(self.thread.take().map(JoinHandle::join));
    }
}

struct Serving {
    server: Server,
    database: Database,
    ipsec: Arc<Mutex<Ipsec>>,
    logged: Option<Instant>,
}

impl Serving {
    fn run(&mut self, ends: &AtomicBool) -> io::Result<()> {
        let _watched = bm_heartbeat::watch(SILENT_MAX);
        let mut looked = Instant::now();
        while !ends.load(Ordering::Relaxed) {
            bm_heartbeat::beat();
            let Self { server, database, ipsec, .. } = self;
            let woken = server.serve(LOOK_EVERY, |client, raw| {
                bm_heartbeat::beat();
                done(ipsec, in_context(ipsec, |context| database.handle(client, raw, context)))
            })?;
            let now = Instant::now();
            if woken != bm_xfrm::Woken::default()
                && self.logged.is_none_or(|at| now.duration_since(at) >= LOG_EVERY)
            {
                self.logged = Some(now);
                tracing::warn!(
                    "xfrm_socket: {} programs were refused (only root may connect, and at most 64 at a time), {} were disconnected since they did not read",
                    woken.strangers,
                    woken.too_slow
                );
            }
            if now.duration_since(looked) >= LOOK_EVERY {
                looked = now;
                self.look();
            }
        }
        Ok(())
    }

    /// Ends what has reached its lifetime, and asks for SAs that packets need.
    fn look(&mut self) {
        let Self { server, database, ipsec, .. } = self;
        let expired = done(ipsec, in_context(ipsec, |context| database.expire(context)));
        server.tell(expired.events);
        let wanted = lock(ipsec).wanted();
        for Wanted { template, packet } in wanted {
            let acquired = in_context(ipsec, |context| database.acquire(template, &packet, context));
            server.tell(acquired.events);
        }
    }
}

/// Has workers carry out what follows from a request.
fn done(ipsec: &Mutex<Ipsec>, mut answer: Answer) -> Answer {
    if !answer.changes.is_empty() {
        lock(ipsec).apply(std::mem::take(&mut answer.changes));
    }
    answer
}

fn in_context(ipsec: &Mutex<Ipsec>, act: impl FnOnce(&Context<'_>) -> Answer) -> Answer {
    let epoch_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let now = Now { epoch_s, ns: clock_ns() };
    let ipsec = lock(ipsec);
    let usage = |id: SaId| -> Usage { ipsec.usage(id) };
    act(&Context { now, usage: &usage, is_local: &is_local, random: &random })
}

/// Whether this machine has an address: only then can a socket be bound to it.
fn is_local(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}
