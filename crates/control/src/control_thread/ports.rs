//! Adds and removes ports and changes their interfaces while everything else keeps running.

use bm_api::Error;
use bm_fastpath::{AttachChoice, AttachType, Attachment, Counters};
use bm_netlink::Kind;
use bm_port::{NoSteering, Steering};

use super::control::Control;
use super::{ControlPort, LinkNow};
use crate::config::Config;

/// Hardware type of Ethernet (`ARPHRD_ETHER`).
const ETHERNET: u16 = 1;

impl Control {
    /// Replaces the ports and the configuration. Ports of the kernel path forward at once if they were activated by
    /// [`Self::set_active`]; ports of workers take no packets before another call of it.
    ///
    /// # Errors
    /// If the new tables found no memory.
    pub fn set_ports(&mut self, ports: Vec<ControlPort>, config: &Config) -> Result<(), Error> {
        self.workers_rest = true;
        self.ports = ports;
        self.name_ports();
        self.reconfigure(config)
    }

    /// Sets the interface of a port, by its index, or removes it.
    ///
    /// # Errors
    /// If the new tables found no memory.
    pub fn set_port(
        &mut self,
        port: usize,
        ifindex: Option<u32>,
        steering: Box<dyn Steering>,
    ) -> Result<(), Error> {
        let Some(port) = self.ports.get_mut(port) else { return Ok(()) };
        self.tally.add(&port.name, Counters::held(port.steering.held(), 0));
        (port.ifindex, port.steering) = (ifindex, steering);
        self.ports_changed()
    }

    /// Removes the interfaces of all ports of workers, whose packets Linux then gets, before the workers end. The kernel
    /// path keeps forwarding.
    ///
    /// # Errors
    /// If the new tables found no memory.
    pub fn release_worker_ports(&mut self) -> Result<(), Error> {
        self.workers_rest = true;
        self.steer();
        for port in self.ports.iter_mut().filter(|port| !port.in_kernel) {
            (port.ifindex, port.steering) = (None, Box::new(NoSteering));
        }
        self.ports_changed()
    }

    fn ports_changed(&mut self) -> Result<(), Error> {
        self.name_ports();
        self.carry_out()
    }

    /// Tells the compiler which interfaces the ports have now.
    pub(super) fn name_ports(&mut self) {
        self.last_steering = None;
        let ports = self.ports.iter().map(|port| port.ifindex);
        self.compiler.set_ports(ports.chain(self.fabric_links.iter().copied()).collect());
        let mut by_workers: Vec<bool> = self.ports.iter().map(|port| !port.in_kernel).collect();
        by_workers.extend(self.fabric_links.iter().map(|_| false));
        by_workers.extend(self.compiler.has_ipsec().then_some(true));
        self.compiler.set_worker_ports(by_workers);
    }

    /// Looks up the interfaces of fabric links. They come after the ports, in the order of the configuration, which is
    /// also that of workers: next hops may name them, and nothing is forwarded from them.
    pub(super) fn find_fabric(&mut self) {
        let mirror = self.watch.mirror();
        let links = self.fabric.iter().map(|name| mirror.link_named(name));
        let found: Vec<_> = links.map(|link| link.map(|link| link.ifindex)).collect();
        if found != self.fabric_links {
            self.fabric_links = found;
            self.name_ports();
        }
    }

    /// The links with these names; `None` for those that do not exist.
    pub fn links(&self, names: &[String]) -> Vec<Option<LinkNow>> {
        names.iter().map(|name| self.link_now(name)).collect()
    }

    fn link_now(&self, name: &str) -> Option<LinkNow> {
        let link = self.watch.mirror().link_named(name)?;
        let generation = self.watch.mirror().generation(link.ifindex)?;
        let ethernet = link.hardware == ETHERNET && link.mac.is_some();
        Some(LinkNow { ifindex: link.ifindex, generation, ethernet, veth: link.kind == Kind::Veth })
    }

    /// Calls `tell` after each change of interfaces. It must not block.
    pub fn on_links(&mut self, tell: impl Fn() + Send + 'static) {
        self.on_links = Some(Box::new(tell));
    }

    /// Attaches the kernel path to an interface, unless it is already attached.
    ///
    /// # Errors
    /// If there is no kernel path, or the interface cannot take it.
    pub fn attach(&mut self, interface: &str, choice: AttachChoice) -> Result<Attachment, Error> {
        match &self.kernel {
            Some(kernel) => kernel.attach(interface, choice, self.compiler.filters_drop()),
            None => Err(Error::new("the daemon was started without the kernel path")
                .hint("restart it to use the kernel path for this port")),
        }
    }

    /// What the kernel path is attached to on a port, and why if that was chosen automatically.
    pub(super) fn attached(&self, port: &ControlPort) -> Option<(AttachType, Option<String>)> {
        self.kernel.as_ref()?.attached(port.ifindex.filter(|_| port.in_kernel)?)
    }

    /// Detaches the kernel path from all interfaces except these.
    pub fn detach_others(&mut self, keep: &[u32]) {
        if let Some(kernel) = &self.kernel {
            kernel.detach_others(keep);
        }
    }

    /// Counters of the kernel path for each port; for a port of workers, the frames that its steering program has
    /// dropped before filters were in place.
    pub fn kernel_counters(&self) -> Vec<Counters> {
        let mut counters = Vec::new();
        for port in &self.ports {
            let counted = self.tally.sum(&port.name, |place| {
                self.kernel.as_ref().map_or_else(Counters::default, |kernel| kernel.counters(place))
            });
            counters.push(if port.in_kernel {
                counted
            } else {
                [counted.only_held(), Counters::held(port.steering.held(), 0)].into_iter().sum()
            });
        }
        counters
    }
}
