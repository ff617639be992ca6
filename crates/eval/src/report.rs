//! Results for people and programs: an aligned table, JSON lines, a chart.
//!
//! One row is one subject of one case. The JSON of a row is a contract (`brickmoon bench --json`).

mod plot;
mod svg;
mod sweep;
mod text;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::alternate::{Quantiles, Series};
pub use plot::svg;
pub use text::{Align, aligned};

/// The result of one subject in one case.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The bench: `lookup`, `forward` and so on.
    pub bench: String,
    /// The name of the case, such as `ipv4-full-prefix`.
    pub case: String,
    pub subject: String,
    /// The unit of the figures: `mpps`, or another one of the bench.
    pub unit: String,
    /// Minimum.
    pub min: f64,
    pub median: f64,
    /// Maximum.
    pub max: f64,
    /// Nanoseconds of CPU time per item, at the median.
    pub ns: f64,
    /// How often it was measured.
    pub runs: usize,
    /// Further details.
    pub detail: Map<String, Value>,
}

impl Row {
    /// A row for a subject whose items are packets or lookups, in millions a second.
    pub fn mpps(bench: &str, case: &str, measured: &Series) -> Self {
        let Quantiles { min, median, max } = measured.rates();
        let [min, median, max] = [min, median, max].map(|rate| rounded(rate / 1e6));
        Self {
            bench: bench.into(),
            case: case.into(),
            subject: measured.subject.clone(),
            unit: "mpps".into(),
            min,
            median,
            max,
            ns: rounded(measured.ns()),
            runs: measured.samples.len(),
            detail: Map::new(),
        }
    }

    /// Adds a detail.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.detail.insert(name.into(), value.into());
        self
    }
}

/// Rounds to four decimals, more than any of our measurements is accurate to.
fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

/// One JSON object a line.
pub fn json_lines(rows: &[Row]) -> String {
    let mut lines = String::new();
    for row in rows {
        lines += &serde_json::to_string(row).expect("a row holds nothing that JSON has not");
        lines += "\n";
    }
    lines
}

/// An aligned table, case by case, each subject with its ratio to the first one of its case.
pub fn table(rows: &[Row]) -> String {
    let head = ["case", "subject", "min", "median", "max", "unit", "ns", "ratio"].map(String::from);
    let mut lines = vec![head.to_vec()];
    for (index, row) in rows.iter().enumerate() {
        let first = rows.iter().find(|other| other.case == row.case).unwrap_or(row);
        let is_new_case = index == 0 || rows[index - 1].case != row.case;
        lines.push(vec![
            if is_new_case { row.case.clone() } else { String::new() },
            row.subject.clone(),
            text::figure(row.min),
            text::figure(row.median),
            text::figure(row.max),
            row.unit.clone(),
            format!("{:.1}", row.ns),
            if first.median > 0.0 { format!("{:.2}", row.median / first.median) } else { "-".into() },
        ]);
    }
    use Align::{Left, Right};
    aligned(&lines, &[Left, Left, Right, Right, Right, Left, Right, Right])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alternate::Sample;

    pub(super) fn rows() -> Vec<Row> {
        let measured = |subject: &str, rates: [f64; 3]| Series {
            subject: subject.into(),
            samples: rates.map(|rate| Sample { items: 1, rate, ns: 1e9 / rate }).to_vec(),
        };
        vec![
            Row::mpps("kernel", "ipv4-full-prefix", &measured("linux", [0.7e6, 0.8e6, 0.75e6])),
            Row::mpps("kernel", "ipv4-full-prefix", &measured("brickmoon", [3e6, 4e6, 3.3e6]))
                .with("drops", 7),
            Row::mpps("kernel", "ipv6-full-prefix", &measured("linux", [0.4e6, 0.5e6, 0.6e6])),
        ]
    }

    #[test]
    fn json_has_the_documented_fields() {
        assert_eq!(
            json_lines(&rows()[1..2]),
            concat!(
                r#"{"bench":"kernel","case":"ipv4-full-prefix","subject":"brickmoon","unit":"mpps","min":3.0,"#,
                r#""median":3.3,"max":4.0,"ns":303.0303,"runs":3,"detail":{"drops":7}}"#,
                "\n"
            )
        );
    }

    #[test]
    fn table_is_aligned_and_compares_within_a_case() {
        let want = "\
case              subject      min  median    max  unit      ns  ratio
ipv4-full-prefix  linux      0.700   0.750  0.800  mpps  1333.3   1.00
                  brickmoon  3.000   3.300  4.000  mpps   303.0   4.40
ipv6-full-prefix  linux      0.400   0.500  0.600  mpps  2000.0   1.00
";
        assert_eq!(table(&rows()), want);
    }
}
