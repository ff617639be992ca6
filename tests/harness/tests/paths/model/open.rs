//! Steps after which brickmoon is known to differ from Linux: they are not made, so that the test finds what is new. A
//! line goes when its reason is gone. `BM_MODEL_OPEN=1` makes these steps as well.

use crate::model::step::{Kind, Step};

/// A known difference.
struct Open {
    kind: Kind,
    /// Words that a step must contain, all of them.
    words: &'static [&'static str],
    why: &'static str,
}

/// None at present.
const OPEN: &[Open] = &[];

fn with_open() -> bool {
    std::env::var_os("BM_MODEL_OPEN").is_some()
}

/// Why a step is not made.
pub fn reason(step: &Step) -> Option<&'static str> {
    if with_open() {
        return None;
    }
    let text = step.whole();
    let is_it = |open: &&Open| open.kind == step.kind && open.words.iter().all(|word| text.contains(word));
    OPEN.iter().find(is_it).map(|open| open.why)
}
