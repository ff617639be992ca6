//! Ports follow their interfaces by name when these are deleted and created again, renamed, moved to another namespace
//! and back, or appear long after the start.
//!
//! The control thread notifies of changes; the state of the interfaces is read each time, so that many changes in a
//! short time are handled together. On the kernel path only the affected port is touched. Workers get other sockets
//! while they run; they are restarted only if the new interface does not fit (another number of queues, another path),
//! and Linux forwards for their ports meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bm_api::PortMode;
use bm_cli::Failure;
use bm_control::config::{Config, Device};
use bm_control::control_thread::LinkNow;
use bm_port::{NoSteering, Steering};

use super::{Forwarder, Setup};
use crate::lock;
use crate::plan::path::PortPath;
use crate::plan::{Plan, missing, workers};
use crate::ports::kernel_ports::{self, KernelPort};
use crate::ports::open::{self, Opener, Receives};
use crate::ports::open_port::OpenDevice;
use crate::ports::presence::{AGAIN, Presence, alternative, unfit};
use crate::ports::probe;
use crate::ports::replaceable::NoHost;
use crate::workers::data_path::{DataPath, PortInfo, fabric_port};

/// Result of checking one port.
enum PortCheck {
    /// Nothing more to do.
    Done,
    /// All ports must be rearranged, for this reason.
    Rearrange(String),
}

/// Result of giving a port an interface.
enum AttachedPort {
    /// The port has the interface with this index.
    To(u32),
    /// The interface no longer exists.
    Gone,
    /// It has this number of queues, which differs from before.
    OtherQueues(usize),
}

/// Number of queues of an interface, if it differs from the number that the workers have.
fn other_queues(info: &PortInfo, on: &OpenDevice) -> Option<usize> {
    let replaceable = info.replaceable.as_ref().map(|replaceable| replaceable.queues.len());
    (replaceable != Some(on.queues.len())).then_some(on.queues.len())
}

/// Why the new interface of a port cannot use the kernel path, if that path was chosen automatically. A veth keeps its
/// path: what it can do depends on its other end, which is rarely ready when the veth appears.
fn obstacle(setup: &Setup, index: usize, link: LinkNow) -> Option<String> {
    let path = setup.plan.paths.0.get(index)?;
    let is_chosen = path.in_kernel && path.reason.is_some();
    (is_chosen && !link.veth)
        .then(|| probe::interface(&setup.config.ports[index].name(index))?.obstacle())
        .flatten()
}

/// Why the new interface of a port cannot simply replace the old one.
fn does_not_fit(setup: &Setup, running: &DataPath, index: usize, link: LinkNow) -> Option<String> {
    let config = &setup.config;
    let info = &running.ports[index];
    if let Some(why) = obstacle(setup, index, link) {
        return Some(format!("port {} moves to the user path, since {why}", info.name));
    }
    let workers = workers::count(config, &probe::without_scripts(config));
    if info.replaceable.is_some() && Some(workers) != running.planned.as_ref().map(|planned| planned.count) {
        return Some(format!(
            "port {} has appeared, and now there are queues for {workers} workers",
            info.name
        ));
    }
    None
}

impl Forwarder {
    /// Subscribes to changes of interfaces, which notify [`Forwarder::links`].
    pub fn watch_links(&self) -> Result<(), Failure> {
        let links = Arc::clone(&self.links);
        let subscribed = self.driver.handle().ask(|control| control.on_links(move || links.notify_one()));
        subscribed.map_err(Failure::failed)?;
        // They may have changed since ports were opened.
        self.links.notify_one();
        Ok(())
    }

    /// Whether any port is due for another try.
    pub fn has_refused(&self) -> bool {
        if self.unfollowed.load(Ordering::Relaxed) {
            return true;
        }
        let running = lock(&self.running);
        let mut ports = running.iter().flat_map(|running| &running.ports);
        ports.any(|port| matches!(&port.presence, Presence::Refused { at, .. } if at.elapsed() > AGAIN))
    }

