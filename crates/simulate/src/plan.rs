//! Plans: which servers and links a router of N ports needs, from a list of what can be bought.
//!
//! ```text
//! FILE.toml ─► Wanted ─► for each server type: mesh? else k-ary n-fly? ─► Plan: servers, links, loads, price
//!                                                 └─ no: the constraint that fails
//!                     └─ switch ─► one switch, or a folded Clos: what the same ports cost with switches
//! ```
//!
//! A link is planned for the load of the worst case: 3 shares of R/N under either quota (R: what the external
//! ports of a server receive together), and 3 R in an n-fly.

mod costs;
mod fabric;
pub mod svg;

use serde::{Deserialize, Serialize};

pub use costs::Switched;
pub use fabric::{Fabric, Fan};

/// Requirements, and the hardware that is available. Prices are in any currency.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Requirements {
    /// External ports.
    pub ports: u64,
    pub rate_gbps: f64,
    /// Types of servers.
    #[serde(default)]
    pub server: Vec<ServerType>,
    /// Types of network cards.
    #[serde(default)]
    pub nic: Vec<NicType>,
    /// A switch, for comparison.
    pub switch: Option<SwitchType>,
}

/// A server that can be bought.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerType {
    /// Its name in the plan.
    pub name: String,
    /// External ports that it serves.
    pub ports: u64,
    /// Slots for network cards.
    pub slots: u64,
    /// Gbit/s that it can handle, in and through together; without this no server is too slow.
    pub handles_gbps: Option<f64>,
    #[serde(default)]
    pub price: f64,
    #[serde(default)]
    pub power_w: f64,
}

/// A type of network card.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NicType {
    /// Its name in the plan.
    pub name: String,
    /// Ports of a card.
    pub ports: u64,
    /// Rate of a port.
    pub rate_gbps: f64,
    /// Price of a card.
    #[serde(default)]
    pub price: f64,
    /// Power of a card.
    #[serde(default)]
    pub power_w: f64,
}

/// An Ethernet switch that can be bought.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchType {
    pub ports: u64,
    /// Rate of a port.
    pub rate_gbps: f64,
    /// Price of a switch.
    #[serde(default)]
    pub price: f64,
    /// Power of a switch.
    #[serde(default)]
    pub power_w: f64,
}

/// The plan with one type of server.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// Name of the server type.
    pub server: String,
    /// The fabric, or why there is none.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// The largest full mesh of such servers, in external ports.
    pub mesh_ports_max: u64,
    /// `mesh_ports_max` rounded down to a power of two, as RouteBricks states it.
    pub mesh_ports_power_of_two: u64,
}

/// Whether it can be built.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It can.
    Built(Box<Fabric>),
    /// It cannot, for this reason.
    Impossible(String),
}

/// The result of `brickmoon plan`: one plan for each server type.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plans {
    /// External ports.
    pub ports: u64,
    pub rate_gbps: f64,
    /// A plan for each server type.
    pub plans: Vec<Plan>,
    /// These external ports with switches between the servers.
    pub switched: Option<Switched>,
}

impl Requirements {
    /// Reads a file's text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wanted: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        wanted.check()?;
        Ok(wanted)
    }

    /// Why these values are invalid.
    pub fn check(&self) -> Result<(), String> {
        if self.server.is_empty() {
            return Err("no server type is configured: add a [[server]] with name, ports and slots".into());
        }
        if self.nic.is_empty() {
            return Err("no network card is configured: add a [[nic]] with name, ports and rate_gbps".into());
        }
        if !(2..=65_536).contains(&self.ports) {
            return Err("ports must be from 2 to 65536".into());
        }
        positive("rate_gbps", self.rate_gbps)?;
        for server in &self.server {
            let name = &server.name;
            if server.ports == 0 || server.ports > 32 || server.slots == 0 || server.slots > 1024 {
                return Err(format!("server {name:?}: ports must be from 1 to 32, slots from 1 to 1024"));
            }
        }
        for nic in &self.nic {
            positive(&format!("nic {:?}: rate_gbps", nic.name), nic.rate_gbps)?;
            if nic.ports == 0 || nic.ports > 1024 {
                return Err(format!("nic {:?}: ports must be from 1 to 1024", nic.name));
            }
        }
        match &self.switch {
            Some(switch) if switch.ports < 2 || switch.ports > 4096 => {
                Err("switch: ports must be from 2 to 4096".into())
            }
            Some(switch) => positive("switch: rate_gbps", switch.rate_gbps),
            None => Ok(()),
        }
    }

    /// Plans with each server type.
    pub fn plan(&self) -> Plans {
        Plans {
            ports: self.ports,
            rate_gbps: self.rate_gbps,
            plans: self.server.iter().map(|server| self.plan_with(server)).collect(),
            switched: self.switch.as_ref().map(|switch| costs::switched(self, switch)),
        }
    }

    fn plan_with(&self, server: &ServerType) -> Plan {
        let outcome = match fabric::build(self, server) {
            Ok(fabric) => Outcome::Built(Box::new(fabric)),
            Err(why) => Outcome::Impossible(why),
        };
        let most = fabric::mesh_max(self, server);
        let power = if most == 0 { 0 } else { 1 << most.ilog2() };
        Plan { server: server.name.clone(), outcome, mesh_ports_max: most, mesh_ports_power_of_two: power }
    }
}

fn positive(what: &str, value: f64) -> Result<(), String> {
    if value.is_finite() && value > 0.0 { Ok(()) } else { Err(format!("{what} must be greater than 0")) }
}

#[cfg(test)]
mod tests;
