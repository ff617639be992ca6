//! A drawing of results: for each case a bar a subject, with a whisker from least to greatest.
//!
//! Plain SVG with its colours inside, to be looked at in a browser or put into a page.

use std::fmt::Write;

use super::svg::{COLOURS, WIDTH, escaped, label};
use super::{Row, sweep, text};

const BAR: usize = 18;
const GAP: usize = 14;
const LEFT: usize = 130;
const PLOT: usize = WIDTH - LEFT - 110;

/// The rows as one SVG document. Rows of a case must stand together. Each unit has a scale of its own, and
/// cases over the batch size are drawn as lines.
pub fn svg(title: &str, rows: &[Row]) -> String {
    let mut subjects: Vec<&str> = Vec::new();
    rows.iter().for_each(|row| {
        if !subjects.contains(&row.subject.as_str()) {
            subjects.push(&row.subject);
        }
    });
    let bars: Vec<&Row> = rows.iter().filter(|row| sweep::parted(&row.case).is_none()).collect();
    let (mut body, mut y) = (String::new(), 44);
    for (index, row) in bars.iter().enumerate() {
        if index == 0 || bars[index - 1].case != row.case {
            y += GAP;
            label(&mut body, 8, y + 10, "start", &format!("{} ({})", row.case, row.unit), "bold");
            y += GAP + 2;
        }
        let colour = subjects.iter().position(|&subject| subject == row.subject).unwrap_or_default();
        bar(&mut body, row, y, scale(&bars, &row.unit), COLOURS[colour % COLOURS.len()]);
        y += BAR + 4;
    }
    for sweep in sweep::sweeps(rows) {
        y = sweep.draw(&mut body, y + GAP, &subjects);
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"8\" y=\"24\" font-size=\"16\">{title}</text>\n{body}</svg>\n",
        height = y + GAP,
        title = escaped(title),
    )
}

/// Pixels to one of this unit.
fn scale(rows: &[&Row], unit: &str) -> f64 {
    let of_unit = rows.iter().filter(|row| row.unit == unit).map(|row| row.max);
    PLOT as f64 / of_unit.fold(f64::MIN_POSITIVE, f64::max)
}

fn bar(body: &mut String, row: &Row, y: usize, scale: f64, colour: &str) {
    let at = |value: f64| LEFT as f64 + value * scale;
    let middle = y + BAR / 2;
    label(body, LEFT - 6, y + 13, "end", &row.subject, "normal");
    let _ = writeln!(
        body,
        "<rect x=\"{LEFT}\" y=\"{y}\" width=\"{:.1}\" height=\"{BAR}\" fill=\"{colour}\"/>\n\
         <path d=\"M{:.1} {middle}H{:.1}\" stroke=\"#000\" fill=\"none\"/>",
        row.median * scale,
        at(row.min),
        at(row.max),
    );
    label(body, at(row.max) as usize + 6, y + 13, "start", &text::figure(row.median), "normal");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_every_row_to_scale() {
        let drawing = svg("a < b", &super::super::tests::rows());
        assert!(drawing.starts_with("<svg ") && drawing.ends_with("</svg>\n"));
        assert!(drawing.contains("a &lt; b"));
        // One background and three bars; the greatest value, 4.0, ends where the plot does.
        assert_eq!(drawing.matches("<rect").count(), 4);
        assert!(drawing.contains("H650.0\""), "{drawing}");
        assert_eq!(drawing.matches("font-weight=\"bold\"").count(), 2);
        assert_eq!(svg("", &[]).matches("<rect").count(), 1);
    }

    #[test]
    fn draws_a_sweep_as_lines_and_each_unit_to_its_own_scale() {
        let mut rows = super::super::tests::rows();
        for (batch, median) in [(1, 1.0), (16, 3.0), (256, 4.0)] {
            let case = format!("ipv4-full-prefix-batch-{batch}");
            rows.push(Row { case, median, subject: "swept".into(), ..rows[0].clone() });
        }
        rows.push(Row { unit: "s".into(), case: "build".into(), max: 400.0, ..rows[0].clone() });
        let drawing = svg("t", &rows);
        assert_eq!(drawing.matches("<polyline").count(), 1);
        // From a quarter of the height at the left to all of it at the right.
        let points = drawing.split("points=\"").nth(1).unwrap().split('"').next().unwrap();
        let ends: Vec<&str> = points.split(' ').collect();
        assert_eq!(
            (ends.len(), ends[0].split(',').next(), ends[2].split(',').next()),
            (3, Some("60"), Some("490"))
        );
        assert_eq!(
            drawing.matches("H650.0\"").count(),
            2,
            "the greatest of both units end where the plot does"
        );
    }
}
