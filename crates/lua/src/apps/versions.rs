//! Which version of the apps is started: not one that has failed, if there was another one before it.

use super::spec::AppsSpec;

/// The version that runs, and what it may go back to.
#[derive(Default)]
pub struct Versions {
    current: AppsSpec,
    /// What ran before and has not failed.
    earlier: Option<AppsSpec>,
    /// Those that have failed since the last change.
    failed: Vec<AppsSpec>,
}

impl Versions {
    /// The version that runs, or ran last.
    pub fn current(&self) -> &AppsSpec {
        &self.current
    }

    /// The one to start if `wanted` is what the configuration and its files say: `wanted`, unless it has failed and
    /// another one with the same links has not.
    pub fn choose(&self, wanted: AppsSpec) -> AppsSpec {
        if !self.failed.contains(&wanted) {
            return wanted;
        }
        let mut others = [Some(&self.current), self.earlier.as_ref()].into_iter().flatten();
        let good = others.find(|other| !self.failed.contains(other) && other.is_linked_like(&wanted));
        good.cloned().unwrap_or(wanted)
    }

    /// Notes that workers have `version` now.
    pub fn begin(&mut self, version: AppsSpec) {
        if version == self.current {
            return;
        }
        if self.earlier.as_ref() == Some(&version) {
            // Gone back to: nothing is known about what came before it.
            self.earlier = None;
            self.current = version;
            return;
        }
        let before = std::mem::replace(&mut self.current, version);
        if !before.apps.is_empty() && !self.failed.contains(&before) {
            self.earlier = Some(before);
        }
        self.failed.clear();
    }

    /// Notes that the version that runs has failed. Returns whether there is an earlier one to go back to.
    pub fn fail(&mut self) -> bool {
        if !self.failed.contains(&self.current) {
            self.failed.push(self.current.clone());
        }
        self.choose(self.current.clone()) != self.current
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apps::{AppSpec, Module};

    fn version(text: &str) -> AppsSpec {
        let file = std::path::PathBuf::from("app.lua");
        let app = AppSpec {
            name: "app".into(),
            module: Module::File(file.clone()),
            class: None,
            argument: serde_json::Value::Null,
            core: None,
        };
        AppsSpec { apps: vec![app], texts: [(file, text.into())].into(), ..AppsSpec::default() }
    }

    #[test]
    fn a_version_that_failed_gives_way_to_the_one_before_it() {
        let mut versions = Versions::default();
        versions.begin(version("one"));
        assert!(!versions.fail(), "nothing ran before");
        assert_eq!(versions.choose(version("one")), version("one"));
        versions.begin(version("two"));
        versions.begin(version("three"));
        assert!(versions.fail());
        assert_eq!(versions.choose(version("three")), version("two"));
        versions.begin(version("two"));
        // It stays, also when the workers restart for another reason.
        assert_eq!(versions.choose(version("three")), version("two"));
        // If that fails as well, the configuration's is tried again.
        assert!(!versions.fail());
        assert_eq!(versions.choose(version("three")), version("three"));
        versions.begin(version("four"));
        assert_eq!(versions.choose(version("three")), version("three"), "a change forgets failures");
    }

    #[test]
    fn a_version_with_other_links_is_not_gone_back_to() {
        let mut versions = Versions::default();
        versions.begin(AppsSpec { outer: vec!["eth0".into()], ..version("one") });
        versions.begin(version("two"));
        assert!(!versions.fail());
    }

    #[test]
    fn a_reload_starts_a_failed_version_again() {
        let mut versions = Versions::default();
        ["one", "two"].into_iter().for_each(|text| versions.begin(version(text)));
        assert!(versions.fail());
        versions.begin(version("one"));
        versions.begin(version("two"));
        assert_eq!(versions.choose(version("two")), version("two"));
        assert!(versions.fail(), "the good one is still known");
    }
}
