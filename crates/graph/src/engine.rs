//! The engine: runs a network on one worker.

use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use std::time::Instant;

use bm_frame::Freelist;
use bm_link::{Link, LinkStats};

use crate::app::{App, Io};
use crate::network::{Network, NetworkError};

/// An app with the indices of its links.
struct ConnectedApp {
    name: String,
    app: Box<dyn App>,
    inputs: Vec<usize>,
    outputs: Vec<usize>,
}

/// The start of the clock of all engines of the process, so that the time stamps of one are valid for another.
fn epoch() -> Instant {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    *EPOCH.get_or_init(Instant::now)
}

/// Nanoseconds by the clock of all engines of the process ([`Io::now_ns`]).
pub fn clock_ns() -> u64 {
    epoch().elapsed().as_nanos() as u64
}

/// A link and its counters.
#[derive(Clone, Debug)]
pub struct LinkReport {
    /// As `app.output -> app.input`.
    pub name: String,
    /// Its counters.
    pub stats: LinkStats,
    /// The number of frames waiting in it.
    pub waiting: usize,
}

/// The links that end at an app: their indices, and the app's names for them.
fn ends<'a>(app: &str, all: impl Iterator<Item = &'a (String, String)>) -> (Vec<usize>, Vec<String>) {
    let at_app = all.enumerate().filter(|(_, end)| end.0 == app);
    at_app.map(|(index, end)| (index, end.1.clone())).unzip()
}

/// Runs a network on the calling thread.
pub struct Engine {
    apps: Vec<ConnectedApp>,
    links: Vec<Link>,
    names: Vec<String>,
    /// Indices of `apps`, in the order of `push`.
    order: Vec<usize>,
    frames: Freelist,
    started: Instant,
    /// When the current breath, or the last one, began.
    now_ns: u64,
    breaths: u64,
    /// Frames moved over links up to the end of the last breath; none move between breaths.
    moved: u64,
}

impl Engine {
    /// Connects the apps with their links and announces the links' names to each.
    ///
    /// # Errors
    /// As [`Network::check`].
    pub fn new(network: Network, frames: Freelist) -> Result<Self, NetworkError> {
        network.check()?;
        let order = network.push_order();
        let mut apps = Vec::with_capacity(network.apps.len());
        for (name, mut app) in network.apps {
            let (inputs, input_names) = ends(&name, network.links.iter().map(|link| &link.to));
            let (outputs, output_names) = ends(&name, network.links.iter().map(|link| &link.from));
            app.connect(&input_names, &output_names);
            apps.push(ConnectedApp { name, app, inputs, outputs });
        }
        let mut links: Vec<_> = network.links.iter().map(|_| Link::new()).collect();
        for connected in
            apps.iter_mut().filter_map(|connected| connected.app.takes_mbufs().then_some(connected))
        {
            connected.inputs.iter().for_each(|&input| links[input] = Link::with_mbufs());
        }
        Ok(Self {
            apps,
            links,
            names: network.links.iter().map(ToString::to_string).collect(),
            order,
            frames,
            started: epoch(),
            now_ns: 0,
            breaths: 0,
            moved: 0,
        })
    }

    /// One breath: every app pulls, then every app pushes. Returns how many frames moved over links.
    pub fn breathe(&mut self) -> u64 {
        self.breathe_with(|_| {})
    }

    /// Like [`breathe`](Self::breathe); adds to `app_ns` the nanoseconds in each app, in the order of
    /// [`apps`](Self::apps).
    pub(crate) fn breathe_timed(&mut self, app_ns: &mut [u64]) -> u64 {
        let mut before = Instant::now();
        self.breathe_with(|at| {
            let now = Instant::now();
            let ns = now.saturating_duration_since(std::mem::replace(&mut before, now)).as_nanos() as u64;
            if let Some(sum) = app_ns.get_mut(at) {
                *sum += ns;
            }
        })
    }

    /// A breath; `after` is called with the index of each app that has pulled or pushed.
    #[inline(always)]
    fn breathe_with(&mut self, mut after: impl FnMut(usize)) -> u64 {
        let now_ns = self.started.elapsed().as_nanos() as u64;
        self.now_ns = now_ns;
        for at in 0..self.apps.len() {
            Self::with(&mut self.apps[at], &mut self.links, &mut self.frames, now_ns, |app, io| app.pull(io));
            after(at);
        }
        for &at in &self.order {
            Self::with(&mut self.apps[at], &mut self.links, &mut self.frames, now_ns, |app, io| app.push(io));
            after(at);
        }
        self.breaths += 1;
        let moved = self.links.iter().map(Link::moves).sum();
        moved - std::mem::replace(&mut self.moved, moved)
    }

