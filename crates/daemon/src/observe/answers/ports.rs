//! Collects the state of all ports for `show ports`.

use bm_api::{Account, Error, Port, Ports, Queue};
use bm_control::control_thread::ControlPortState;
use bm_fastpath::AttachType;
use bm_serve::report::{self, Counters};
use bm_stats::Scope;

use super::Daemon;
use super::kernel_notes::{left_to_linux, no_frames};
use crate::lock::lock;
use crate::workers::running::{PortInfo, Running};

/// What is known about a port besides its [`PortInfo`].
struct Known<'a> {
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
        let is_xdp = |of_port: &ControlPortState| matches!(of_port.attached, Some((AttachType::Xdp, _)));
        let by_xdp = interfaces.iter().any(is_xdp);
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
        let port = |(index, info): (usize, &PortInfo)| {
            let known = Known {
                counters: &counters,
                kernel: kernel.get(index).copied().unwrap_or_default(),
                control: interfaces.get(index).cloned().unwrap_or_default(),
                by_xdp,
                has_apps: setup.config.has_apps_behind(&info.name),
                for_workers: !info.path.in_kernel || !setup.config.claims.is_empty(),
            };
            self.port(running, (index, info), known)
        };
        Ok(Ports { ports: running.ports.iter().enumerate().map(port).collect() })
    }

    fn port(&self, running: &Running, (index, info): (usize, &PortInfo), known: Known<'_>) -> Port {
        let account = account(info, &known);
        let Known { counters, kernel, control, by_xdp, for_workers, .. } = known;
        let ControlPortState { up, interfaces, linux_only, left_to_linux: left, attached } = control;
        let in_kernel = info.path.in_kernel;
        let (state, state_reason) = info.presence.shown(&info.name);
        let (counted_by, [rx, tx]) = match self.forwarder.meter.read(info, counters) {
            Some((by, both)) => (by, both.map(Some)),
            None => Default::default(),
        };
        let slower = || {
            let frames = || no_frames(info).filter(|_| by_xdp);
            in_kernel.then(|| left_to_linux(&interfaces).or_else(frames)).flatten()
        };
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
            mode_reason: info.reason.clone().or_else(slower),
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

fn queue(running: &Running, counters: &Counters, port: &str, queue: usize) -> Queue {
    Queue {
        queue: queue as u32,
        worker: running.worker_of(port, queue) as u32,
        account: report::account(counters, Scope::PortReceive { port, queue }),
    }
}

fn account(info: &PortInfo, known: &Known<'_>) -> Account {
    let workers = report::port_account(known.counters, &info.name, known.has_apps);
    match info.path.in_kernel {
        true => report::with_claimed(report::kernel_account(&known.kernel), &workers),
        false => report::with_steering(workers, &known.kernel),
    }
}
