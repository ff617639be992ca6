//! Settings of the steering programs: which packets ports leave to Linux.

use std::net::IpAddr;

use bm_port::{LinuxRoute, Unattended};

use super::{Control, ControlPort};

/// The settings of all ports.
#[derive(PartialEq, Eq)]
pub(in crate::control_thread) struct LastSteering {
    /// The machine's addresses.
    local: Vec<IpAddr>,
    /// Prefixes that lead where only Linux can send.
    routes: Vec<LinuxRoute>,
    ports: Vec<PortSteering>,
}

impl LastSteering {
    /// Prefixes that lead where only Linux can send.
    pub(super) fn routes(&self) -> &[LinuxRoute] {
        &self.routes
    }
}

/// Whether the longest of these prefixes around an address leads where only Linux can send.
pub(super) fn is_linuxs(routes: &[LinuxRoute], address: IpAddr) -> bool {
    let around = routes.iter().filter(|route| contains(route, address));
    around.max_by_key(|route| route.length).is_some_and(|route| route.to_linux)
}

fn contains(route: &LinuxRoute, address: IpAddr) -> bool {
    let equal_bits = match (route.address, address) {
        (IpAddr::V4(one), IpAddr::V4(two)) => (u32::from(one) ^ u32::from(two)).leading_zeros(),
        (IpAddr::V6(one), IpAddr::V6(two)) => (u128::from(one) ^ u128::from(two)).leading_zeros(),
        _ => return false,
    };
    equal_bits >= u32::from(route.length)
}

/// The settings of one port.
#[derive(PartialEq, Eq)]
struct PortSteering {
    macs: Vec<[u8; 6]>,
    /// Whether all packets of IPv4, and of IPv6, are left to Linux.
    linux_only: [bool; 2],
    /// Whether it takes packets; `None` to leave that unchanged.
    active: Option<bool>,
    /// One received frame in so many is sampled; 0 for none.
    sample_one_in: u32,
    /// Whether filters of workers may drop packets.
    filters_drop: bool,
    /// What it does with packets that no worker fetches.
    unattended: Unattended,
}

impl Control {
    /// The current settings. A port whose interface has become part of a bridge, for example, leaves all packets to
    /// Linux.
    fn current_settings(&self) -> LastSteering {
        let mut local: Vec<IpAddr> =
            self.watch.mirror().all_addresses().map(|address| address.local).collect();
        local.sort_unstable();
        local.dedup();
        let routes = if self.steers_routes() { self.compiler.linux_routes() } else { Vec::new() };
        let ports = (0..).zip(&self.ports).map(|(number, port)| self.port_steering(number, port)).collect();
        LastSteering { local, routes, ports }
    }

    fn port_steering(&self, number: u16, port: &ControlPort) -> PortSteering {
        let interfaces = self.compiler.interfaces();
        let mut macs: Vec<_> = interfaces.of_port(number).map(|(_, interface)| interface.mac).collect();
        macs.sort_unstable();
        macs.dedup();
        let active = self.active && !self.workers_rest && !macs.is_empty();
        // An interface that the mirror does not know yet has no filters either: leave it unchanged.
        let known = port.ifindex.is_none_or(|ifindex| self.watch.mirror().link(ifindex).is_some());
        // Workers need a family that any VLAN on the port forwards, and one that they filter: otherwise Linux would
        // forward packets that filters or IPsec policies drop.
        let workers_check = self.compiler.filters_drop() || self.checks_arrivals;
        PortSteering {
            macs,
            linux_only: [0, 1].map(|family| {
                !workers_check && interfaces.of_port(number).all(|(_, own)| own.linux_only_in[family])
            }),
            active: known.then_some(active),
            sample_one_in: self.compiler.choices().sample_one_in,
            filters_drop: self.compiler.filters_drop(),
            unattended: self.compiler.unattended(number),
        }
    }

    /// Whether ports of workers leave packets in the kernel whose routes lead where only Linux can send.
    pub(in crate::control_thread) fn steers_routes(&self) -> bool {
        !self.workers_see_all
            && self.ports.iter().any(|port| !port.in_kernel)
            && self.compiler.has_linux_routes()
    }

    /// Applies the settings to all ports.
    pub(in crate::control_thread) fn steer(&mut self) {
        let tell = self.current_settings();
        if self.last_steering.as_ref() == Some(&tell) {
            return;
        }
        let mut all = true;
        for (port, now) in self.ports.iter_mut().zip(&tell.ports) {
            if let Err(error) = steer_port(port, &tell, now) {
                all = false;
                tracing::error!(%error, port = port.name, "cannot set which packets a port leaves to Linux");
            }
        }
        self.last_steering = all.then_some(tell);
    }

    /// Differences between the current settings, those that were applied last, and those in the devices; one message
    /// each.
    pub(super) fn steering_differences(&self) -> Vec<String> {
        let mut differences = Vec::new();
        if self.last_steering.as_ref() != Some(&self.current_settings()) {
            differences
                .push("the ports do not have the current settings for packets to leave to Linux".into());
        }
        for port in &self.ports {
            match port.steering.differences() {
                Ok(of_port) => {
                    differences
                        .extend(of_port.into_iter().map(|found| format!("port {}: {found}", port.name)));
                }
                Err(error) => differences.push(format!(
                    "port {}: cannot read the settings of its steering program: {error}",
                    port.name
                )),
            }
        }
        differences
    }
}

/// Applies the settings to one port; those for packets of Linux first, so that none of them is taken in between.
fn steer_port(port: &mut ControlPort, all: &LastSteering, now: &PortSteering) -> std::io::Result<()> {
    port.steering.set_local(&all.local)?;
    port.steering.set_linux_routes(&all.routes)?;
    port.steering.set_linux_only(now.linux_only)?;
    port.steering.set_filters_drop(now.filters_drop)?;
    port.steering.set_unattended(now.unattended)?;
    port.steering.set_sampling(now.sample_one_in)?;
    if !now.macs.is_empty() {
        port.steering.set_macs(&now.macs)?;
    }
    now.active.map_or(Ok(()), |active| port.steering.set_active(active))
}