    fn with(
        connected: &mut ConnectedApp,
        links: &mut [Link],
        frames: &mut Freelist,
        now_ns: u64,
        job: impl FnOnce(&mut dyn App, &mut Io<'_>),
    ) {
        let ConnectedApp { app, inputs, outputs, .. } = connected;
        job(app.as_mut(), &mut Io { links, inputs, outputs, frames, now_ns });
    }

    /// When the last breath began.
    pub fn began(&self) -> Instant {
        self.started + std::time::Duration::from_nanos(self.now_ns)
    }

    /// The number of breaths so far.
    pub fn breaths(&self) -> u64 {
        self.breaths
    }

    /// Names of the apps, in the order they were added.
    pub fn apps(&self) -> impl Iterator<Item = &str> {
        self.apps.iter().map(|connected| connected.name.as_str())
    }

    /// All links with their counters.
    pub fn links(&self) -> impl Iterator<Item = LinkReport> + '_ {
        self.names.iter().zip(&self.links).map(|(name, link)| LinkReport {
            name: name.clone(),
            stats: link.stats(),
            waiting: link.readable(),
        })
    }

    /// The counters of all links, in the order of [`links`](Self::links), without allocating.
    pub fn link_stats(&self) -> impl Iterator<Item = LinkStats> + '_ {
        self.links.iter().map(Link::stats)
    }

    /// Passes on descriptors that become readable when an app has something to pull, or something else to do.
    pub fn wait_on<'a>(&'a self, add: &mut dyn FnMut(BorrowedFd<'a>)) {
        for connected in &self.apps {
            connected.app.wait_on().map(&mut *add);
            connected.app.wakeups(add);
        }
    }

    /// Whether an app must be polled: nothing wakes a worker for it.
    pub(crate) fn must_poll(&self) -> bool {
        self.apps.iter().any(|connected| connected.app.must_be_polled())
    }

    /// To be called before sleeping. `false` if frames wait on a link or an app must not sleep.
    pub fn before_sleep(&mut self) -> bool {
        let links_empty = self.links.iter().all(Link::is_empty);
        // Every app is called, so that each can expect `after_sleep` whatever another returns.
        self.apps.iter_mut().fold(links_empty, |may, connected| connected.app.before_sleep() && may)
    }

    /// To be called after sleeping, or after [`before_sleep`](Self::before_sleep) returned false.
    pub fn after_sleep(&mut self) {
        self.apps.iter_mut().for_each(|connected| connected.app.after_sleep());
    }

    /// Ends the run: apps free the frames that they hold, then links are emptied. Returns how many frames were still
    /// on links and in no app's account: those on links to an app that does not read its inputs at the end.
    pub fn stop(&mut self) -> usize {
        let now_ns = self.started.elapsed().as_nanos() as u64;
        for connected in &mut self.apps {
            Self::with(connected, &mut self.links, &mut self.frames, now_ns, |app, io| app.stop(io));
        }
        let mut left = 0;
        for link in &mut self.links {
            while let Some(frame) = link.receive() {
                self.frames.free(frame);
                left += 1;
            }
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PortApp;
    use bm_frame::FramePool;
    use bm_port::{MemoryPort, Wire};
    use bm_stats::{Account, Registry, Scope};

    /// Sends every frame from input to output, the first byte raised by one.
    struct Raise;
    impl App for Raise {
        fn push(&mut self, io: &mut Io<'_>) {
            while let Some(mut frame) = io.receive(0) {
                frame.data_mut()[0] += 1;
                if let Err(frame) = io.transmit(0, frame) {
                    io.frames.free(frame);
                }
            }
        }
    }

    #[test]
    fn a_breath_carries_frames_from_port_to_port() {
        let frame_pool = FramePool::new(256, 2048).unwrap();
        let registry = Registry::anonymous(2048).unwrap();
        let (left, right) = (Wire::new(), Wire::new());
        let mut network = Network::new();
        let account = |name: String| Account::open(&registry, Scope::Other(&name)).unwrap();
        for (name, wire) in [("left", &left), ("right", &right)] {
            let port = Box::new(MemoryPort::new(wire.clone()));
            let (receive, transmit) =
                (account(format!("{name}/receive")), account(format!("{name}/transmit")));
            network.app(name, Box::new(PortApp::new(port, receive, transmit))).unwrap();
        }
        network.app("raise", Box::new(Raise)).unwrap();
        network.link("left.output -> raise.input").unwrap();
        network.link("raise.output -> right.input").unwrap();
        let mut engine = Engine::new(network, Freelist::new(frame_pool.clone(), 128)).unwrap();
        (0..100).for_each(|n| left.send(&[n; 60]));
        assert_eq!(engine.breathe(), 400);
        assert_eq!(
            right.take().iter().map(|packet| packet[0]).collect::<Vec<_>>(),
            (1..=100).collect::<Vec<_>>()
        );
        assert_eq!(engine.breathe(), 0);
        assert_eq!(engine.links().next().unwrap().stats.rxbytes, 6000);
        left.send(&[0; 60]);
        assert_eq!(engine.stop(), 0);
        drop(engine);
        assert_eq!(frame_pool.available(), 256);
        let counters = registry.counters();
        let counted = |name: &str| counters.iter().find(|(other, _)| other == name).unwrap().1;
        assert_eq!((counted("left/receive/received"), counted("left/receive/passed")), (100, 100));
        assert_eq!((counted("right/transmit/received"), counted("right/transmit/sent")), (100, 100));
    }
}
