//! `brickmoon explain`.

use std::fmt::Write as _;

use bm_api::{Explanation, Step};

/// Width of the names of steps, `neighbor` and `next hop` the longest.
const WIDTH: usize = 10;

/// One line per decision, in order.
pub fn explanation(reply: &Explanation) -> String {
    let mut text = String::new();
    for Step { step, text: said } in &reply.steps {
        let _written = writeln!(text, "{step:WIDTH$} {said}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_lines_in_order() {
        let step = |step: &str, text: &str| Step { step: step.into(), text: text.into() };
        let steps =
            vec![step("route", "10.2.0.0/24 dev r1"), step("next hop", "dev r1"), step("result", "sent")];
        let reply = Explanation { steps, ..Explanation::default() };
        let lines = "route      10.2.0.0/24 dev r1\nnext hop   dev r1\nresult     sent\n";
        assert_eq!(explanation(&reply), lines);
    }
}
