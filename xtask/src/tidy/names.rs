//! Old names that were replaced with standard terms and must not be used again.

use crate::sources::Source;

/// Old words in identifiers, with their replacements. docs/glossary.md explains the current terms.
const OLD: [(&str, &str); 25] = [
    ("Aside", "Leases"),
    ("Asker", "NeighborRequests"),
    ("Berth", "MovableQueue"),
    ("berth", "movable queue"),
    ("Births", "Generations"),
    ("Crew", "WorkerResources"),
    ("Depot", "FramePool"),
    ("depot", "frame_pool"),
    ("deed", "action"),
    ("Desk", "ReportSlot"),
    ("Desks", "ReportSlots"),
    ("Heed", "FirewallMode"),
    ("Lack", "Shortage"),
    ("Lane", "FamilyBatch"),
    ("Lent", "InFlight"),
    ("Naps", "IdlePoll"),
    ("Neighbour", "Neighbor"),
    ("neighbour", "neighbor"),
    ("neighbours", "neighbors"),
    ("Parcel", "HookUpdate"),
    ("Pulse", "CallState or QueueHeartbeat"),
    ("pulse", "call_state or heartbeat"),
    ("Seat", "QueueOwner, WorkerContext or HookContext"),
    ("ToldPort", "PortSteering"),
    ("Twin", "HostTap"),
];

/// Words that only this tree uses and that are on their way out: `left` in xtask/layers.toml says how many lines still
/// have one. A word that is gone moves to the list above.
const PRIVATE: [&str; 13] = [
    "Blanket",
    "Entrance",
    "Occupant",
    "Situation",
    "Trial",
    "bells",
    "blanket",
    "entrance",
    "occupant",
    "situation",
    "spent",
    "suspects",
    "Fate",
];

/// The first such word in a line.
pub fn private_word(line: &str) -> Option<&'static str> {
    PRIVATE.into_iter().find(|word| has(line, word))
}

/// This file, which may contain them.
const HERE: &str = "xtask/src/tidy/names.rs";

/// Every line with an old name.
pub fn check(sources: &[Source]) -> Vec<String> {
    let others = sources.iter().filter(|source| source.path.as_os_str() != HERE);
    let of_one = |source: &Source| {
        let lines =
            source.text.lines().enumerate().filter_map(|(index, line)| Some((index + 1, found(line)?)));
        let path = source.path.display();
        lines
            .map(|(line, (old, new))| format!("{path}:{line}: {old} is an old name: use {new}"))
            .collect::<Vec<_>>()
    };
    others.flat_map(of_one).collect()
}

/// The first old name in a line.
fn found(line: &str) -> Option<(&'static str, &'static str)> {
    OLD.into_iter().find(|(old, _)| has(line, old))
}

/// Whether a line has a word, as a whole or as a part of a name between underscores.
fn has(line: &str, word: &str) -> bool {
    line.split(|c: char| !c.is_alphanumeric()).any(|part| part == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_only_whole_words() {
        assert_eq!(found("    depot: Arc<Depot>,"), Some(("Depot", "FramePool")));
        assert_eq!(found("let port_depot = 1;"), Some(("depot", "frame_pool")));
        assert_eq!(found("/// Silent lanes, and a Depoted."), None);
    }
}
