//! The thread that serves XFRM messages, and removes SAs at their hard lifetimes.
//!
//! A request is answered when workers have carried it out: an IKE daemon that has added an SA can tell the peer to use it.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bm_cli::Failure;
use bm_forward::{Moved, Wanted};
use bm_graph::clock_ns;
use bm_xfrm::{Answer, Context, Database, Now, Server};

use super::Ipsec;
use crate::lock;
use crate::random;

/// How often to check lifetimes and packets without an SA.
const CHECK_EVERY: Duration = Duration::from_millis(100);
/// Workers that hang delay each change by half a second, and a program may send many at once.
const SILENT_MAX: Duration = Duration::from_secs(30);
/// At most one line in the log about rejected programs in this time.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// The thread; it ends on drop.
pub struct XfrmThread {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl XfrmThread {
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
        let thread = std::thread::Builder::new().name("bm-xfrm".into()).spawn(move || {
            let mut serving = XfrmLoop { server, database: Database::default(), ipsec, logged: None };
            if let Err(error) = serving.run(&end) {
                tracing::error!("{} is not served any more: {error}; restart the daemon", path.display());
            }
        });
        let thread = thread.map_err(failed)?;
        Ok(Self { ends, thread: Some(thread) })
    }
}

impl Drop for XfrmThread {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        // It checks `ends` often.
        drop(self.thread.take().map(JoinHandle::join));
    }
}

struct XfrmLoop {
    server: Server,
    database: Database,
    ipsec: Arc<Mutex<Ipsec>>,
    logged: Option<Instant>,
}

impl XfrmLoop {
    fn run(&mut self, ends: &AtomicBool) -> io::Result<()> {
        let _watched = bm_sys::heartbeat::watch(SILENT_MAX);
        let mut checked = Instant::now();
        while !ends.load(Ordering::Relaxed) {
            bm_sys::heartbeat::beat();
            let Self { server, database, ipsec, .. } = self;
            let rejected = server.serve(CHECK_EVERY, |client, raw| {
                bm_sys::heartbeat::beat();
                done(ipsec, in_context(ipsec, |context| database.handle(client, raw, context)))
            })?;
            let now = Instant::now();
            if rejected != bm_xfrm::RejectedClients::default()
                && self.logged.is_none_or(|at| now.duration_since(at) >= LOG_EVERY)
            {
                self.logged = Some(now);
                tracing::warn!(
                    "xfrm_socket: {} programs were refused (only root may connect, and at most 64 at a time), {} were disconnected because they did not read their messages",
                    rejected.refused,
                    rejected.too_slow
                );
            }
            if now.duration_since(checked) >= CHECK_EVERY {
                checked = now;
                self.check();
            }
        }
        Ok(())
    }

    /// Ends what has reached its lifetime, asks for SAs that packets need, and says which peers have moved.
    fn check(&mut self) {
        let Self { server, database, ipsec, .. } = self;
        let expired = done(ipsec, in_context(ipsec, |context| database.expire(context)));
        server.send_events(expired.events);
        let mut locked = lock(ipsec);
        locked.settle();
        let (wanted, moved) = (locked.wanted(), locked.moved());
        drop(locked);
        for Moved { id, source, port } in moved {
            let mapping = in_context(ipsec, |context| database.mapping(id, (source, port), context));
            server.send_events(mapping.events);
        }
        for Wanted { template, packet, worker } in wanted {
            // Which SA a worker gets follows from the CPU number, and so does the number from the worker.
            let acquired = in_context(ipsec, |context| database.acquire(template, worker, &packet, context));
            server.send_events(acquired.events);
        }
    }
}

/// Carries out the changes of a request on workers.
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
    act(&Context {
        now,
        usage: &|id| ipsec.usage(id),
        is_local: &is_local,
        is_configured: &|id| ipsec.is_configured(id),
        has_room: &|new, gone| ipsec.has_room(new, gone),
        random: &random,
    })
}

/// Whether this machine has an address. A socket can be bound to others, too (`ip_nonlocal_bind`).
fn is_local(address: IpAddr) -> bool {
    match bm_netlink::list::addresses() {
        Ok(addresses) => addresses.iter().any(|own| own.local == address),
        Err(error) => {
            tracing::warn!(
                "cannot list the addresses of this machine, so an SA may get a wrong direction: {error}"
            );
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_api::IpsecPolicy;
    use bm_control::config::LeftToLinux;
    use bm_xfrm::{Client, Messages};

    const COUNT: u32 = 10_000;
    const ADD: u16 = 0x13;
    const DELETE: u16 = 0x14;

    /// A message with an acknowledgement.
    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let length = (16 + body.len()) as u32;
        [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &[5, 0], &[0; 8], body].concat()
    }

    /// `struct xfrm_selector` of 10.N.N.0/24 to 172.16.0.0/12.
    fn selector(number: u32) -> [u8; 56] {
        let mut selector = [0; 56];
        selector[..2].copy_from_slice(&[172, 16]);
        selector[16..20].copy_from_slice(&(0x0a00_0000 | number << 8).to_be_bytes());
        selector[40..42].copy_from_slice(&2u16.to_ne_bytes());
        selector[42..44].copy_from_slice(&[12, 24]);
        selector
    }

    /// An outbound policy that discards: no limits, one priority for all.
    fn add(number: u32) -> Vec<u8> {
        let mut body = vec![0; 168];
        body[..56].copy_from_slice(&selector(number));
        body[56..88].fill(0xff);
        body[152..156].copy_from_slice(&7u32.to_ne_bytes());
        body[160..162].copy_from_slice(&[1, 1]);
        message(ADD, &body)
    }

    fn delete(number: u32) -> Vec<u8> {
        message(DELETE, &[&selector(number)[..], &[0; 4], &[1, 0, 0, 0]].concat())
    }

    /// Without what decision 60 has, this takes many minutes.
    #[test]
    fn ten_thousand_policies_come_and_go_one_by_one() {
        let mut ipsec = Ipsec::default();
        ipsec.config.left_to_linux = LeftToLinux::Forward;
        let (ipsec, mut database, mut client) = (Mutex::new(ipsec), Database::default(), Client::default());
        let mut ask = |bytes: &[u8]| {
            let raw = Messages(bytes).next().expect("a message");
            let answer =
                done(&ipsec, in_context(&ipsec, |context| database.handle(&mut client, &raw, context)));
            assert_eq!(answer.replies[0][16..20], [0; 4], "it is carried out");
        };
        (0..COUNT).for_each(|number| ask(&add(number)));
        let shown = |at: usize| {
            let all = lock(&ipsec).policies().policies;
            (all.len(), all.get(at).map(|IpsecPolicy { source, .. }| source.clone()))
        };
        assert_eq!(shown(259), (10_000, Some("10.1.3.0/24".into())), "in their order");
        assert_eq!(lock(&ipsec).policies.all().len(), 10_000);
        (0..COUNT - 1).rev().for_each(|number| ask(&delete(number)));
        assert_eq!(shown(0), (1, Some("10.39.15.0/24".into())));
        assert_eq!(lock(&ipsec).policies.all().len(), 1);
    }
}
