//! What the program uses, read back from its maps.

use std::sync::atomic::Ordering::Acquire;

use super::Kernel;
use crate::configuration::Configuration;
use crate::layout::View;

impl Kernel {
    /// What in the program's maps differs from `configuration`, one sentence for each difference.
    pub fn differences(&self, configuration: &Configuration) -> Vec<String> {
        let current = self.mapped.head().current.load(Acquire) as usize & 1;
        let mut differences = of_views(&self.mapped.read(current), &configuration.view());
        let filters = match (&self.filters, &configuration.filters) {
            (Some(maps), Some(filters)) => maps.holds(filters, &configuration.filter_inputs()),
            (maps, filters) => maps.is_none() && filters.is_none(),
        };
        if !filters {
            differences.push("the kernel path does not use the filter rules that it should".into());
        }
        differences
    }
}

fn of_views(found: &View, should: &View) -> Vec<String> {
    let mut differences = Vec::new();
    for (found, should) in found.ingress.iter().zip(&should.ingress).filter(|(found, should)| found != should)
    {
        differences
            .push(format!("the kernel path has the ingress settings {found:x?} and should have {should:x?}"));
    }
    for (found, should) in found.egress.iter().zip(&should.egress).filter(|(found, should)| found != should) {
        differences
            .push(format!("the kernel path has the egress settings {found:x?} and should have {should:x?}"));
    }
    if (found.flow_seed, found.policy_ipv4, found.policy_ipv6)
        != (should.flow_seed, should.policy_ipv4, should.policy_ipv6)
        || found.local != should.local
        || found.vlans != should.vlans
        || found.tc_mtus != should.tc_mtus
    {
        differences
            .push("the kernel path does not use the addresses, VLANs or hash settings that it should".into());
    }
    differences
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::LINUX_ONLY;

    #[test]
    fn each_difference_is_reported() {
        let (mut found, should) = (View::empty(), View::empty());
        assert!(of_views(&found, &should).is_empty());
        found.ingress[3].flags = LINUX_ONLY[0];
        found.egress[1].mtu = 1500;
        found.local[7] = 1;
        let told = of_views(&found, &should);
        assert!(told.len() == 3 && told[0].contains("flags: 8"), "{told:?}");
    }
}
