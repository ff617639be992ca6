//! What the kernel path was told last, and whether it took that in.

use bm_fastpath::Situation;

/// What the kernel path was told last, and whether it took that in.
#[derive(Default)]
pub(super) struct Told {
    /// What it took in last.
    last: Option<Situation>,
    /// Whether it took in what it was told since, which the tables go with.
    sure: bool,
}

impl Told {
    /// Tells it by `publish`. If that fails, it goes on by what there was before, and lacks whatever is next.
    pub fn tell<E>(
        &mut self,
        situation: Situation,
        publish: impl FnOnce(&Situation) -> Result<(), E>,
    ) -> Result<(), E> {
        self.sure = false;
        publish(&situation)?;
        (self.last, self.sure) = (Some(situation), true);
        Ok(())
    }

    /// What it took in last.
    pub fn last(&self) -> Option<&Situation> {
        self.last.as_ref()
    }

    /// Whether it took in the last that it was told.
    pub fn is_sure(&self) -> bool {
        self.sure
    }

    /// Whether it has to be told this.
    pub fn lacks(&self, situation: &Situation) -> bool {
        !self.sure || self.last.as_ref() != Some(situation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_is_to_be_told_again_though_it_is_the_same() {
        let mut told = Told::default();
        let (one, two) = (Situation::default(), Situation { flow_seed: 2, ..Situation::default() });
        assert!(told.lacks(&one) && !told.is_sure());
        told.tell(one.clone(), |_| Ok::<_, ()>(())).unwrap();
        assert!(!told.lacks(&one) && told.lacks(&two) && told.is_sure());
        // New tables, and the situation is the one before: it must be published all the same.
        told.tell(one.clone(), |_| Err(())).unwrap_err();
        assert!(told.lacks(&one) && !told.is_sure());
        assert_eq!(told.last(), Some(&one), "by which it goes on");
        told.tell(one.clone(), |_| Ok::<_, ()>(())).unwrap();
        assert!(!told.lacks(&one) && told.is_sure());
    }
}
