//! Rearranges ports, paths and workers for another configuration.
//!
//! ```text
//! ports of workers: to Linux ─► workers end ─► kernel path: detached from some interfaces, attached to others
//!                            ─► devices open ─► control: the new ports ─► workers start ─► all ports take packets
//! ```
//!
//! Ports that stay on the kernel path forward all the time. Workers, if there were or will be any, are restarted, and
//! Linux forwards for their ports meanwhile.

use bm_cli::Failure;
use bm_control::config::Port;
use bm_control::control_thread::Control;

use super::restarts::Restarts;
use super::{Forwarder, Setup};
use crate::lock;
use crate::plan;
use crate::ports::kernel_ports;
use crate::workers::data_path::{DataPath, OpenOptions, OpenPorts};
use crate::workers::{apps, scripts};

impl Forwarder {
    /// Applies `setup`. An existing interface that cannot be used is an error for ports that `strict` selects; other
    /// ports wait for a better one.
    pub(super) fn arrange(
        &self,
        restarts: &mut Restarts,
        setup: &Setup,
        strict: &dyn Fn(&Port) -> bool,
    ) -> Result<(), Failure> {
        let config = &setup.config;
        let control = self.driver.handle();
        self.end_workers(restarts)?;
        // Interfaces may have other queues than when the paths were chosen.
        let plan = plan::with_paths(config, &self.machine(config), setup.plan.paths.clone());
        let paths = &plan.paths;
        let opener = plan.workers.as_ref().map(|workers| self.worker_resources.opener(config, workers));
        let opener = opener.transpose()?;
        let stay = config.ports.iter().zip(&paths.0).filter(|(_, path)| path.in_kernel);
        let stay: Vec<String> =
            stay.filter_map(|(port, _)| port.device.interface().map(Into::into)).collect();
        let detached = control.ask(move |control| {
            let stay: Vec<_> = control.links(&stay).into_iter().flatten().map(|link| link.ifindex).collect();
            control.detach_others(&stay);
        });
        detached.map_err(Failure::failed)?;
        let kernel_ports =
            kernel_ports::attach(config, paths, self.claims.is_some(), strict, &mut |name, choice| {
                kernel_ports::attach_by(control, name, choice)
            })?;
        let options =
            OpenOptions { opener: opener.as_ref(), claims: self.claims.as_ref(), is_strict: strict };
        let (opened, ports) = OpenPorts::open(config, &plan, kernel_ports, &options)?;
        let new = config.clone();
        control.try_ask(move |control| control.set_ports(ports, &new)).map_err(Failure::failed)?;
        let running = match opener {
            Some(opener) => {
                self.worker_resources.scripts(&self.context)?;
                opened.start(config, &self.context, control, opener, &self.cluster)?
            }
            None => opened.without_workers(),
        };
        *lock(&self.running) = Some(running.with_notes(&self.notes));
        restarts.keep_open.clear();
        control.ask(|control| control.set_active(true)).map_err(Failure::failed)?;
        // Packets that workers hand to Linux pass again as soon as the tables follow.
        self.links.notify_one();
        Ok(())
    }

    /// Ends the workers, if there are any; Linux forwards for their ports from then on.
    pub(super) fn end_workers(&self, restarts: &mut Restarts) -> Result<(), Failure> {
        if lock(&self.running).as_ref().is_some_and(|running| running.threads.is_some()) {
            // Steering programs must be detached before others can be attached. From here on nftables drops what only
            // workers can filter.
            lock(&self.filter_tables).unmark();
            self.driver.handle().try_ask(Control::release_worker_ports).map_err(Failure::failed)?;
            let before = lock(&self.running).take();
            restarts.keep_open.extend(before.into_iter().flat_map(DataPath::stop));
            // Discards failures of the workers that have just ended.
            let on_hang = scripts::on_hang(&self.setup().config);
            let _ended = self.context.apps.get().map(|apps| apps::supervise(apps, on_hang));
        }
        self.starts.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
        Ok(())
    }
}
