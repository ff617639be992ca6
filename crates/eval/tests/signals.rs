//! Effects of signals, in a process of their own, since they would reach all other tests of a process.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bm_eval::demo::{self, DemoOptions};
use bm_testbed::interrupt::{Interrupted, Watch, check, sleep};
use bm_testbed::testbed::{self, TestbedOptions};

/// Signals reach the whole process, so only one of these tests runs at a time.
static ONE: Mutex<()> = Mutex::new(());

#[test]
fn a_signal_ends_the_sleep_and_not_the_process() {
    let _one = ONE.lock();
    let watch = Watch::begin();
    assert_eq!(sleep(Duration::from_millis(1)), Ok(()));
    // SAFETY: a signal to ourselves, which the watch above catches.
    unsafe { libc::raise(libc::SIGHUP) };
    let start = Instant::now();
    assert_eq!(sleep(Duration::from_secs(60)), Err(Interrupted));
    assert!(start.elapsed() < Duration::from_secs(5));
    drop(watch);
    drop(Watch::begin());
    assert_eq!(check(), Ok(()));
}

#[test]
fn ctrl_c_ends_the_demo_and_cleans_up() {
    let _one = ONE.lock();
    if testbed::require_root().is_err() {
        return eprintln!("skipped ctrl_c_ends_the_demo_and_cleans_up: needs root");
    }
    let program = std::env::temp_dir().join(format!("bm-eval-signals-{}", std::process::id()));
    std::fs::write(&program, "#!/bin/sh\necho ready\nsleep 100\n").unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let names =
        TestbedOptions { prefix: "bm-eval-ctrlc".into(), tag: "gc".into(), ..TestbedOptions::default() };
    let options = DemoOptions {
        routes: 2_000,
        seconds: 60.0,
        program: Some(program.clone()),
        testbed: names,
        ..DemoOptions::default()
    };
    let interrupter = std::thread::spawn(|| {
        std::thread::sleep(Duration::from_secs(2));
        // SAFETY: a signal to our own process, which the demo watches for.
        unsafe { libc::kill(libc::getpid(), libc::SIGINT) };
    });
    let began = Instant::now();
    let error = demo::run(&options, &mut Vec::new()).unwrap_err().to_string();
    assert!(began.elapsed() < Duration::from_secs(30));
    interrupter.join().unwrap();
    std::fs::remove_file(&program).unwrap();
    assert_eq!(error, "interrupted");
    for end in ["src", "rtr", "snk"] {
        assert!(!Path::new(&format!("/run/netns/bm-eval-ctrlc-{end}")).exists());
    }
    assert!(!Path::new("/run/bm-eval-ctrlc").exists());
}