    /// Adapts every port to the current state of its interface.
    pub fn follow(&self) -> Result<(), Failure> {
        let mut restarts = lock(&self.restarts);
        if restarts.ended {
            return Ok(());
        }
        let setup = self.setup();
        let ports = setup.config.ports.iter().enumerate();
        let (indexes, names): (Vec<usize>, Vec<String>) = ports
            .filter(|(_, port)| matches!(port.device, Device::Xdp(_)))
            .map(|(index, port)| (index, port.name(index)))
            .unzip();
        let control = self.driver.handle();
        let links = match control.ask(move |control| control.links(&names)) {
            // Linux forwards until the control thread continues; then ports are checked again.
            Err(error) if control.hangs() => {
                if !self.unfollowed.swap(true, Ordering::Relaxed) {
                    tracing::error!("cannot follow changes of interfaces: {error}");
                }
                return Ok(());
            }
            links => links.map_err(Failure::failed)?,
        };
        self.unfollowed.store(false, Ordering::Relaxed);
        let (mut arrange, mut paths) = (None, setup.plan.paths.clone());
        for (index, link) in indexes.into_iter().zip(links) {
            if let Some(why) = link.and_then(|link| obstacle(&setup, index, link)) {
                paths.0[index] = PortPath { in_kernel: false, reason: Some(why) };
            }
            let mut running = lock(&self.running);
            let Some(running) = running.as_mut() else { return Ok(()) };
            match self.check_port(&setup, running, index, link)? {
                PortCheck::Done => {}
                PortCheck::Rearrange(why) => arrange = Some(why),
            }
        }
        self.follow_fabric_links()?;
        self.context.tun_devices.follow(&setup.config, control);
        self.follow_filters();
        self.follow_linux_drops();
        self.follow_sampling();
        let Some(why) = arrange else { return Ok(()) };
        tracing::warn!("{why}: restarting the workers; Linux forwards for their ports meanwhile");
        let setup =
            Arc::new(Setup { config: setup.config.clone(), plan: Plan { paths, ..setup.plan.clone() } });
        self.arrange(&mut restarts, &setup, &|_| false)?;
        *lock(&self.setup) = setup;
        // Interfaces may have changed meanwhile.
        self.links.notify_one();
        Ok(())
    }

    /// Counts what Linux drops on the interfaces that ports have now, and on VLANs on these.
    fn follow_linux_drops(&self) {
        let Ok(of_ports) = self.driver.handle().ask(|control| control.interfaces()) else { return };
        let mut interfaces = BTreeMap::new();
        if let Some(running) = lock(&self.running).as_ref() {
            for (port, control) in running.ports.iter().zip(of_ports) {
                let logical = control.interfaces.iter().map(|interface| interface.ifindex);
                let all = logical.chain(port.presence.ifindex()).map(|ifindex| (ifindex, port.name.clone()));
                interfaces.extend(all);
            }
        }
        self.linux_drops.follow(interfaces);
    }

    /// Sends counters to collectors for the interfaces that ports with programs in the kernel have now.
    fn follow_sampling(&self) {
        let running = lock(&self.running);
        let ports = running.iter().flat_map(|running| &running.ports);
        let sampled = ports
            .filter(|port| matches!(port.mode, PortMode::Kernel | PortMode::Copy | PortMode::ZeroCopy))
            .filter_map(|port| Some((port.presence.ifindex()?, port.name.clone())));
        self.sampling.follow(sampled.collect());
    }

