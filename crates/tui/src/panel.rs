//! A table on the screen: columns, rows, and whether a row needs attention.

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use serde_json::{Map, Value};

use crate::number;

/// How a column is aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

/// One value of a row: its text, and its value for JSON.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    text: String,
    value: Value,
    /// Whether the value needs attention.
    bad: bool,
}

impl Cell {
    pub fn text(text: impl Into<String>) -> Self {
        let text = text.into();
        Self { value: Value::String(text.clone()), text, bad: false }
    }

    /// A rate, or `-` while there is none.
    pub fn rate(rate: Option<f64>) -> Self {
        Self { text: rate.map_or("-".into(), number::short), value: rate.into(), bad: false }
    }

    pub fn count(count: u64) -> Self {
        Self { text: bm_api::number::count(count), value: count.into(), bad: false }
    }

    /// A share of one, as a percentage.
    pub fn share(share: Option<f64>) -> Self {
        let percent = share.map(|share| share * 100.0);
        Self {
            text: percent.map_or("-".into(), |percent| format!("{percent:.0} %")),
            value: percent.into(),
            bad: false,
        }
    }

    /// Marks the value if it needs attention.
    pub(crate) fn bad_if(mut self, bad: bool) -> Self {
        self.bad = bad;
        self
    }

    /// Marks a rate or count above zero.
    pub(crate) fn bad_above_zero(self) -> Self {
        let bad = self.value.as_f64().is_some_and(|value| value > 0.0);
        self.bad_if(bad)
    }

    fn style(&self) -> Style {
        if self.bad { Style::new().fg(Color::Red) } else { Style::new() }
    }
}

/// A table with a title.
#[derive(Clone, Debug)]
pub struct Panel {
    pub title: &'static str,
    columns: &'static [(&'static str, Align)],
    rows: Vec<Vec<Cell>>,
    /// Shown if there are no rows.
    empty: &'static str,
}

impl Panel {
    pub fn new(title: &'static str, columns: &'static [(&'static str, Align)], empty: &'static str) -> Self {
        Self { title, columns, rows: Vec::new(), empty }
    }

    /// Adds a row with a cell for each column.
    pub fn row(&mut self, cells: impl Into<Vec<Cell>>) {
        self.rows.push(cells.into());
    }

    /// Keeps the rows in which a cell contains this text, in whichever case.
    pub fn filter(&mut self, text: &str) {
        let wanted = text.to_lowercase();
        self.rows.retain(|row| row.iter().any(|cell| cell.text.to_lowercase().contains(&wanted)));
    }

    /// Title, heading and rows.
    pub fn lines(&self) -> Vec<Line<'static>> {
        let mut lines = vec![Line::styled(self.title, Style::new().add_modifier(Modifier::BOLD))];
        if self.rows.is_empty() {
            lines.push(Line::styled(format!("  {}", self.empty), Style::new().fg(Color::DarkGray)));
            return lines;
        }
        let widths = self.widths();
        let names = self.columns.iter().map(|(name, _)| Span::raw(*name));
        lines.push(self.line(&widths, names).style(Style::new().fg(Color::Cyan)));
        for row in &self.rows {
            let cells = row.iter().map(|cell| Span::styled(cell.text.clone(), cell.style()));
            lines.push(self.line(&widths, cells));
        }
        lines
    }

    fn line(&self, widths: &[usize], cells: impl Iterator<Item = Span<'static>>) -> Line<'static> {
        let mut spans = Vec::new();
        for ((cell, width), (_, align)) in cells.zip(widths).zip(self.columns) {
            let padding = " ".repeat(width.saturating_sub(cell.width()));
            spans.push(Span::raw("  "));
            match align {
                Align::Left => spans.extend([cell, Span::raw(padding)]),
                Align::Right => spans.extend([Span::raw(padding), cell]),
            }
        }
        Line::from(spans)
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths: Vec<_> = self.columns.iter().map(|(name, _)| name.len()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = Span::raw(&cell.text).width().max(*width);
            }
        }
        widths
    }

    /// The rows as objects, with the columns' names as keys.
    pub fn json(&self) -> Value {
        let objects = self.rows.iter().map(|row| {
            let entries = self.columns.iter().zip(row).filter(|((name, _), _)| *name != HISTORY);
            entries.map(|((name, _), cell)| (key(name), cell.value.clone())).collect::<Map<_, _>>()
        });
        Value::Array(objects.map(Value::Object).collect())
    }
}

/// The column of bars, which is not in JSON.
pub(crate) const HISTORY: &str = "HISTORY";

/// A column's name in JSON.
fn key(name: &str) -> String {
    name.to_lowercase().replace([' ', '/'], "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &[(&str, Align)] =
        &[("PORT", Align::Left), ("RX BIT/S", Align::Right), (HISTORY, Align::Left)];

    fn panel() -> Panel {
        let mut panel = Panel::new("Ports", COLUMNS, "no ports");
        panel.row([Cell::text("eth0"), Cell::rate(Some(1500.0)), Cell::text("▁█")]);
        panel.row([Cell::text("x"), Cell::rate(None), Cell::text("")]);
        panel
    }

    fn text(panel: &Panel) -> Vec<String> {
        panel.lines().iter().map(|line| line.to_string().trim_end().to_string()).collect()
    }

    #[test]
    fn aligns_filters_and_says_what_is_missing() {
        let mut panel = panel();
        assert_eq!(
            text(&panel),
            ["Ports", "  PORT  RX BIT/S  HISTORY", "  eth0     1.50k  ▁█", "  x            -"]
        );
        panel.filter("ETH");
        assert_eq!(text(&panel).len(), 3);
        panel.filter("nothing");
        assert_eq!(text(&panel), ["Ports", "  no ports"]);
    }

    #[test]
    fn programs_get_numbers() {
        assert_eq!(
            panel().json().to_string(),
            r#"[{"port":"eth0","rx_bit_s":1500.0},{"port":"x","rx_bit_s":null}]"#
        );
    }
}
