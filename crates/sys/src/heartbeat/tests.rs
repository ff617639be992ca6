use super::*;
use std::sync::mpsc;

const SHORT: Duration = Duration::from_millis(50);
/// Time limit of each step on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// The list of threads belongs to the process, and a panic is reported once: tests take turns.
static TURN: Mutex<()> = Mutex::new(());

/// A watched thread with this name that runs the closures that it is sent.
fn thread(name: &str, silent_max: Duration) -> (mpsc::Sender<fn()>, std::thread::JoinHandle<()>) {
    let (tell, told) = mpsc::channel::<fn()>();
    let (begun, begins) = mpsc::channel();
    let run = move || {
        let _watched = watch(silent_max);
        begun.send(()).unwrap();
        told.into_iter().for_each(|what| what());
    };
    let thread = std::thread::Builder::new().name(name.into()).spawn(run).unwrap();
    begins.recv().unwrap();
    (tell, thread)
}

/// Checks until something is reported about the thread, or `longest` has passed.
fn said_of(observer: &mut Observer, name: &str, longest: Duration) -> Option<FailureKind> {
    let begin = Instant::now();
    while begin.elapsed() < longest {
        let found = observer.look(Instant::now());
        if let Some(failure) = found.iter().find(|failure| failure.thread == name) {
            return Some(failure.kind);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    None
}

#[test]
fn only_threads_without_progress_are_silent() {
    let _turn = TURN.lock();
    let (tell, thread) = thread("silent", SHORT);
    let mut observer = Observer::new();
    let found = said_of(&mut observer, "silent", PATIENCE);
    assert!(matches!(found, Some(FailureKind::Silent(silent)) if silent > SHORT), "{found:?}");
    tell.send(beat).unwrap();
    let begin = Instant::now();
    while observer.look(Instant::now()).iter().any(|failure| failure.thread == "silent") {
        assert!(begin.elapsed() < PATIENCE, "still reported as silent after a beat");
    }
    drop(tell);
    thread.join().unwrap();
    assert_eq!(said_of(&mut observer, "silent", SHORT * 4), None, "it has ended");
}

#[test]
fn resting_threads_are_not_silent() {
    let _turn = TURN.lock();
    let (tell, thread) = thread("rests", SHORT);
    tell.send(rest).unwrap();
    let mut observer = Observer::new();
    // It rests only after the first check.
    std::thread::sleep(SHORT);
    assert_eq!(said_of(&mut observer, "rests", SHORT * 6), None);
    tell.send(beat).unwrap();
    assert!(matches!(said_of(&mut observer, "rests", PATIENCE), Some(FailureKind::Silent(_))));
    drop(tell);
    thread.join().unwrap();
}

#[test]
fn a_panic_is_reported_once() {
    let _turn = TURN.lock();
    let (tell, thread) = thread("panics", PATIENCE);
    tell.send(|| panic!("on purpose")).unwrap();
    assert!(thread.join().is_err());
    let mut observer = Observer::new();
    assert_eq!(said_of(&mut observer, "panics", PATIENCE), Some(FailureKind::Panicked));
    assert_eq!(said_of(&mut observer, "panics", SHORT * 4), None);
}

#[test]
fn preempted_threads_do_not_count_as_hanging_but_spinning_ones_do() {
    let _turn = TURN.lock();
    let (tell, thread) = thread("spins", SHORT);
    static GO_ON: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(true);
    tell.send(|| {
        while GO_ON.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    })
    .unwrap();
    let found = said_of(&mut Observer::new(), "spins", PATIENCE);
    GO_ON.store(false, Ordering::Relaxed);
    assert!(matches!(found, Some(FailureKind::Silent(_))), "{found:?}");
    drop(tell);
    thread.join().unwrap();
}

#[test]
fn unwatched_threads_may_beat() {
    let _turn = TURN.lock();
    beat();
    rest();
}
