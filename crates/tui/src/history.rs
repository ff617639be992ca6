//! The latest rates of one counter, drawn as a row of bars.

use std::collections::VecDeque;

/// How many rates are kept: as many as a screen may show.
const KEPT: usize = 60;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The latest rates, oldest first.
#[derive(Clone, Debug, Default)]
pub struct History(VecDeque<f64>);

impl History {
    /// Adds a rate, and forgets the oldest one if there are too many.
    pub fn push(&mut self, rate: f64) {
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(rate);
    }

    /// The last `width` rates, one character each; the tallest bar is the highest of them. A rate of zero is a blank.
    pub fn bars(&self, width: usize) -> String {
        let shown = self.0.iter().skip(self.0.len().saturating_sub(width));
        let highest = shown.clone().copied().fold(0.0, f64::max);
        shown.map(|rate| bar(*rate, highest)).collect()
    }
}

fn bar(rate: f64, highest: f64) -> char {
    if rate <= 0.0 || highest <= 0.0 {
        return ' ';
    }
    let step = (rate / highest * BARS.len() as f64).ceil() as usize;
    BARS[step.clamp(1, BARS.len()) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_the_latest_rates_against_the_highest() {
        let mut history = History::default();
        assert_eq!(history.bars(8), "");
        [0.0, 1.0, 50.0, 100.0].into_iter().for_each(|rate| history.push(rate));
        assert_eq!(history.bars(8), " ▁▄█");
        assert_eq!(history.bars(3), "▁▄█");
        (0..100).for_each(|_| history.push(5.0));
        assert_eq!(history.bars(80), "█".repeat(KEPT));
    }
}
