use super::*;
use bm_api::{
    Account, AppTime, Apps, Drop, Drops, Hook, Hooks, Link, Links, Port, Ports, Status, Worker, Workers,
};
use ratatui::Terminal;
use ratatui::backend::TestBackend;

/// A daemon with a port, a worker and a drop, after `seconds` of 1,000 frames of 100 bytes each.
fn sample(seconds: u64) -> Sample {
    let frames = seconds * 1000;
    let account =
        Account { received: frames, received_bytes: frames * 100, sent: frames, ..Account::default() };
    let kernel_counters = [("linux_hops".to_string(), seconds)].into();
    let port = Port {
        name: "eth0".into(),
        up: true,
        active: true,
        path: "kernel".into(),
        account,
        kernel_counters,
        ..Port::default()
    };
    let other = Port { name: "eth1".into(), path: "kernel".into(), ..Port::default() };
    let drop = Drop {
        reason: "no_route".into(),
        meaning: "there is no route".into(),
        frames: seconds * 5,
        at: Vec::new(),
    };
    let worker = Worker {
        alive: true,
        breaths: seconds * 100,
        moves: seconds * 25,
        busy_ns: Some(seconds * 250_000_000),
        apps: [("eth0", 50), ("router", 200), ("slow", 0)]
            .map(|(app, ms)| AppTime { app: app.into(), ns: seconds * ms * 1_000_000 })
            .into(),
        frames: 10,
        frames_free: 9,
        ..Worker::default()
    };
    Sample {
        status: Status {
            version: "1.2".into(),
            pid: 7,
            uptime_s: seconds,
            ready: true,
            path: "mixed".into(),
            ..Status::default()
        },
        ports: Ports { ports: vec![port, other] },
        drops: Drops { total: drop.frames, drops: vec![drop], ..Drops::default() },
        workers: Workers { workers: vec![worker] },
        ..Sample::default()
    }
}

fn screen() -> Screen {
    let mut screen = Screen::default();
    for seconds in 1..4 {
        screen.model.add(Duration::from_secs(seconds), Ok(sample(seconds)));
    }
    screen
}

fn press(screen: &mut Screen, keys: &[KeyCode]) -> Option<Action> {
    keys.iter().filter_map(|key| screen.press(KeyEvent::new(*key, KeyModifiers::NONE))).last()
}

/// The screen as text, lines without the blanks at their ends.
fn drawn(screen: &mut Screen, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen.draw(frame, Duration::from_secs(4))).unwrap();
    let cells = terminal.backend().buffer().content();
    let lines = cells.chunks(width.max(1).into());
    lines
        .map(|line| line.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_string())
        .collect()
}

#[test]
fn shows_ports_workers_and_drops_with_their_rates() {
    let expected = [
        " brickmoon 1.2, process 7, up 3 s, path mixed, ready",
        " 1 overview  2 ports  3 workers  4 drops",
        "Ports",
        "  PORT  STATE  PATH    RECEIVED/S  RECEIVED BIT/S  SENT/S  SENT BIT/S  DROPPED/S  LINUX/S  LOST/S  HISTORY",
        "  eth0  up     kernel       1.00k            800k   1.00k           0          0        1       0  ██",
        "  eth1  down   kernel           0               0       0           0          0        0       0",
        "",
        "Workers",
        "  WORKER  CORE  STATE    QUEUES  RECEIVED/S  BUSY  BREATHS/S  SLEEPS/S  RESTARTS  FRAMES FREE  HISTORY  TIME BY APP",
        "       0   any  running                   -  25 %        100         0         0            9  ██       router 80 %, eth0 20 %",
        "",
        "Drops",
        "  REASON    FRAMES/S  FRAMES  HISTORY  WHERE  MEANING",
        "  no_route         5      15  ██              there is no route",
        "",
        KEYS,
    ];
    assert_eq!(drawn(&mut screen(), 140, 16), expected);
}

