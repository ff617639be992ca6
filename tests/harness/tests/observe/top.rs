//! `brickmoon top` in a pseudo-terminal of tmux: what it shows, a daemon that is killed and started again, a terminal
//! that shrinks, and how it leaves the terminal.

use bm_tests::PATIENCE;
use bm_tests::binary::binary;
use bm_tests::command;
use bm_tests::daemon::eventually;
use bm_tests::flow::Stream;
use bm_tests::lab::{Ends, Lab};
use bm_tests::report;
use bm_tests::subject::{Router, Subject};
use std::process::Command;
use std::time::Duration;

/// A terminal with a shell, in a tmux server of its own.
struct Screen {
    server: String,
}

impl Screen {
    /// `None`, with a message, if there is no tmux.
    fn open(test: &str) -> Option<Self> {
        if !command::has("tmux") {
            report::skip(test, "there is no tmux");
            return None;
        }
        let screen = Self { server: format!("bm-{test}-{}", std::process::id()) };
        screen.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", "140", "-y", "30", "env PS1='$ ' sh"]);
        Some(screen)
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let mut tmux = Command::new("tmux");
        tmux.args(["-u", "-L", &self.server]).args(arguments).env("LC_ALL", "C.UTF-8");
        let output = command::run("tmux", &mut tmux, PATIENCE).unwrap_or_else(|why| panic!("{why}"));
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn keys(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    /// Waits until the screen shows all of these.
    #[track_caller]
    fn shows(&self, parts: &[&str]) {
        let mut text = String::new();
        eventually("", || {
            text = self.tmux(&["capture-pane", "-p"]);
            let all = parts.iter().all(|part| text.contains(part));
            if !all {
                report_late(parts, &text);
            }
            all
        });
    }

    fn resize(&self, width: u16, height: u16) {
        self.tmux(&["resize-window", "-x", &width.to_string(), "-y", &height.to_string()]);
    }

    /// Starts `top`; when it has ended, the shell says its status and whether the terminal reads lines again.
    fn top(&self, socket: &str) {
        let binary = binary().expect("the subject has one");
        let line = format!(
            "clear; {} top --interval 0.2 --socket {socket}; echo status=$?; stty -a | grep -o ' icanon' | sed s/.ican/lines=/",
            binary.display()
        );
        self.keys(&[&line, "Enter"]);
        self.shows(&["path kernel, ready", "1 overview  2 ports", "r0    up     kernel", "q quit"]);
    }

    #[track_caller]
    fn has_ended(&self) {
        self.shows(&["status=0", "lines=on"]);
    }
}

/// Keeps what the screen shows, for the message if the test fails.
fn report_late(parts: &[&str], text: &str) {
    if std::env::var_os("BM_SCREENS").is_some() {
        report::say(&format!("waiting for {parts:?} on\n{text}"));
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ended = Command::new("tmux").args(["-L", &self.server, "kill-server"]).output();
    }
}

fn on_kernel(test: &str, action: impl FnOnce(&Lab, &mut Router)) {
    let Some(subject) = Subject::kernel(test) else { return };
    let lab = Lab::new(test, Ends::Silent);
    let mut router = subject.start(&lab);
    action(&lab, &mut router);
    // A screen needs no packets.
    if router.sent() == 0 { router.end(&[]) } else { router.stop() }
}

#[test]
fn once_prints_the_rates_of_an_interval() {
    on_kernel("top-once", |lab, router| {
        let (object, outcome) =
            Stream::to("10.9.9.9", 2000).during(lab, || router.json(&["top", "--interval", "2"]));
        let row = &object["ports"][0];
        assert_eq!((&row["port"], &row["state"]), (&"r0".into(), &"up".into()), "{object}");
        let rate = row["received_s"].as_f64().expect("a rate");
        // The sender waits for its turn on a busy machine.
        assert!(rate > 0.0 && rate < 4000.0, "{rate} a second of {outcome}");
        assert_eq!(object["path"], "kernel");
        let text = router.ask("top", &["--once", "--view", "ports", "--interval", "0.1"]).expect("a daemon");
        let text = String::from_utf8_lossy(&text.stdout).into_owned();
        assert!(
            text.contains("\nPorts\n  PORT  STATE  PATH") && text.contains("\nLeft to Linux\n"),
            "{text}"
        );
        let wrong = router.ask("top", &["--view", "port"]).expect("a daemon");
        let why = String::from_utf8_lossy(&wrong.stderr).into_owned();
        assert!(wrong.status.code() == Some(2) && why.contains("expected one of overview, ports"), "{why}");
        let pipe = router.ask("top", &[]).expect("a daemon");
        let why = String::from_utf8_lossy(&pipe.stderr).into_owned();
        assert!(pipe.status.code() == Some(1) && why.contains("not a terminal; use --once"), "{why}");
    });
}

#[test]
fn the_screen_survives_its_daemon_and_restores_the_terminal() {
    on_kernel("top-screen", |_, router| {
        let Some(screen) = Screen::open("top-screen") else { return };
        let socket = router.socket().expect("a daemon");
        screen.top(&socket);
        screen.keys(&["2"]);
        screen.shows(&["Left to Linux"]);
        screen.keys(&["/", "r1", "Enter"]);
        screen.shows(&["only rows with \"r1\"", "  r1    up"]);
        screen.keys(&["Escape"]);
        router.kill();
        screen.shows(&["no answer for", "no daemon answers at"]);
        for (width, height) in [(20, 4), (1, 1), (140, 30)] {
            screen.resize(width, height);
            std::thread::sleep(Duration::from_millis(300));
        }
        screen.shows(&["Left to Linux", "q quit"]);
        screen.keys(&["q"]);
        screen.has_ended();
        router.restart();
        screen.top(&router.socket().expect("a daemon"));
        let tops = screen.tmux(&["list-panes", "-F", "#{pane_pid}"]);
        let ended = Command::new("pkill").args(["-TERM", "-P", tops.trim(), "-x", "brickmoon"]).status();
        assert!(ended.expect("pkill is there").success());
        screen.has_ended();
    });
}

#[test]
fn the_screen_ends_with_its_terminal() {
    on_kernel("top-gone", |_, router| {
        let Some(screen) = Screen::open("top-gone") else { return };
        screen.top(&router.socket().expect("a daemon"));
        let shell = screen.tmux(&["list-panes", "-F", "#{pane_pid}"]);
        let children = format!("/proc/{0}/task/{0}/children", shell.trim());
        let children = std::fs::read_to_string(&children).expect("the shell runs");
        let top: u32 = children.trim().parse().expect("it has one child");
        screen.tmux(&["kill-server"]);
        eventually("it ends", || !std::path::Path::new(&format!("/proc/{top}")).exists());
    });
}
