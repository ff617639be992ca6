//! The program's filters: their maps, which exist while there are rules, and the counters of rules.

use super::Kernel;
use crate::configuration::Configuration;
use crate::error::KernelError;
use crate::filters::FilterMaps;
use crate::grace;

impl Kernel {
    /// New maps if filters are added, or none if they are removed; `None` if nothing changes for the program.
    pub(super) fn filters_for(
        &self,
        configuration: &Configuration,
    ) -> Result<Option<Option<FilterMaps>>, KernelError> {
        match (&configuration.filters, &self.filters) {
            (Some(filters), None) => {
                let mut maps =
                    FilterMaps::create().map_err(bm_bpf::Error::program("creating the filter maps"))?;
                maps.publish(filters, configuration.filter_inputs());
                Ok(Some(Some(maps)))
            }
            (None, Some(_)) => Ok(Some(None)),
            _ => Ok(None),
        }
    }

    /// Makes a program with filters use those of the configuration.
    pub(super) fn apply_filters(&mut self, configuration: &Configuration) -> Result<(), KernelError> {
        let (Some(maps), Some(filters)) = (&mut self.filters, &configuration.filters) else { return Ok(()) };
        let asked = configuration.filter_inputs();
        if maps.differs(filters, &asked) {
            grace::wait()
                .map_err(bm_bpf::Error::system("waiting for packets that are still in the program"))?;
            maps.publish(filters, asked);
        }
        Ok(())
    }

    /// How many packets the rules with this counter have matched. Packets to this machine that are not dropped in the
    /// end are not included.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn rule_count(&self, counter: u16) -> Result<u64, KernelError> {
        let failed = bm_bpf::Error::program("reading a rule's counter");
        let Some(maps) = &self.filters else { return Ok(0) };
        Ok(maps.count(counter).map_err(failed)?)
    }

    /// Resets a counter, for use by another rule.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn clear_rule_count(&self, counter: u16) -> Result<(), KernelError> {
        let failed = bm_bpf::Error::program("clearing a rule's counter");
        let Some(maps) = &self.filters else { return Ok(()) };
        Ok(maps.clear(counter).map_err(failed)?)
    }
}
