//! A switch with a thread that keeps it up to date: interfaces come and go, MAC addresses age.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use bm_netlink::link::{self, LinkEvents};
use bm_sys::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::error::SwitchError;
use crate::interface;
use crate::settings::Settings;
use crate::switch::Switch;

/// How often to check things for which Linux sends no events.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long one round may take, with hundreds of interfaces to attach to.
const SILENT_MAX: Duration = Duration::from_secs(10);
/// How long to collect interface events before handling them: interfaces often come in groups.
const GATHER: Duration = Duration::from_millis(10);

/// A running switch. It ends when this is dropped, unless [`Switch::keep`] was called.
pub struct Service {
    switch: Arc<Mutex<Switch>>,
    /// Closed at the end, which wakes the thread.
    ends: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// Starts a switch in this thread's network namespace; its ports forward when this returns.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn start(settings: Settings) -> Result<Self, SwitchError> {
        let failed = bm_bpf::Error::system("subscribing to interface events");
        // Subscribed before the first listing, so that no interface is missed in between.
        let mut heard = LinkEvents::listen().map_err(|error| failed(error.into()))?;
        let (ends, end) = UnixStream::pair().map_err(&failed)?;
        let switch = Arc::new(Mutex::new(Switch::open(settings)?));
        let shared = Arc::clone(&switch);
        let thread = std::thread::Builder::new()
            .name("bm-switch".into())
            .spawn(move || run(&shared, &mut heard, &end))
            .map_err(&failed)?;
        Ok(Self { switch, ends: Some(ends), thread: Some(thread) })
    }

    /// Replaces this switch by one with other settings. The new programs take over each port and its MAC addresses,
    /// so no frame is lost; if the programs are not pinned there is an interruption, which is logged.
    ///
    /// # Errors
    /// The kernel's error. This switch then keeps running without the daemon, so that it can be taken over by
    /// one started with its settings.
    pub fn replace(self, settings: Settings) -> Result<Self, SwitchError> {
        let own = {
            let mut switch = self.switch();
            if let Err(error) = switch.keep() {
                tracing::warn!("switch {} forwards nothing while it restarts: {error}", settings.name);
            }
            switch.settings().own_port()
        };
        drop(self);
        let service = Self::start(settings)?;
        let wanted = service.switch().settings().own_port();
        if let Some(ifindex) =
            own.filter(|own| wanted.as_ref() != Some(own)).and_then(|own| interface::index(&own))
        {
            let failed = bm_bpf::Error::system("removing the interface that the switch had");
            link::remove(ifindex).map_err(|error| failed(error.into()))?;
        }
        Ok(service)
    }

    /// The switch, for queries. Frames are forwarded meanwhile; new interfaces have to wait.
    pub fn switch(&self) -> MutexGuard<'_, Switch> {
        self.switch.lock()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.ends.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by itself.
            let _panicked = thread.join();
        }
    }
}

fn run(switch: &Mutex<Switch>, heard: &mut LinkEvents, end: &UnixStream) {
    let _watched = bm_sys::heartbeat::watch(SILENT_MAX);
    let mut follower = Follower::default();
    loop {
        bm_sys::heartbeat::beat();
        let wake = wait(heard, end);
        if wake == Wake::End {
            return;
        }
        let news = heard.drain();
        if news {
            std::thread::sleep(GATHER);
            heard.drain();
        }
        follower.step(news, || switch.lock().reconcile());
        switch.lock().maintain();
    }
}

/// Whether the switch has handled all interface events.
#[derive(Default)]
struct Follower {
    /// The last attempt failed and has to be repeated, because Linux does not repeat its events.
    behind: bool,
}

impl Follower {
    fn step(&mut self, news: bool, reconcile: impl FnOnce() -> Result<(), SwitchError>) {
        if !news && !self.behind {
            return;
        }
        match reconcile() {
            Ok(()) if self.behind => {
                self.behind = false;
                tracing::info!("the interfaces of the switch can be listed again");
            }
            Ok(()) => {}
            // Logged once, not on each attempt.
            Err(error) if !self.behind => {
                self.behind = true;
                tracing::error!(%error, "the interfaces of the switch cannot be listed; retrying every second");
            }
            Err(_) => {}
        }
    }
}

#[derive(PartialEq, Eq)]
enum Wake {
    Something,
    End,
}

/// Waits until an interface changes, a check is due, or the switch is to end.
fn wait(heard: &LinkEvents, end: &UnixStream) -> Wake {
    let mut both = [heard.as_fd(), end.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    let wait = Timespec { tv_sec: LOOK_EVERY.as_secs() as _, tv_nsec: LOOK_EVERY.subsec_nanos() as _ };
    let ready = poll(&mut both, Some(&wait));
    if ready.is_err_and(|error| error != Errno::INTR) {
        // The wait failed; sleep instead of spinning.
        std::thread::sleep(LOOK_EVERY);
    }
    if ready.is_ok() && !both[1].revents().is_empty() { Wake::End } else { Wake::Something }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_retried_without_events() {
        let mut follower = Follower::default();
        let mut tried = |news, done: bool| {
            let mut tried = false;
            follower.step(news, || {
                tried = true;
                if done { Ok(()) } else { Err(SwitchError::ManyPorts) }
            });
            tried
        };
        assert!(!tried(false, true), "nothing to do");
        assert!(tried(true, false));
        assert!(tried(false, false));
        assert!(tried(false, true));
        assert!(!tried(false, true), "it is done");
        assert!(tried(true, true));
    }
}
