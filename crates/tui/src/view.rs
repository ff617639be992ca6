//! The views: which there are, and what each shows.

use std::str::FromStr;

use crate::model::Model;
use crate::panel::Panel;
use crate::panels;
use crate::sample::Sample;

/// What the screen shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum View {
    /// Ports, workers and drops.
    #[default]
    Overview,
    Ports,
    Workers,
    Drops,
    /// The table of flows.
    Flows,
    /// Apps and the links between them.
    Apps,
    Hooks,
    Switches,
    /// IPsec SAs.
    Ipsec,
    Cluster,
}

impl View {
    /// All views, in the order of their keys.
    pub const ALL: [Self; 10] = [
        Self::Overview,
        Self::Ports,
        Self::Workers,
        Self::Drops,
        Self::Flows,
        Self::Apps,
        Self::Hooks,
        Self::Switches,
        Self::Ipsec,
        Self::Cluster,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Overview => "overview",
            Self::Ports => "ports",
            Self::Workers => "workers",
            Self::Drops => "drops",
            Self::Flows => "flows",
            Self::Apps => "apps",
            Self::Hooks => "hooks",
            Self::Switches => "switches",
            Self::Ipsec => "ipsec",
            Self::Cluster => "cluster",
        }
    }

    /// Whether there is anything of this kind.
    pub(crate) fn is_present(self, sample: &Sample) -> bool {
        match self {
            Self::Overview | Self::Drops => true,
            Self::Ports => sample.status.path != "lua",
            Self::Workers => !sample.workers.workers.is_empty(),
            Self::Flows => sample.status.flows.max > 0,
            Self::Apps => !sample.apps.apps.is_empty() || !sample.links.links.is_empty(),
            Self::Hooks => !sample.hooks.hooks.is_empty(),
            Self::Switches => !sample.switches.switches.is_empty(),
            Self::Ipsec => !sample.sas.sas.is_empty(),
            Self::Cluster => sample.cluster.members > 0,
        }
    }

    /// Its tables.
    pub fn panels(self, model: &Model) -> Vec<Panel> {
        let Some(sample) = model.sample() else { return Vec::new() };
        match self {
            Self::Overview => panels::overview(model, sample),
            Self::Ports => vec![panels::ports(model, sample), panels::left_to_linux(sample)],
            Self::Workers => vec![panels::workers(model, sample)],
            Self::Drops => vec![panels::drops(model, sample)],
            Self::Flows => vec![panels::flow_table(model, sample), panels::flow_ends(model, sample)],
            Self::Apps => vec![panels::apps(model, sample), panels::links(model, sample)],
            Self::Hooks => vec![panels::hooks(model, sample)],
            Self::Switches => vec![panels::switches(model, sample)],
            Self::Ipsec => vec![panels::sas(model, sample)],
            Self::Cluster => vec![panels::fabric(model, sample)],
        }
    }
}

impl FromStr for View {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|view| view.name() == text);
        found.ok_or_else(|| format!("expected one of {}", Self::ALL.map(Self::name).join(", ")))
    }
}
