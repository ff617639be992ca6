//! Aligned columns of plain text.

/// Where the cells of a column stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Figures.
    Right,
}

/// Lines of cells as text, two blanks between columns and none at the ends of lines.
pub fn aligned(lines: &[Vec<String>], columns: &[Align]) -> String {
    let widths: Vec<usize> = (0..columns.len())
        .map(|column| lines.iter().filter_map(move |line| line.get(column)))
        .map(|cells| cells.map(|cell| cell.chars().count()).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for line in lines {
        let cells = line.iter().zip(columns).zip(&widths).map(|((cell, align), &width)| match align {
            Align::Left => format!("{cell:<width$}"),
            Align::Right => format!("{cell:>width$}"),
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// A figure with about four digits that mean something.
pub fn figure(value: f64) -> String {
    match value {
        v if v >= 1000.0 => format!("{v:.0}"),
        v if v >= 100.0 => format!("{v:.1}"),
        v if v >= 10.0 => format!("{v:.2}"),
        v => format!("{v:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_four_digits() {
        let shown = [0.1234, 9.8765, 12.345, 123.45, 12345.6].map(figure);
        assert_eq!(shown, ["0.123", "9.877", "12.35", "123.5", "12346"]);
    }

    #[test]
    fn characters_count_not_bytes() {
        let lines = [vec!["µs".to_string(), "1".into()], vec!["mpps".into(), "10".into()]];
        assert_eq!(aligned(&lines, &[Align::Left, Align::Right]), "µs     1\nmpps  10\n");
    }
}