    /// Makes workers send through the interfaces that fabric links have now.
    fn follow_fabric_links(&self) -> Result<(), Failure> {
        let names = match lock(&self.running).as_ref() {
            Some(running) => running.fabric.iter().map(|info| info.name.clone()).collect::<Vec<_>>(),
            None => return Ok(()),
        };
        if names.is_empty() {
            return Ok(());
        }
        let links =
            self.driver.handle().ask(move |control| control.links(&names)).map_err(Failure::failed)?;
        let mut running = lock(&self.running);
        let Some(running) = running.as_mut() else { return Ok(()) };
        let workers = running.planned.as_ref().map_or(0, |planned| planned.count);
        for (index, link) in links.into_iter().enumerate() {
            self.follow_fabric_link(running, index, link, workers);
        }
        Ok(())
    }

    fn follow_fabric_link(
        &self,
        running: &mut DataPath,
        index: usize,
        link: Option<LinkNow>,
        workers: usize,
    ) {
        let DataPath { fabric, opener: Some(opener), .. } = running else { return };
        let info = &mut fabric[index];
        match (&mut info.presence, link) {
            (Presence::Here { ifindex, generation: generation @ None }, Some(link))
                if *ifindex == link.ifindex =>
            {
                *generation = Some(link.generation);
                return;
            }
            (Presence::Here { generation, .. }, Some(link)) if *generation == Some(link.generation) => return,
            (Presence::Refused { at, .. }, Some(_)) if at.elapsed() < AGAIN => return,
            (Presence::Missing, None) => return,
            _ => {}
        }
        let Some(link) = link else {
            tracing::warn!("fabric link {}: its interface is gone; workers send nothing there", info.name);
            info.replace(Vec::new(), Box::new(NoHost), Box::new(()), opener);
            info.presence = Presence::Missing;
            return;
        };
        let opened = opener.interface(&info.name, &fabric_port(&info.name), Receives::Claimed(None), workers);
        info.presence = match opened {
            Ok(OpenDevice { ifindex: Some(ifindex), queues, host, keep, .. }) => {
                info.replace(queues, host, keep, opener);
                tracing::info!(
                    "fabric link {}: workers send through its interface (index {ifindex})",
                    info.name
                );
                Presence::Here { ifindex, generation: Some(link.generation) }
            }
            Ok(_) => Presence::Missing,
            Err(failure) => {
                let why = failure.to_string();
                if !matches!(info.presence, Presence::Refused { .. }) {
                    tracing::warn!(%why, "fabric link {}: workers cannot send through its interface; trying again", info.name);
                }
                Presence::Refused { why, generation: Some(link.generation), at: Instant::now() }
            }
        };
    }

    /// Adapts one port to the state of its interface.
    fn check_port(
        &self,
        setup: &Setup,
        running: &mut DataPath,
        index: usize,
        link: Option<LinkNow>,
    ) -> Result<PortCheck, Failure> {
        let info = &mut running.ports[index];
        let now = link.map(|link| link.generation);
        match (&mut info.presence, link) {
            (Presence::Here { ifindex, generation: generation @ None }, Some(link))
                if *ifindex == link.ifindex =>
            {
                *generation = Some(link.generation);
                return Ok(PortCheck::Done);
            }
            (Presence::Here { generation, .. }, Some(_)) if *generation == now => return Ok(PortCheck::Done),
            (Presence::Missing, None) if alternative(&info.name).is_none() => return Ok(PortCheck::Done),
            (Presence::Refused { at, .. }, None) if alternative(&info.name).is_some() => {
                *at = Instant::now();
                return Ok(PortCheck::Done);
            }
            (Presence::Refused { generation, at, .. }, Some(link))
                if generation.is_none_or(|generation| generation == link.generation) =>
            {
                *generation = Some(link.generation);
                if at.elapsed() < AGAIN {
                    return Ok(PortCheck::Done);
                }
            }
            _ => {}
        }
        if info.presence.ifindex().is_some() {
            self.detach_port(running, index)?;
        }
        let Some(link) = link else {
            let info = &mut running.ports[index];
            if let Some(why) = alternative(&info.name) {
                tracing::warn!(%why, "port {}: cannot use its interface; Linux forwards its packets", info.name);
                info.presence = Presence::refused(why);
                return Ok(PortCheck::Done);
            }
            tracing::warn!("port {}: {}", info.name, missing(&info.name));
            info.presence = Presence::Missing;
            return Ok(PortCheck::Done);
        };
        self.attach_port(setup, running, index, link)
    }

