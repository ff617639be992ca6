//! The last configuration of the kernel path, and whether it was applied.

use bm_fastpath::Snapshot;

/// The last configuration of the kernel path, and whether it was applied.
#[derive(Default)]
pub(super) struct LastSnapshot {
    /// The last one that was applied.
    last: Option<Snapshot>,
    /// Whether the latest one, which matches the tables, was applied.
    sure: bool,
}

impl LastSnapshot {
    /// Applies a configuration with `publish`. If that fails, the previous one stays in effect, and any next one counts as new.
    pub fn apply<E>(
        &mut self,
        snapshot: Snapshot,
        publish: impl FnOnce(&Snapshot) -> Result<(), E>,
    ) -> Result<(), E> {
        self.sure = false;
        publish(&snapshot)?;
        (self.last, self.sure) = (Some(snapshot), true);
        Ok(())
    }

    /// The last configuration that was applied.
    pub fn last(&self) -> Option<&Snapshot> {
        self.last.as_ref()
    }

    /// Whether the latest configuration was applied.
    pub fn is_sure(&self) -> bool {
        self.sure
    }

    /// Whether this configuration must be applied.
    pub fn needs(&self, snapshot: &Snapshot) -> bool {
        !self.sure || self.last.as_ref() != Some(snapshot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_updates_are_repeated_even_if_unchanged() {
        let mut last = LastSnapshot::default();
        let (one, two) = (Snapshot::default(), Snapshot { flow_seed: 2, ..Snapshot::default() });
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
