//! Collects the state of the daemon for `status`.

use bm_api::Status;
use bm_control::control_thread::ControlPortState;
use bm_frame::Pages;
use bm_serve::report;

use super::Daemon;
use super::ports::{left_to_linux, no_frames};
use crate::lock;
use crate::log;
use crate::router::Setup;
use crate::workers::data_path::PortInfo;
use crate::workers::hooks;

impl Daemon {
    /// Adds everything that the control thread does not know to its part of the status.
    pub(super) fn completed(&self, mut status: Status, interfaces: &[ControlPortState]) -> Status {
        let not_ours = self.forwarder.not_ours(interfaces);
        status.unfiltered_ports = not_ours.unfiltered.len() as u32;
        status.nftables_ports = not_ours.by_nftables.len() as u32;
        status.notes.extend(not_ours.unfiltered.into_iter().chain(not_ours.by_nftables));
        status.notes.extend(self.forwarder.filter_tables_trouble());
        let exhausted = self.ipsec().exhausted();
        status.exhausted_sas = exhausted.len() as u32;
        status.notes.extend(exhausted);
        let setup = self.forwarder.setup();
        let Setup { config, plan } = &*setup;
        let paths = &plan.paths;
        let running = lock(&self.forwarder.running);
        status.version = env!("CARGO_PKG_VERSION").into();
        status.pid = std::process::id();
        status.uptime_s = self.started.elapsed().as_secs();
        status.path = paths.name().into();
        status.path_reason = paths.reason();
        status.config = self.options.config.as_ref().map(|file| file.display().to_string());
        status.web.clone_from(&self.web);
        status.workers = running.as_ref().map_or(0, |running| running.workers().len()) as u32;
        status.ports = running.as_ref().map_or(0, |running| running.ports.len()) as u32;
        status.tables_watched_by = lock(&self.forwarder.watch).watched_by();
        status.notes.extend(lock(&self.forwarder.watch).note());
        status.notes.extend(self.unconfined.clone());
        status.notes.extend(running.iter().flat_map(|running| running.notes.iter().cloned()));
        (status.switches, status.switch_ports) = self.forwarder.switches.count();
        status.notes.extend(self.forwarder.switches.notes());
        status.notes.extend(self.forwarder.cluster.notes());
        let in_kernel = interfaces.iter().zip(&paths.0).filter(|(_, path)| path.in_kernel);
        status.notes.extend(in_kernel.filter_map(|(of_port, _)| left_to_linux(&of_port.interfaces)));
        let infos = running.iter().flat_map(|running| &running.ports).filter(|info| info.path.in_kernel);
        status.notes.extend(infos.filter_map(no_frames));
        let hooks = self.forwarder.context.hooks.get().map(|hooks| hooks.report()).unwrap_or_default();
        status.notes.extend(hooks::notes(&hooks));
        status.notes.extend(self.forwarder.pause_note());
        status.hooks = hooks.into_iter().map(|hook| (hook.name, hook.running.is_some())).collect();
        status.memory_bytes = report::resident_bytes();
        status.notes.extend(self.no_ports());
        status.notes.extend(self.forwarder.context.tun_devices.notes());
        status.notes.extend(lost_lines());
        status.silent_threads = self.silent.count();
        status.notes.extend(self.silent.notes());
        status.notes.extend(running.iter().flat_map(|running| running.ports.iter().filter_map(waiting)));
        if !paths.any_kernel() && !config.ports.is_empty() && !config.claims.is_empty() {
            status.notes.push(
                "[[claim]] has no effect: no port uses the kernel path, so workers already get all packets"
                    .into(),
            );
        }
        if self
            .forwarder
            .worker_resources
            .frame_pool
            .get()
            .is_some_and(|frame_pool| frame_pool.memory().pages() == Pages::Plain)
        {
            status.notes.push(
                "frame memory uses normal pages; for better speed reserve huge pages before the start: `sysctl -w vm.nr_hugepages=64`".into(),
            );
        }
        status
    }
}

/// The note of `status` on a port without its interface.
fn waiting(port: &PortInfo) -> Option<String> {
    let (_, why) = port.presence.shown(&port.name);
    why.map(|why| format!("port {} is waiting: {why}", port.name))
}

/// The note of `status` on lost log lines.
fn lost_lines() -> Option<String> {
    let lost = log::lost();
    (lost > 0).then(|| format!("{lost} log lines were lost: standard error is not read fast enough"))
}
