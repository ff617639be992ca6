//! Finds the word that somebody probably meant.

/// The known word that was probably meant: a small edit distance away; `None` if none is close.
pub(super) fn closest<'w>(written: &str, known: &[&'w str]) -> Option<&'w str> {
    let near = known.iter().map(|word| (distance(written, word), *word));
    let (away, word) = near.min_by_key(|(away, _)| *away)?;
    (away <= 1 + written.len().min(word.len()) / 4).then_some(word)
}

/// Edit distance: letters to insert, delete, replace or swap with the next to turn one word into the other.
fn distance(one: &str, two: &str) -> usize {
    let (one, two): (Vec<char>, Vec<char>) = (one.chars().collect(), two.chars().collect());
    let mut rows = vec![vec![0; two.len() + 1]; one.len() + 1];
    for i in 0..=one.len() {
        for j in 0..=two.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let replaced = rows[i - 1][j - 1] + usize::from(one[i - 1] != two[j - 1]);
                let swapped = i > 1 && j > 1 && one[i - 1] == two[j - 2] && one[i - 2] == two[j - 1];
                let swapped = if swapped { rows[i - 2][j - 2] + 1 } else { usize::MAX };
                replaced.min(swapped).min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1)
            };
        }
    }
    rows[one.len()][two.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_differing_letters() {
        for (one, two, away) in [
            ("port", "port", 0),
            ("prot", "port", 1),
            ("prots", "port", 2),
            ("", "ab", 2),
            ("slot", "slots", 1),
        ] {
            assert_eq!(distance(one, two), away, "{one} {two}");
        }
        assert_eq!(closest("prots", &["daemon", "port"]), Some("port"));
        assert_eq!(closest("interfaces", &["daemon", "port"]), None);
    }
}