    /// Releases the interface of a port.
    fn detach_port(&self, running: &mut DataPath, index: usize) -> Result<(), Failure> {
        self.set_port(index, None, Box::new(NoSteering));
        let info = &mut running.ports[index];
        info.presence = Presence::Missing;
        if info.path.in_kernel {
            self.detach_others(running)?;
        }
        let info = &mut running.ports[index];
        if let (Some(replaceable), Some(opener)) = (&info.replaceable, &running.opener) {
            // A worker that does not accept the change hangs, which is handled elsewhere.
            let _all = replaceable.replace(Vec::new(), Box::new(NoHost), opener.frame_pool());
        }
        // Now that no worker uses its sockets.
        info.keep = Box::new(());
        Ok(())
    }

    /// Detaches the kernel path from interfaces that no port has.
    fn detach_others(&self, running: &DataPath) -> Result<(), Failure> {
        let ports = running.ports.iter().filter(|port| port.path.in_kernel);
        let theirs: Vec<_> = ports.filter_map(|port| port.presence.ifindex()).collect();
        self.driver.handle().ask(move |control| control.detach_others(&theirs)).map_err(Failure::failed)
    }

    /// Takes the interface that now has the name of a port.
    fn attach_port(
        &self,
        setup: &Setup,
        running: &mut DataPath,
        index: usize,
        link: LinkNow,
    ) -> Result<PortCheck, Failure> {
        let name = setup.config.ports[index].name(index);
        let info = &running.ports[index];
        if link.ethernet
            && let Some(why) = does_not_fit(setup, running, index, link)
        {
            return Ok(PortCheck::Rearrange(why));
        }
        let in_kernel = info.path.in_kernel;
        let attached = match unfit(&name) {
            Some(why) => Err(Failure::Failed(why)),
            None if in_kernel => self.attach_in_kernel(setup, running, index),
            None => self.attach_to_workers(setup, running, index),
        };
        let again = matches!(&running.ports[index].presence, Presence::Refused { .. });
        let info = &mut running.ports[index];
        info.presence = match attached {
            Ok(AttachedPort::OtherQueues(queues)) => {
                return Ok(PortCheck::Rearrange(format!("port {name} now has {queues} queues")));
            }
            Ok(AttachedPort::To(ifindex)) => {
                tracing::info!("port {name}: now using its interface (index {ifindex})");
                Presence::Here {
                    ifindex,
                    generation: Some(link.generation).filter(|_| ifindex == link.ifindex),
                }
            }
            Ok(AttachedPort::Gone) => Presence::Missing,
            Err(_) if !bm_fastpath::is_there(&name) => Presence::Missing,
            Err(failure) => {
                let why = failure.to_string();
                // Log the same failure only once.
                if !again {
                    tracing::warn!(%why, "port {name}: cannot use its interface; Linux forwards its packets; trying again");
                }
                Presence::Refused { why, generation: Some(link.generation), at: Instant::now() }
            }
        };
        if in_kernel && info.presence.ifindex().is_none() {
            // The program may already be attached.
            self.detach_others(running)?;
        }
        Ok(PortCheck::Done)
    }

