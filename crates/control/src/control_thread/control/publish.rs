//! Updates the kernel path for changed ports, and keeps their counters.

use std::collections::BTreeSet;

use bm_api::Error;

use super::super::ControlPort;
use super::super::kernel::{KernelPath, Now};
use super::Control;
use crate::compile::Interfaces;

impl Control {
    /// Updates the kernel path after a publication of tables.
    pub(in crate::control_thread) fn follow(&mut self) -> Result<(), Error> {
        if let Some(kernel) = &self.kernel {
            // The program uses new indexes as soon as it knows of them.
            let indexes = interface_indexes(self.compiler.interfaces(), &self.ports);
            self.tally.begin(indexes, |index| kernel.counters(index));
        }
        self.update_kernel_path(KernelPath::follow)?;
        let Some(kernel) = &self.kernel else { return Ok(()) };
        let indexes = interface_indexes(self.compiler.interfaces(), &self.ports);
        self.tally.settle(indexes, |index| kernel.counters(index));
        self.tell_flows();
        Ok(())
    }

    /// Differences between the current settings and those of the kernel path's program, one message each.
    pub(super) fn kernel_differences(&self) -> Vec<String> {
        let Some(kernel) = &self.kernel else { return Vec::new() };
        let (compiler, mirror) = (&self.compiler, self.watch.mirror());
        let (ports, taken) = (self.kernel_ports(), self.taken());
        let (active, bypasses) = (self.active, self.linux_only.bypasses());
        kernel.differences(Now { compiler, mirror, ports: &ports, taken: &taken, active, bypasses })
    }

    /// Runs an update of the kernel path, and collects counts of frames dropped before filters were in place.
    pub(super) fn update_kernel_path(
        &mut self,
        tell: impl FnOnce(&mut KernelPath, Now<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (ports, taken) = (self.kernel_ports(), self.taken());
        let Some(kernel) = &mut self.kernel else { return Ok(()) };
        let (compiler, mirror) = (&self.compiler, self.watch.mirror());
        let (active, bypasses) = (self.active, self.linux_only.bypasses());
        let told = tell(kernel, Now { compiler, mirror, ports: &ports, taken: &taken, active, bypasses });
        for (ifindex, held) in kernel.take_held_drops() {
            let port = self.ports.iter().find(|port| port.ifindex == Some(ifindex));
            port.into_iter().for_each(|port| self.tally.add(&port.name, held));
        }
        told
    }

    /// Indexes in Linux of the interfaces that ports have.
    fn taken(&self) -> BTreeSet<u32> {
        self.ports.iter().filter_map(|port| port.ifindex).collect()
    }

    /// Indexes of the ports of the kernel path.
    fn kernel_ports(&self) -> BTreeSet<u16> {
        let in_kernel = self.ports.iter().zip(0u16..).filter(|(port, _)| port.in_kernel);
        let numbers = in_kernel.map(|(_, number)| number);
        numbers.filter(|number| self.compiler.interfaces().of_port(*number).next().is_some()).collect()
    }
}

/// Indexes of interfaces of the kernel path, with the names of their ports.
fn interface_indexes<'a>(
    interfaces: &'a Interfaces,
    ports: &'a [ControlPort],
) -> impl Iterator<Item = (u16, &'a str)> {
    let in_kernel = ports.iter().zip(0u16..).filter(|(port, _)| port.in_kernel);
    in_kernel
        .flat_map(|(port, number)| interfaces.of_port(number).map(|(index, _)| (index, port.name.as_str())))
}
