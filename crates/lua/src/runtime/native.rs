//! An app in Rust in the runtime of a state, called through function pointers once per breath.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bm_graph::{App, Io};
use bm_link::Link;

use super::Runtime;
use crate::hook::guard::uninterrupted;

/// An app in Rust with its links, as Lua's engine calls it.
pub(crate) struct Native {
    app: Box<dyn App>,
    inputs: Vec<usize>,
    outputs: Vec<usize>,
    /// For each output the place up to which Lua's reading has been settled.
    settled: HashMap<usize, usize>,
    runtime: *mut Runtime,
}

impl Native {
    pub fn new(app: Box<dyn App>, runtime: *mut Runtime) -> Self {
        Self { app, inputs: Vec::new(), outputs: Vec::new(), settled: HashMap::new(), runtime }
    }

    /// Announces its links: names, and indices in the runtime's pool. An error if it does not know a name.
    pub fn connect(
        &mut self,
        inputs: (Vec<String>, Vec<usize>),
        outputs: (Vec<String>, Vec<usize>),
    ) -> Result<(), String> {
        self.settled.retain(|link, _| outputs.1.contains(link));
        (self.inputs, self.outputs) = (inputs.1, outputs.1);
        let connected = catch_unwind(AssertUnwindSafe(|| self.app.connect(&inputs.0, &outputs.0)));
        connected.map_err(|panic| {
            panic.downcast_ref::<String>().cloned().unwrap_or("the app cannot use this link".into())
        })
    }

    pub fn wait_on(&self) -> Option<BorrowedFd<'_>> {
        self.app.wait_on()
    }

    /// Whether it may sleep: not if it has work left, nor if nothing would wake it.
    pub fn before_sleep(&mut self) -> bool {
        self.app.before_sleep() && !self.app.must_be_polled()
    }

    pub fn after_sleep(&mut self) {
        self.app.after_sleep();
    }

    pub fn stop(&mut self) {
        self.with(|app, io| app.stop(io));
    }

    /// Runs `job` with the app's links and the worker's free frames. A panic ends the program, not the process.
    fn with(&mut self, job: impl FnOnce(&mut dyn App, &mut Io<'_>)) {
        let runtime = self.runtime;
        // SAFETY: the runtime outlives its natives and does not move; it runs on one thread, and Lua, which also
        // touches links and free frames, waits for this call. The borrows are of different fields, and nobody holds the
        // first two across a call of an app. What Lua writes in `shared` is in cells.
        let (links, frames, shared) =
            unsafe { ((*runtime).links.slice(), &mut (*runtime).frames, &(*runtime).shared) };
        for &output in &self.outputs {
            let from = self.settled.entry(output).or_default();
            *from = links[output].settle(*from);
        }
        let before = moves(links, &self.inputs, &self.outputs);
        let mut io = Io::new(links, &self.inputs, &self.outputs, frames, shared.now_ns.get());
        let done = catch_unwind(AssertUnwindSafe(|| job(self.app.as_mut(), &mut io)));
        shared.moved.set(shared.moved.get() + moves(links, &self.inputs, &self.outputs) - before);
        if done.is_err() {
            shared.failed.set(1);
        }
    }
}

/// How often a frame was sent or received on links of an app.
fn moves(links: &[Link], inputs: &[usize], outputs: &[usize]) -> u64 {
    inputs.iter().chain(outputs).map(|&link| links[link].moves()).sum()
}

/// The app's pull, for Lua's engine.
///
/// # Safety
/// `native` must have been opened by the runtime and not closed, and the call be on its thread.
pub(crate) unsafe extern "C" fn pull(native: *mut Native) {
    // SAFETY: by the caller's word.
    uninterrupted(|| unsafe { (*native).with(|app, io| app.pull(io)) })
}

/// The app's push, for Lua's engine.
///
/// # Safety
/// As [`pull`].
pub(crate) unsafe extern "C" fn push(native: *mut Native) {
    // SAFETY: by the caller's word.
    uninterrupted(|| unsafe { (*native).with(|app, io| app.push(io)) })
}
