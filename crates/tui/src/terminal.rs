//! The terminal: full screen and raw mode while [`FullScreen`] exists, restored however it ends, and the signals.

use std::io::{self, Stdout, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGTERM, SIGTSTP};

/// The terminal, while it shows the screen.
pub struct FullScreen {
    pub terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl FullScreen {
    /// Takes over the terminal, until the value is dropped or the process panics.
    pub fn enter() -> io::Result<Self> {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            // The message must not end up on the screen that is about to disappear.
            leave();
            report(panic);
        }));
        take_over().inspect_err(|_| leave())?;
        Ok(Self { terminal: Terminal::new(CrosstermBackend::new(stdout())).inspect_err(|_| leave())? })
    }

    /// Gives the terminal back, stops this process as Ctrl-Z does, and takes the terminal over again when it continues.
    pub fn suspend(&mut self) -> io::Result<()> {
        leave();
        // Returns when the process continues.
        signal_hook::low_level::emulate_default_handler(SIGTSTP)?;
        self.resume()
    }

    /// Takes the terminal over again, and redraws the screen.
    pub fn resume(&mut self) -> io::Result<()> {
        // The shell may have changed the terminal meanwhile.
        leave();
        take_over()?;
        self.terminal.clear()
    }
}

impl Drop for FullScreen {
    fn drop(&mut self) {
        leave();
    }
}

/// Whether the terminal is taken over. Leaving a second time would move the cursor back, over what was printed since.
static TAKEN: AtomicBool = AtomicBool::new(false);

fn take_over() -> io::Result<()> {
    TAKEN.store(true, Ordering::SeqCst);
    enable_raw_mode()?;
    execute!(stdout(), EnterAlternateScreen)
}

/// Restores the terminal as far as possible: it may be gone.
fn leave() {
    if !TAKEN.swap(false, Ordering::SeqCst) {
        return;
    }
    let _gone = execute!(stdout(), LeaveAlternateScreen, Show);
    let _gone = disable_raw_mode();
}

/// How long the loop may take to notice that it should end.
const GRACE: Duration = Duration::from_millis(500);
/// How often a look is taken whether it has.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };

/// Signals received.
pub struct Signals {
    end: Arc<AtomicBool>,
    resumed: Arc<AtomicBool>,
}

impl Signals {
    /// Waits for them from now on; none of them ends the process any more.
    pub fn watch() -> io::Result<Self> {
        let signals = Self { end: Arc::default(), resumed: Arc::default() };
        for signal in [SIGTERM, SIGHUP, SIGINT] {
            signal_hook::flag::register(signal, signals.end.clone())?;
        }
        signal_hook::flag::register(SIGCONT, signals.resumed.clone())?;
        let end = signals.end.clone();
        std::thread::Builder::new().name("bm-top-end".into()).spawn(move || end_after(&end))?;
        Ok(signals)
    }

    /// Whether the process should end.
    pub fn end(&self) -> bool {
        self.end.load(Ordering::Relaxed)
    }

    /// Whether the process was stopped and continues, since the last call.
    pub(crate) fn has_resumed(&self) -> bool {
        self.resumed.swap(false, Ordering::Relaxed)
    }
}

/// Ends the process after a signal, or when the terminal is gone, if the loop does not do so: once a terminal is gone,
/// crossterm reads from it for ever, with all of a core.
fn end_after(end: &AtomicBool) {
    let stdin = std::io::stdin();
    while !end.load(Ordering::Relaxed) {
        let mut terminal = [PollFd::new(&stdin, PollFlags::empty())];
        let found = poll(&mut terminal, Some(&LOOK));
        let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
        if found.is_ok() && terminal[0].revents().intersects(gone) {
            end.store(true, Ordering::Relaxed);
        }
    }
    std::thread::sleep(GRACE);
    leave();
    std::process::exit(0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Output};
    use std::time::Duration;

    /// Set in the process that panics.
    const PANICS: &str = "BM_TUI_PANICS";
    const NAME: &str = "terminal::tests::a_panic_restores_the_terminal";

    fn tmux(server: &str, arguments: &[&str]) -> io::Result<Output> {
        Command::new("tmux").args(["-u", "-L", server]).args(arguments).output()
    }

    /// Runs itself in a terminal, where it panics on the whole screen.
    #[test]
    fn a_panic_restores_the_terminal() {
        if std::env::var_os(PANICS).is_some() {
            let _full = FullScreen::enter().unwrap();
            panic!("in the middle of a screen");
        }
        let server = format!("bm-tui-{}", std::process::id());
        let this = std::env::current_exe().unwrap();
        let line = format!("env {PANICS}=1 {} --exact {NAME} --nocapture; stty -a; sleep 60", this.display());
        let Ok(started) =
            tmux(&server, &["-f", "/dev/null", "new-session", "-d", "-x", "200", "-y", "60", &line])
        else {
            return eprintln!("skipped: there is no tmux");
        };
        assert!(started.status.success(), "{started:?}");
        let mut text = String::new();
        for _ in 0..300 {
            let captured = tmux(&server, &["capture-pane", "-p"]).unwrap();
            text = String::from_utf8_lossy(&captured.stdout).into_owned();
            if text.contains("icanon") {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let _ended = tmux(&server, &["kill-server"]);
        assert!(text.contains("in the middle of a screen"), "the message is seen\n{text}");
        assert!(text.contains(" icanon") && text.contains(" echo "), "the terminal reads lines\n{text}");
    }
}
