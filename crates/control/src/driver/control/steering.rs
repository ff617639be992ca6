//! What ports are told to leave to Linux, and whether they do.

use std::net::IpAddr;

use super::{Control, ControlPort};

/// What ports are told.
#[derive(PartialEq, Eq)]
pub(in crate::driver) struct Told {
    /// The machine's addresses.
    local: Vec<IpAddr>,
    ports: Vec<ToldPort>,
}

/// What one port is told.
#[derive(PartialEq, Eq)]
struct ToldPort {
    macs: Vec<[u8; 6]>,
    /// Families, IPv4 first, that are Linux's alone.
    linux_only: [bool; 2],
    /// Whether it takes packets, unless that is to stay as it is.
    active: Option<bool>,
}

impl Control {
    /// What holds for ports now. A port that is none of ours any more, as a part of a bridge say, leaves everything
    /// to Linux.
    fn to_tell(&self) -> Told {
        let interfaces = self.compiler.interfaces();
        let takes = self.active && !self.workers_rest;
        let of_port = |(port, on): (u16, &ControlPort)| {
            let mut macs: Vec<_> = interfaces.of_port(port).map(|(_, interface)| interface.mac).collect();
            macs.sort_unstable();
            macs.dedup();
            let active = takes && !macs.is_empty();
            // What the mirror does not know yet, filters do not either: it stays as it is.
            let known = on.ifindex.is_none_or(|ifindex| self.watch.mirror().link(ifindex).is_some());
            // A family that some VLAN on the port forwards has to come to workers, and so has one that they filter:
            // what filters drop is not for Linux to forward.
            let linux_only = |family: usize| {
                !self.compiler.filters_drop()
                    && interfaces.of_port(port).all(|(_, on)| on.linux_only_in[family])
            };
            ToldPort { macs, linux_only: [0, 1].map(linux_only), active: known.then_some(active) }
        };
        let mut local: Vec<IpAddr> =
            self.watch.mirror().all_addresses().map(|address| address.local).collect();
        local.sort_unstable();
        local.dedup();
        Told { local, ports: (0..).zip(&self.ports).map(of_port).collect() }
    }

    /// Tells ports what is Linux's.
    pub(in crate::driver) fn steer(&mut self) {
        let tell = self.to_tell();
        if self.told.as_ref() == Some(&tell) {
            return;
        }
        let mut all = true;
        for (port, now) in self.ports.iter_mut().zip(&tell.ports) {
            if let Err(error) = told(port, &tell.local, now) {
                all = false;
                tracing::error!(%error, port = port.name, "a port could not be told what to leave to Linux");
            }
        }
        self.told = all.then_some(tell);
    }

    /// What ports go by that differs from what holds now, a sentence each: by what they were told, and by what their
    /// devices hold.
    pub(super) fn steering_differences(&self) -> Vec<String> {
        let mut differences = Vec::new();
        if self.told.as_ref() != Some(&self.to_tell()) {
            differences.push("ports have not been told what is to be left to Linux now".into());
        }
        for port in &self.ports {
            match port.steering.differences() {
                Ok(of_port) => {
                    differences
                        .extend(of_port.into_iter().map(|found| format!("port {}: {found}", port.name)));
                }
                Err(error) => differences.push(format!(
                    "port {}: what its steering program goes by cannot be read: {error}",
                    port.name
                )),
            }
        }
        differences
    }
}

/// Tells one port. What is Linux's comes first, so that no packet of Linux's is taken in between.
fn told(port: &mut ControlPort, local: &[IpAddr], now: &ToldPort) -> std::io::Result<()> {
    port.steering.set_local(local)?;
    port.steering.set_linux_only(now.linux_only)?;
    if !now.macs.is_empty() {
        port.steering.set_macs(&now.macs)?;
    }
    now.active.map_or(Ok(()), |active| port.steering.set_active(active))
}
