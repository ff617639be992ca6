//! The differences that a comparison of tables finds.

use bm_api::Area;

/// Result of a comparison.
#[derive(Debug, Default)]
pub struct Comparison {
    /// The first differences.
    pub differences: Vec<(Area, String)>,
    /// Total number of differences.
    pub count: usize,
    /// Number of compared entries.
    pub compared: usize,
}

/// Maximum number of differences kept as text.
const KEPT: usize = 1000;

impl Comparison {
    pub(super) fn differs(&mut self, area: Area, sentence: impl FnOnce() -> String) {
        self.count += 1;
        if self.differences.len() < KEPT {
            self.differences.push((area, sentence()));
        }
    }
}