#[test]
fn keys_choose_views_that_exist() {
    let mut screen = screen();
    press(&mut screen, &[KeyCode::Tab]);
    assert_eq!(screen.view, View::Ports);
    assert!(drawn(&mut screen, 100, 20).iter().any(|line| line == "  eth0  hops         3"));
    press(&mut screen, &[KeyCode::Left, KeyCode::Left]);
    assert_eq!(screen.view, View::Drops, "hooks and the like are absent");
    press(&mut screen, &[KeyCode::Char('9')]);
    assert_eq!(screen.view, View::Drops);
    press(&mut screen, &[KeyCode::Char('3')]);
    assert_eq!(screen.view, View::Workers);
    press(&mut screen, &[KeyCode::Char('p')]);
    assert!(screen.paused && drawn(&mut screen, 100, 5)[0].contains("PAUSED"));
    assert_eq!(press(&mut screen, &[KeyCode::Char('q')]), Some(Action::Quit));
    let control = |letter| KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL);
    assert_eq!(
        (screen.press(control('c')), screen.press(control('z'))),
        (Some(Action::Quit), Some(Action::Suspend))
    );
}

#[test]
fn a_filter_hides_rows_until_escape() {
    let mut screen = screen();
    press(&mut screen, &[KeyCode::Char('/'), KeyCode::Char('E'), KeyCode::Char('q'), KeyCode::Backspace]);
    press(&mut screen, &[KeyCode::Char('t'), KeyCode::Char('h'), KeyCode::Char('1')]);
    assert_eq!(drawn(&mut screen, 100, 12).last().unwrap(), "filter: Eth1_");
    press(&mut screen, &[KeyCode::Enter]);
    let lines = drawn(&mut screen, 100, 12);
    assert!(lines[4].starts_with("  eth1") && lines[7] == "  no workers", "{lines:#?}");
    assert_eq!(lines[11], "only rows with \"Eth1\"; Esc shows all");
    press(&mut screen, &[KeyCode::Esc]);
    assert!(drawn(&mut screen, 100, 12)[4].starts_with("  eth0"));
}

#[test]
fn scrolls_what_does_not_fit() {
    let mut screen = screen();
    let lines = drawn(&mut screen, 100, 8);
    assert!(lines[7].ends_with("7 more lines below"), "{lines:#?}");
    press(&mut screen, &[KeyCode::End]);
    assert!(drawn(&mut screen, 100, 8)[6].starts_with("  no_route"));
    press(&mut screen, &[KeyCode::Up; 3]);
    assert_eq!(drawn(&mut screen, 100, 8)[2], "");
    press(&mut screen, &[KeyCode::PageUp, KeyCode::PageUp]);
    assert_eq!(drawn(&mut screen, 100, 8)[2], "Ports");
    press(&mut screen, &[KeyCode::Char('?')]);
    assert!(drawn(&mut screen, 100, 8)[2].starts_with("q, Ctrl-C"));
}

#[test]
fn any_size_and_any_names_can_be_drawn() {
    let mut screen = screen();
    let mut odd = sample(4);
    odd.ports.ports[0].name = "e\u{1b}[2Jvil\t漢字".into();
    odd.hooks =
        Hooks { hooks: vec![Hook { name: "h".into(), last_error: Some("a\nb".into()), ..Hook::default() }] };
    screen.model.add(Duration::from_secs(4), Ok(odd));
    for view in View::ALL {
        screen.view = view;
        for (width, height) in [(1, 1), (1, 9), (9, 1), (2, 3), (13, 4), (20, 2), (300, 90)] {
            drawn(&mut screen, width, height);
            press(&mut screen, &[KeyCode::Down, KeyCode::PageDown, KeyCode::End]);
        }
    }
    screen.view = View::Overview;
    assert!(!drawn(&mut screen, 130, 20).concat().contains('\u{1b}'));
}

#[test]
fn a_lua_program_has_links_instead_of_ports() {
    let link = Link { name: "a.o -> b.i".into(), tx: 50, rx: 50, ..Link::default() };
    let status = Status { path: "lua".into(), pid: 9, version: "1.2".into(), ..Status::default() };
    let apps = Apps { apps: vec![Default::default()] };
    let program = Sample { status, links: Links { links: vec![link] }, apps, ..Sample::default() };
    let mut screen = Screen::default();
    screen.model.add(Duration::ZERO, Ok(program));
    let lines = drawn(&mut screen, 100, 10);
    assert_eq!(lines[0], " brickmoon 1.2, Lua program, process 9, up 0 s");
    assert_eq!(lines[1], " 1 overview  2 drops  3 apps");
    assert!(lines[4].starts_with("  a.o -> b.i       0         -"), "{lines:#?}");
}