    /// Attaches the kernel path to the interface of a port.
    fn attach_in_kernel(
        &self,
        setup: &Setup,
        running: &mut DataPath,
        index: usize,
    ) -> Result<AttachedPort, Failure> {
        let control = self.driver.handle();
        let port = &setup.config.ports[index];
        let name = port.name(index);
        let KernelPort { presence, reason } = kernel_ports::attach_one(
            &name,
            setup.config.attach_of(port),
            self.claims.is_some(),
            |name, choice| kernel_ports::attach_by(control, name, choice),
        )?;
        let Some(ifindex) = presence.ifindex() else { return Ok(AttachedPort::Gone) };
        let opened = self.open_again(&setup.config, running, index)?;
        if let Some(queues) = opened.as_ref().and_then(|on| other_queues(&running.ports[index], on)) {
            return Ok(AttachedPort::OtherQueues(queues));
        }
        self.set_port(index, Some(ifindex), Box::new(NoSteering));
        running.ports[index].reason = reason;
        if let Some(open) = opened {
            Self::replace(running, index, open.queues, open.host, open.keep);
        }
        Ok(AttachedPort::To(ifindex))
    }

    /// Opens the interface of a port for the workers and hands it over.
    fn attach_to_workers(
        &self,
        setup: &Setup,
        running: &mut DataPath,
        index: usize,
    ) -> Result<AttachedPort, Failure> {
        let Some(on) = self.open_again(&setup.config, running, index)? else {
            return Ok(AttachedPort::Gone);
        };
        if let Some(queues) = other_queues(&running.ports[index], &on) {
            return Ok(AttachedPort::OtherQueues(queues));
        }
        let OpenDevice { ifindex, mode, reason, queues, host, steering, keep } = on;
        let Some(ifindex) = ifindex else { return Ok(AttachedPort::Gone) };
        let info = &mut running.ports[index];
        (info.mode, info.reason) = (mode, reason);
        Self::replace(running, index, queues, host, keep);
        self.set_port(index, Some(ifindex), steering);
        Ok(AttachedPort::To(ifindex))
    }

    /// Opens the interface of a port for workers, if there are any.
    fn open_again(
        &self,
        config: &Config,
        running: &DataPath,
        index: usize,
    ) -> Result<Option<OpenDevice>, Failure> {
        let port = &config.ports[index];
        let (Some(opener), Device::Xdp(name)) = (&running.opener, &port.device) else { return Ok(None) };
        let in_kernel = running.ports.iter().any(|info| info.name == *name && info.mode == PortMode::Kernel);
        let most = running.planned.as_ref().map_or(0, |planned| planned.queues[index]);
        let receives = match in_kernel {
            true => Receives::Claimed(self.claims.as_ref()),
            false => Receives::AllFrames { held: config.filters_drop(), local: open::local(&config.ipsec) },
        };
        opener.interface(name, port, receives, most).map(Some)
    }

    /// Tells control which interface a port has.
    fn set_port(&self, index: usize, ifindex: Option<u32>, steering: Box<dyn Steering>) {
        let set = self.driver.handle().try_ask(move |control| control.set_port(index, ifindex, steering));
        if let Err(error) = set {
            // Control knows the port and retries until its tables are complete.
            tracing::error!(%error, "cannot build the tables for a port; trying again");
        }
    }

    /// Hands the queues of an interface to the workers and the host port to the slow path.
    fn replace(
        running: &mut DataPath,
        index: usize,
        queues: Vec<Box<dyn bm_port::Port>>,
        host: Box<dyn bm_port::HostPort>,
        keep: Box<dyn std::any::Any + Send>,
    ) {
        let DataPath { ports, opener, .. } = running;
        let info = &mut ports[index];
        match opener {
            Some(opener) => info.replace(queues, host, keep, opener),
            None => info.keep = keep,
        }
    }
}

impl PortInfo {
    /// Hands the queues of an interface to the workers and the host port to the slow path; those before are closed.
    fn replace(
        &mut self,
        queues: Vec<Box<dyn bm_port::Port>>,
        host: Box<dyn bm_port::HostPort>,
        keep: Box<dyn std::any::Any + Send>,
        opener: &Opener,
    ) {
        if let Some(replaceable) = &self.replaceable
            && !replaceable.replace(queues, host, opener.frame_pool())
        {
            // The worker hangs, which is handled elsewhere.
            tracing::error!("port {}: a worker did not accept its queue", self.name);
        }
        self.keep = keep;
    }
}
