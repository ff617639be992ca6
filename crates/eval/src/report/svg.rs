//! What drawings of results have in common: their width, their colours and their text.

use std::fmt::Write;

/// Pixels.
pub(super) const WIDTH: usize = 760;
/// Told apart by people who see colours otherwise, too (Okabe and Ito; then some of Tol's).
pub(super) const COLOURS: [&str; 12] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999", "#000000", "#882255",
    "#44aa99", "#999933", "#332288",
];

pub(super) fn label(body: &mut String, x: usize, y: usize, anchor: &str, text: &str, weight: &str) {
    let text = escaped(text);
    let _ = writeln!(
        body,
        "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\" font-weight=\"{weight}\">{text}</text>"
    );
}

pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
