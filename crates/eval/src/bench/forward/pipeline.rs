//! The router divided over two cores, as what RouteBricks (section 4.2) calls a pipeline, compared with routers that
//! run to completion on every core.
//!
//! ```text
//! receive:  core A  left, right ──ring a port──> core B  router -> left, right      receiving | all else
//!             ^                                                      │
//!             └────────────── the device: a ring a port ─────────────┘
//! router:   core A  left, right ──ring a port──> core B  router     ports | router
//!             ^                                            │
//!             └────────────────ring a port─────────────────┘
//! ```
//!
//! Rings carry bursts: each side reads the other's index once per burst, and publishes its own once per burst.

use std::sync::Arc;

use bm_frame::{BURST, Burst, Frame, Freelist};
use bm_graph::{App, Io, PortApp};
use bm_link::{Consumer, Producer, channel};
use bm_port::Port;

use super::bed::{Batching, Bed, FRAMES, Making, PORTS};
use super::loop_port::{Sample, renew_all};
use super::packet::{FRAME, Packet, Template, port_mac};
use super::running::RunningEngine;
use crate::bench::{BenchError, SMALLEST};

/// Number of places in each ring: all frames fit, so none is ever refused.
const PLACES: usize = FRAMES.next_power_of_two();

/// Where the router is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Boundary {
    /// Receiving on one core, routing and sending on the other.
    Receive,
    /// Ports on one core, the router on the other.
    Router,
}

impl Bed {
    /// A router divided into two engines for two cores, the ports' engine first.
    pub(super) fn pipeline<A: Packet>(
        &self,
        destinations: &Arc<[A]>,
        cut: Boundary,
        first: Making,
        second: Making,
    ) -> Result<[RunningEngine; 2], BenchError> {
        match cut {
            Boundary::Receive => self.cut_behind_receiving(destinations, first, second),
            Boundary::Router => self.cut_around_router(destinations, first, second),
        }
    }

    fn cut_behind_receiving<A: Packet>(
        &self,
        destinations: &Arc<[A]>,
        mut front: Making,
        mut back: Making,
    ) -> Result<[RunningEngine; 2], BenchError> {
        let (leave, enter) = crossing();
        front.app("leave", Box::new(leave))?;
        back.app("enter", Box::new(enter))?;
        let template = A::template(port_mac(0), FRAME as u16);
        let arrivals: Arc<[_]> = destinations.iter().map(|&to| A::arrival(&template, to)).collect();
        for (port, name) in PORTS.into_iter().enumerate() {
            let (mut sending, receiving) = channel(PLACES);
            let template = A::template(port_mac(port), FRAME as u16);
            front.fill(&mut sending, template.bytes())?;
            let next = front.begin(port, arrivals.len());
            let inlet = Inlet::<A> { ring: receiving, template, arrivals: arrivals.clone(), next };
            let outlet = Outlet { ring: sending, port, sample: back.sample.clone() };
            front.port(name, Box::new(inlet))?;
            back.port(name, Box::new(outlet))?;
            front.link(&format!("{name}.output -> leave.{name}"))?;
        }
        let slow = self.router_app(&mut back)?;
        for name in PORTS {
            back.link(&format!("enter.{name} -> router.{name}"))?;
            back.link(&format!("router.{name} -> {name}.router"))?;
            back.link(&format!("slow.{name} -> {name}.slow"))?;
        }
        Ok([front.running(None)?, back.running(Some(slow))?])
    }

    fn cut_around_router<A: Packet>(
        &self,
        destinations: &Arc<[A]>,
        mut ports: Making,
        mut routing: Making,
    ) -> Result<[RunningEngine; 2], BenchError> {
        ports.ports(destinations, SMALLEST, Batching::default())?;
        let ((there, arriving), (back, returning)) = (crossing(), crossing());
        ports.app("leave", Box::new(there))?;
        ports.app("enter", Box::new(returning))?;
        routing.app("enter", Box::new(arriving))?;
        routing.app("leave", Box::new(back))?;
        let slow = self.router_app(&mut routing)?;
        for name in PORTS {
            ports.link(&format!("{name}.output -> leave.{name}"))?;
            ports.link(&format!("enter.{name} -> {name}.router"))?;
            routing.link(&format!("enter.{name} -> router.{name}"))?;
            routing.link(&format!("router.{name} -> leave.{name}"))?;
        }
        Ok([ports.running(None)?, routing.running(Some(slow))?])
    }
}

impl Making {
    /// Puts a port's share of the frames into the ring that it receives from.
    fn fill(&mut self, ring: &mut Producer<Frame>, bytes: &[u8]) -> Result<(), BenchError> {
        for _ in 0..FRAMES / PORTS.len() {
            let frame = self.frames.allocate_with(bytes);
            let frame = frame.ok_or_else(|| BenchError::build("frame memory")("too few slots"))?;
            if let Err(frame) = ring.push(frame) {
                self.frames.free(frame);
            }
        }
        Ok(())
    }

