//! Aligned columns with a heading.

use std::fmt;

/// Alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// For words.
    Left,
    /// For numbers.
    Right,
}

struct Column {
    name: String,
    align: Align,
}

/// Rows below a heading; each column is as wide as its widest cell.
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
    empty: &'static str,
}

impl Table {
    /// A table with these column names. `empty` is printed instead if there are no rows.
    pub fn new(columns: &[(&str, Align)], empty: &'static str) -> Self {
        Self {
            columns: columns.iter().map(|&(name, align)| Column { name: name.into(), align }).collect(),
            rows: Vec::new(),
            empty,
        }
    }

    /// Adds a row; missing cells stay empty.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths: Vec<_> = self.columns.iter().map(|column| column.name.chars().count()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.chars().count().max(*width);
            }
        }
        widths
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.rows.is_empty() {
            return writeln!(f, "{}", self.empty);
        }
        let widths = self.widths();
        let heading: Vec<_> = self.columns.iter().map(|column| column.name.clone()).collect();
        for row in std::iter::once(&heading).chain(&self.rows) {
            let mut line = String::new();
            for (at, column) in self.columns.iter().enumerate() {
                let cell = row.get(at).map_or("", String::as_str);
                let width = widths[at];
                line += &match column.align {
                    Align::Left => format!("{cell:<width$}  "),
                    Align::Right => format!("{cell:>width$}  "),
                };
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligns_words_left_and_numbers_right() {
        let mut table = Table::new(&[("port", Align::Left), ("frames", Align::Right)], "no ports");
        assert_eq!(table.to_string(), "no ports\n");
        table.row(["eth0".into(), "5".into()]);
        table.row(["x".into(), "1,000,000".into()]);
        assert_eq!(table.to_string(), "port     frames\neth0          5\nx     1,000,000\n");
    }
}
