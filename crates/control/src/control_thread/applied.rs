//! The last configuration of the kernel path, and whether it was applied.

use bm_fastpath::Configuration;

/// The last configuration of the kernel path, and whether it was applied.
#[derive(Default)]
pub(super) struct AppliedConfiguration {
    /// The last one that was applied.
    last: Option<Configuration>,
    /// Whether the latest one, which matches the tables, was applied.
    sure: bool,
}

impl AppliedConfiguration {
    /// Applies a configuration with `publish`. If that fails, the previous one stays in effect, and any next one counts as new.
    pub fn apply<E>(
        &mut self,
        configuration: Configuration,
        publish: impl FnOnce(&Configuration) -> Result<(), E>,
    ) -> Result<(), E> {
        self.sure = false;
        publish(&configuration)?;
        (self.last, self.sure) = (Some(configuration), true);
        Ok(())
    }

    /// The last configuration that was applied.
    pub fn last(&self) -> Option<&Configuration> {
        self.last.as_ref()
    }

    /// Whether the latest configuration was applied.
    pub fn is_sure(&self) -> bool {
        self.sure
    }

    /// Whether this configuration must be applied.
    pub fn needs(&self, configuration: &Configuration) -> bool {
        !self.sure || self.last.as_ref() != Some(configuration)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_updates_are_repeated_even_if_unchanged() {
        let mut last = AppliedConfiguration::default();
        let (one, two) =
            (Configuration::default(), Configuration { flow_seed: 2, ..Configuration::default() });
        assert!(last.needs(&one) && !last.is_sure());
        last.apply(one.clone(), |_| Ok::<_, ()>(())).unwrap();
        assert!(!last.needs(&one) && last.needs(&two) && last.is_sure());
        // New tables with an unchanged configuration: it must be published again.
        last.apply(one.clone(), |_| Err(())).unwrap_err();
        assert!(last.needs(&one) && !last.is_sure());
        assert_eq!(last.last(), Some(&one), "it stays in effect");
        last.apply(one.clone(), |_| Ok::<_, ()>(())).unwrap();
        assert!(!last.needs(&one) && last.is_sure());
    }
}
