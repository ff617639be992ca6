//! The loop of the full screen: keys, samples, signals.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyEventKind};

use crate::sample::{Get, Sample};
use crate::screen::{Action, Screen};
use crate::terminal::{FullScreen, Signals};
use crate::view::View;

/// How long a key is waited for before samples and signals are looked at.
const WAIT: Duration = Duration::from_millis(100);
/// How often the screen is drawn while nothing answers, because it says for how long.
const SILENT: Duration = Duration::from_secs(1);

/// How often to ask, and what to show first.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub interval: Duration,
    pub view: View,
}

/// When a sample was taken, and the sample or why there is none.
type PollResult = (Duration, Result<Sample, String>);

/// Shows the screen until the user quits.
///
/// # Errors
/// If nothing answers at the start, or the terminal cannot be used.
pub fn run(options: Options, mut get: Box<dyn Get>) -> Result<(), String> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err("this is not a terminal; use --once for the figures as text".into());
    }
    let begin = Instant::now();
    // Before the screen is taken over: a wrong socket is an error as with any other command.
    let first = Sample::take(&mut *get)?;
    let mut screen = Screen::new(options.view);
    screen.model.add(begin.elapsed(), Ok(first));
    let paused = Arc::new(AtomicBool::new(false));
    let (to, samples) = mpsc::channel();
    let poller = Poller { get, begin, interval: options.interval, paused: paused.clone() };
    // Not joined at the end: a request may still be waiting for its answer.
    let started = std::thread::Builder::new().name("bm-top-poll".into()).spawn(move || poller.run(&to));
    started.map_err(|error| format!("cannot start a thread: {error}"))?;
    show(&mut screen, &samples, &paused, begin).map_err(|error| format!("terminal: {error}"))
}

struct Poller {
    get: Box<dyn Get>,
    begin: Instant,
    interval: Duration,
    paused: Arc<AtomicBool>,
}

impl Poller {
    /// Takes a sample in each interval until the screen has ended.
    fn run(mut self, to: &Sender<PollResult>) {
        let mut next = Instant::now();
        loop {
            // After a request that took long, the next one is not earlier than usual.
            next = (next + self.interval).max(Instant::now());
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
            if self.paused.load(Ordering::Relaxed) {
                continue;
            }
            let result = Sample::take(&mut *self.get);
            if to.send((self.begin.elapsed(), result)).is_err() {
                return;
            }
        }
    }
}

fn show(
    screen: &mut Screen,
    samples: &Receiver<PollResult>,
    paused: &AtomicBool,
    begin: Instant,
) -> io::Result<()> {
    let signals = Signals::watch()?;
    let mut full = FullScreen::enter()?;
    let mut drawn: Option<Instant> = None;
    while !signals.end() {
        let is_due = drawn.is_none_or(|at| !screen.model.answers() && at.elapsed() >= SILENT);
        if is_due {
            full.terminal.draw(|frame| screen.draw(frame, begin.elapsed()))?;
            drawn = Some(Instant::now());
        }
        if signals.has_resumed() {
            full.resume()?;
            drawn = None;
        }
        if event::poll(WAIT)? {
            drawn = None;
            match handle(screen, &event::read()?) {
                Some(Action::Quit) => return Ok(()),
                Some(Action::Suspend) => full.suspend()?,
                None => paused.store(screen.paused, Ordering::Relaxed),
            }
        }
        if add(screen, samples)? {
            drawn = None;
        }
    }
    Ok(())
}

fn handle(screen: &mut Screen, event: &Event) -> Option<Action> {
    match event {
        Event::Key(key) if key.kind != KeyEventKind::Release => screen.press(*key),
        _ => None,
    }
}

/// Adds the samples received so far; returns whether there were any.
fn add(screen: &mut Screen, samples: &Receiver<PollResult>) -> io::Result<bool> {
    let mut came = false;
    loop {
        match samples.try_recv() {
            Ok((at, result)) if !screen.paused => {
                screen.model.add(at, result);
                came = true;
            }
            Ok(_) => {}
            Err(TryRecvError::Empty) => return Ok(came),
            Err(TryRecvError::Disconnected) => {
                return Err(io::Error::other("the thread that asks the daemon has ended"));
            }
        }
    }
}
