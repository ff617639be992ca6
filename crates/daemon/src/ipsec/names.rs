//! Names of IPsec interfaces, by their numbers.

use std::collections::BTreeMap;

use super::Ipsec;

impl Ipsec {
    /// The name of the interface with this number, as it is shown.
    pub(super) fn interface_name(&self, if_id: u32) -> String {
        let named = || {
            let configured = self.config.interface(if_id).map(|own| own.device.clone());
            configured.or_else(|| self.xfrm_interfaces.get(&if_id).cloned())
        };
        match if_id {
            0 => String::new(),
            _ => named().unwrap_or_else(|| format!("if_id:{if_id}")),
        }
    }

    /// Whether an interface is one of IPsec.
    pub(super) fn is_interface(&self, name: &str) -> bool {
        self.config.interfaces.iter().any(|own| own.device == name)
            || self.xfrm_interfaces.values().any(|own| own == name)
    }

    /// Notes the names of XFRM interfaces, by their numbers.
    pub fn name_interfaces(&mut self, xfrm_interfaces: BTreeMap<u32, String>) {
        self.xfrm_interfaces = xfrm_interfaces;
    }
}
