//! Lines over the batch size: how a subject gains from being asked for more at once.
//!
//! Rows whose cases differ only in `-batch-N` make one panel; the batch sizes are its columns.

use std::fmt::Write;

use super::svg::{COLOURS, WIDTH, escaped, label};
use super::{Row, text};

const HEIGHT: usize = 220;
const LEFT: usize = 60;
const PLOT: usize = 430;

/// A panel for each case that was swept.
pub struct Sweep<'r> {
    /// The case without its batch.
    pub case: &'r str,
    rows: Vec<(usize, &'r Row)>,
}

/// The case without its batch, and the batch.
pub fn parted(case: &str) -> Option<(&str, usize)> {
    let (case, batch) = case.split_once("-batch-")?;
    Some((case, batch.parse().ok()?))
}

/// The sweeps among the rows, in their order.
pub fn sweeps(rows: &[Row]) -> Vec<Sweep<'_>> {
    let mut sweeps: Vec<Sweep<'_>> = Vec::new();
    for row in rows {
        let Some((case, batch)) = parted(&row.case) else { continue };
        match sweeps.iter_mut().find(|sweep| sweep.case == case) {
            Some(sweep) => sweep.rows.push((batch, row)),
            None => sweeps.push(Sweep { case, rows: vec![(batch, row)] }),
        }
    }
    sweeps
}

impl Sweep<'_> {
    /// Draws it from `top` on; returns where it ends. Colours follow `subjects`.
    pub fn draw(&self, body: &mut String, top: usize, subjects: &[&str]) -> usize {
        let (low, high) = (top + 24, top + 24 + HEIGHT);
        let greatest = self.rows.iter().map(|(_, row)| row.median).fold(f64::MIN_POSITIVE, f64::max);
        let logs = self.rows.iter().map(|(batch, _)| batch.max(&1).ilog2()).max().unwrap_or(0).max(1);
        let x = |batch: usize| LEFT + PLOT * batch.max(1).ilog2() as usize / logs as usize;
        let y = |value: f64| high as f64 - value / greatest * HEIGHT as f64;
        let unit = self.rows.first().map_or("", |(_, row)| row.unit.as_str());
        label(body, 8, top + 10, "start", &format!("{} by batch ({unit})", self.case), "bold");
        let _ = writeln!(
            body,
            "<path d=\"M{LEFT} {low}V{high}H{}\" stroke=\"#999\" fill=\"none\"/>",
            LEFT + PLOT
        );
        label(body, LEFT - 6, low + 4, "end", &text::figure(greatest), "normal");
        label(body, LEFT - 6, high, "end", "0", "normal");
        for log in 0..=logs {
            label(body, x(1 << log), high + 16, "middle", &(1u64 << log).to_string(), "normal");
        }
        let mut labels: Vec<Label<'_>> = Vec::new();
        for (index, subject) in subjects.iter().enumerate() {
            let mut points: Vec<(usize, f64)> = self
                .rows
                .iter()
                .filter(|(_, row)| row.subject == *subject)
                .map(|(batch, row)| (*batch, row.median))
                .collect();
            points.sort_by_key(|(batch, _)| *batch);
            let colour = COLOURS[index % COLOURS.len()];
            let line: Vec<String> =
                points.iter().map(|(batch, value)| format!("{},{:.1}", x(*batch), y(*value))).collect();
            if let Some((_, last)) = points.last() {
                labels.push(Label { y: y(*last), subject, colour });
                let _ = writeln!(
                    body,
                    "<polyline points=\"{}\" stroke=\"{colour}\" stroke-width=\"2\" fill=\"none\"/>",
                    line.join(" ")
                );
            }
        }
        names(body, labels);
        high + 30
    }
}

/// The name of a subject beside the end of its line.
struct Label<'a> {
    y: f64,
    subject: &'a str,
    colour: &'a str,
}

/// Writes the labels so that none covers another.
fn names(body: &mut String, mut labels: Vec<Label<'_>>) {
    labels.sort_by(|one, two| one.y.total_cmp(&two.y));
    let mut free = f64::MIN;
    for Label { y, subject, colour } in labels {
        let at = y.max(free);
        free = at + 13.0;
        let _ = writeln!(
            body,
            "<text x=\"{}\" y=\"{:.0}\" fill=\"{colour}\">{}</text>",
            (LEFT + PLOT + 8).min(WIDTH),
            at + 4.0,
            escaped(subject)
        );
    }
}
