//! `[flows]`: what Linux has decided about the first packets of a flow, for brickmoon to repeat.

use super::forms::{Choice, word_or_number};

/// Whether what Linux decides about the first packets of a flow is repeated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlowsMode {
    /// Wherever it can be.
    Auto,
    /// Never: Linux forwards every packet that its firewall may concern.
    #[default]
    Off,
}

/// Names in the configuration.
const FLOWS_MODES: [(&str, FlowsMode); 2] = [("auto", FlowsMode::Auto), ("off", FlowsMode::Off)];

/// Memory of the machine for each flow of the default, in bytes: a flow itself takes about 134.
const MEMORY_PER_FLOW: u64 = 64 << 10;
/// The least and the most flows of the default.
const FLOWS_MIN: u64 = 16_384;
const FLOWS_MAX: u64 = 1_000_000;

settings! {
    /// Connections through Linux's firewall: Linux decides about the first packets of a flow, and brickmoon forwards the
    /// others, with the same translation of addresses.
    #[table("[flows]", "docs/flows.md")]
    pub struct Flows {
        /// "auto" repeats what Linux decides where all packets of a flow fare alike, on the kernel path; with "off" Linux
        /// forwards all packets that its firewall may concern.
        #[setting(mode = "off", Choice(&FLOWS_MODES), Daemon)]
        pub mode: FlowsMode,
        /// How many flows there can be; a connection has two. Each takes about 134 bytes of memory. "auto" is one for each
        /// 64 KiB of the machine's memory, at least 16384 and at most 1000000.
        #[setting(max = "auto", word_or_number(1024..=4_000_000), Daemon)]
        pub max: Option<u32>,
    }
}

impl Flows {
    /// How many flows there can be on this machine.
    pub fn max(&self) -> usize {
        let memory = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| total_memory(&text));
        self.max_with(memory.unwrap_or_default())
    }

    /// How many flows there can be on a machine with so many bytes of memory.
    fn max_with(&self, memory: u64) -> usize {
        let default = (memory / MEMORY_PER_FLOW).clamp(FLOWS_MIN, FLOWS_MAX);
        self.max.map_or(default, u64::from) as usize
    }
}

/// The machine's memory in bytes, from `/proc/meminfo`.
fn total_memory(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_grows_with_memory_within_limits() {
        let flows = Flows::default();
        assert_eq!(total_memory("MemTotal:       16777216 kB\nMemFree: 1 kB\n"), Some(16 << 30));
        assert_eq!(flows.max_with(16 << 30), 262_144);
        assert_eq!(flows.max_with(0), 16_384);
        assert_eq!(flows.max_with(1 << 40), 1_000_000);
        assert_eq!(Flows { max: Some(4_000_000), ..flows }.max_with(0), 4_000_000);
    }
}