    fn port(&mut self, name: &str, port: Box<dyn Port>) -> Result<(), BenchError> {
        let received = self.account(&format!("port/{name}/receive"))?;
        let sent = self.watched(&format!("port/{name}/transmit"))?;
        self.app(name, Box::new(PortApp::new(port, received, sent)))
    }
}

/// Both ends of one ring for each port: the app that puts frames in and the one that takes them out. Their links are
/// named after the ports.
fn crossing() -> (Leave, Enter) {
    let (producers, consumers) = PORTS.map(|_| channel(PLACES)).into_iter().unzip();
    let enter = Enter { rings: consumers, outputs: Vec::new(), burst: Burst::new() };
    (Leave { rings: producers, inputs: Vec::new(), burst: Burst::new() }, enter)
}

/// For each link, the port that it is named after.
fn ports_of(links: &[String]) -> Vec<usize> {
    links.iter().filter_map(|name| PORTS.iter().position(|port| port == name)).collect()
}

/// Puts frames from links into rings to another core.
struct Leave {
    rings: Vec<Producer<Frame>>,
    /// For each input, its port.
    inputs: Vec<usize>,
    burst: Burst,
}

impl App for Leave {
    fn connect(&mut self, inputs: &[String], _outputs: &[String]) {
        self.inputs = ports_of(inputs);
    }

    fn push(&mut self, io: &mut Io<'_>) {
        for (input, &port) in self.inputs.iter().enumerate() {
            while io.receive_burst(input, &mut self.burst) > 0 {
                // All frames there are fit in one ring.
                self.rings[port].push_some(self.burst.places_mut());
                debug_assert_eq!(self.burst.frames(), 0);
                self.burst.reset();
            }
        }
    }

    fn stop(&mut self, io: &mut Io<'_>) {
        for input in 0..self.inputs.len() {
            while let Some(frame) = io.receive(input) {
                io.frames.free(frame);
            }
        }
    }
}

/// Takes frames out of rings from another core and puts them on links.
struct Enter {
    rings: Vec<Consumer<Frame>>,
    /// For each output, its port.
    outputs: Vec<usize>,
    burst: Burst,
}

impl App for Enter {
    fn connect(&mut self, _inputs: &[String], outputs: &[String]) {
        self.outputs = ports_of(outputs);
    }

    fn pull(&mut self, io: &mut Io<'_>) {
        for (output, &port) in self.outputs.iter().enumerate() {
            if io.writable(output) < BURST {
                continue;
            }
            let count = self.rings[port].pop_some(self.burst.vacant_mut());
            self.burst.occupy(count);
            if count > 0 {
                io.transmit_burst(output, &mut self.burst);
            }
        }
    }

    fn stop(&mut self, io: &mut Io<'_>) {
        for ring in &mut self.rings {
            std::iter::from_fn(|| ring.pop()).for_each(|frame| io.frames.free(frame));
        }
    }
}

/// The receiving side of a device whose sending side is on another core.
struct Inlet<A: Packet> {
    ring: Consumer<Frame>,
    template: Template,
    arrivals: Arc<[A::Arrival]>,
    next: usize,
}

impl<A: Packet> Port for Inlet<A> {
    fn receive(&mut self, burst: &mut Burst, _frames: &mut Freelist) {
        let to = burst.vacant_mut();
        let next = self.next % self.arrivals.len();
        let most = to.len().min(self.arrivals.len() - next);
        let count = self.ring.pop_some(&mut to[..most]);
        renew_all::<A>(&self.template, &mut to[..count], &self.arrivals[next..next + count], FRAME);
        self.next = next + count;
        burst.occupy(count);
    }

    fn transmit(&mut self, _burst: &mut Burst, _frames: &mut Freelist) -> usize {
        0
    }

    fn close(&mut self, frames: &mut Freelist) {
        std::iter::from_fn(|| self.ring.pop()).for_each(|frame| frames.free(frame));
    }
}

/// Its sending side.
struct Outlet {
    ring: Producer<Frame>,
    port: usize,
    sample: Arc<Sample>,
}

impl Port for Outlet {
    fn receive(&mut self, _burst: &mut Burst, _frames: &mut Freelist) {}

    fn transmit(&mut self, burst: &mut Burst, _frames: &mut Freelist) -> usize {
        self.sample.look(self.port, burst.places());
        self.ring.push_some(burst.places_mut());
        if burst.frames() == 0 {
            burst.reset();
        }
        0
    }

    fn close(&mut self, _frames: &mut Freelist) {}
}
