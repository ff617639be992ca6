//! Collects the state of all ports for `show ports`.

use bm_api::{Account, Error, Interface, Port, Ports, Queue};
use bm_control::control_thread::ControlPortState;
use bm_fastpath::AttachType;
use bm_serve::report::{self, Counters};
use bm_stats::Scope;

use super::Daemon;
use crate::lock;
use crate::workers::data_path::{DataPath, PortInfo};

/// What a reply says about a port besides its [`PortInfo`].
struct PortSources<'a> {
    counters: &'a Counters,
    /// Of the kernel path, or of the steering program.
    kernel: bm_fastpath::Counters,
    control: ControlPortState,
    /// Whether the kernel path is attached as XDP to any port.
    by_xdp: bool,
    has_apps: bool,
    /// Whether workers receive from it.
    for_workers: bool,
}

impl Daemon {
    /// All ports as they are now. An empty list would look like a daemon without ports.
    pub(super) fn ports(&self) -> Result<Ports, Error> {
        let of_control = self.control().ask(|control| (control.interfaces(), control.kernel_counters()));
        let (interfaces, kernel) = of_control.unwrap_or_default();
        let by_xdp = interfaces.iter().any(|port| matches!(port.attached, Some((AttachType::Xdp, _))));
        let counters = self.counters_with(&kernel);
        let setup = self.forwarder.setup();
        let mut running = lock(&self.forwarder.running);
        if running.is_none() {
            drop(running);
            // Whoever starts the workers again holds this until they run.
            let restarts = lock(&self.forwarder.restarts);
            running = lock(&self.forwarder.running);
            drop(restarts);
        }
        let Some(running) = running.as_ref() else {
            let why = "the daemon is ending, or its workers could not be started again";
            return Err(Error::new(format!("the ports cannot be read: {why}")));
        };
        let mut ports = Vec::new();
        for (index, info) in running.ports.iter().enumerate() {
            let sources = PortSources {
                counters: &counters,
                kernel: kernel.get(index).copied().unwrap_or_default(),
                control: interfaces.get(index).cloned().unwrap_or_default(),
                by_xdp,
                has_apps: setup.config.has_apps_behind(&info.name),
                for_workers: !info.path.in_kernel || !setup.config.claims.is_empty(),
            };
            ports.push(self.port(running, index, info, sources));
        }
        Ok(Ports { ports })
    }

    fn port(&self, running: &DataPath, index: usize, info: &PortInfo, sources: PortSources<'_>) -> Port {
        let account = account(info, &sources);
        let PortSources { counters, kernel, control, by_xdp, for_workers, .. } = sources;
        let ControlPortState { up, interfaces, linux_only, left_to_linux: left, attached } = control;
        let in_kernel = info.path.in_kernel;
        let (state, state_reason) = info.presence.shown(&info.name);
        let (counted_by, [rx, tx]) = match self.forwarder.meter.read(info, counters) {
            Some((by, both)) => (by, both.map(Some)),
            None => Default::default(),
        };
        let mut mode_reason = info.reason.clone();
        if mode_reason.is_none() && in_kernel {
            mode_reason = left_to_linux(&interfaces).or_else(|| no_frames(info).filter(|_| by_xdp));
        }
        Port {
            index: index as u16,
            state,
            state_reason: state_reason.or_else(|| info.trouble.as_ref().filter(|_| for_workers)?()),
            name: info.name.clone(),
            device: info.device.clone(),
            up,
            active: !interfaces.is_empty(),
            mode: info.mode,
            ring: info.ring,
            mode_reason,
            path: if in_kernel { "kernel" } else { "user" }.into(),
            path_reason: info.path.reason.clone(),
            attach: attached.as_ref().map(|(attach_type, _)| attach_type.to_string()),
            attach_reason: attached.and_then(|(_, reason)| reason),
            linux_only,
            queues: (0..info.queues).map(|queue| self::queue(running, counters, &info.name, queue)).collect(),
            rx,
            tx,
            counted_by,
            account,
            device_counters: report::device_counters(counters, &info.name),
            hardware_counters: info.hardware.iter().flat_map(|hardware| hardware()).collect(),
            kernel_counters: match in_kernel {
                true => report::kernel_counters(&kernel),
                false => report::steering_counters(left, &kernel),
            },
            interfaces,
        }
    }
}

fn queue(running: &DataPath, counters: &Counters, port: &str, queue: usize) -> Queue {
    Queue {
        queue: queue as u32,
        worker: running.worker_of(port, queue) as u32,
        account: report::account(counters, Scope::PortReceive { port, queue }),
    }
}

fn account(info: &PortInfo, sources: &PortSources<'_>) -> Account {
    let workers = report::port_account(sources.counters, &info.name, sources.has_apps);
    match info.path.in_kernel {
        true => report::with_claimed(report::kernel_account(&sources.kernel), &workers),
        false => report::with_steering(workers, &sources.kernel),
    }
}

/// Why the kernel path cannot send through one of its ports; `None` if it can.
pub(super) fn no_frames(info: &PortInfo) -> Option<String> {
    let why = bm_fastpath::why_no_frames(&info.name)?;
    Some(format!("{why}: Linux forwards packets that leave there"))
}

/// Which interfaces of a port the kernel path leaves to Linux because they are in a VRF.
pub(super) fn left_to_linux(interfaces: &[Interface]) -> Option<String> {
    let in_vrf = interfaces.iter().filter(|interface| interface.vrf.is_some());
    let names: Vec<&str> = in_vrf.map(|interface| interface.name.as_str()).collect();
    let names = names.join(", ");
    (!names.is_empty()).then(|| format!("{names}: in a VRF, so Linux forwards packets that arrive there"))
}
