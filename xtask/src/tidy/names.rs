//! Names that have been given up, for one that the field uses: they do not come back.

use crate::sources::Source;

/// Words of identifiers, and what to write instead. docs/glossary.md has the names that hold.
const GIVEN_UP: [(&str, &str); 21] = [
    ("Asker", "NeighborRequests"),
    ("Berth", "MovableQueue"),
    ("berth", "movable queue"),
    ("Births", "Generations"),
    ("Crew", "WorkerResources"),
    ("Depot", "FramePool"),
    ("depot", "frame_pool"),
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
    ("Seat", "QueueOwner, WorkerContext or HookContext"),
    ("ToldPort", "PortSteering"),
    ("Twin", "HostTap"),
];

/// The files that may say them: this one.
const HERE: &str = "xtask/src/tidy/names.rs";

/// Every line that has a name of those.
pub fn check(sources: &[Source]) -> Vec<String> {
    let others = sources.iter().filter(|source| source.path.as_os_str() != HERE);
    let of_one = |source: &Source| {
        let lines =
            source.text.lines().enumerate().filter_map(|(index, line)| Some((index + 1, found(line)?)));
        let path = source.path.display();
        lines.map(|(line, (old, new))| format!("{path}:{line}: {old} is {new} now")).collect::<Vec<_>>()
    };
    others.flat_map(of_one).collect()
}

/// The first given-up name of a line: whole words, and parts of names between underscores.
fn found(line: &str) -> Option<(&'static str, &'static str)> {
    let words = || line.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    GIVEN_UP.into_iter().find(|(old, _)| words().any(|word| word == *old))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_whole_words_alone() {
        assert_eq!(found("    depot: Arc<Depot>,"), Some(("Depot", "FramePool")));
        assert_eq!(found("let port_depot = 1;"), Some(("depot", "frame_pool")));
        assert_eq!(found("/// Silent lanes, and a Depoted."), None);
    }
}
