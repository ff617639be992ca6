//! The generator: millions of packets a second, created in the kernel on one core and sent without a copy.
//!
//! One call of BPF_PROG_TEST_RUN lasts for the whole run, since each call sets up and frees its pool
//! of pages; a signal to the thread ends it.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use libbpf_rs::libbpf_sys::{self, bpf_test_run_opts};

use super::layout::GeneratorState;
use super::{Programs, Stream};
use crate::testbed::{Testbed, TestbedError, cores};

/// Number of packets in one step of the kernel. Between steps it checks for signals and lets other threads run.
const BATCH: u32 = 64;
/// Number of steps per call; if a call ends, the loop begins another one.
const REPEAT: i32 = 1 << 30;

/// A running generator, ended on drop.
pub struct Generator<'a> {
    programs: &'a Programs,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<()>>>,
    began: Instant,
}

/// What a generator has sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SendCount {
    /// Packets sent towards the router's queue. Those that found it full are included.
    pub packets: u64,
    /// Duration.
    pub time: Duration,
}

impl<'a> Generator<'a> {
    /// Begins to send from the source of a test bed, on one core.
    pub fn start(
        programs: &'a Programs,
        testbed: &Testbed,
        stream: &Stream,
        core: Option<usize>,
    ) -> Result<Self, TestbedError> {
        let index = testbed.source.index(&testbed.interfaces.source)?;
        for (place, destination) in stream.destinations.iter().enumerate() {
            programs.destinations.set(place, *destination);
        }
        programs.generator.set(0, GeneratorState::for_stream(stream, index));
        install_wake_up();
        let stop = Arc::new(AtomicBool::new(false));
        let run = Run {
            program: programs.generate.as_raw_fd(),
            frame: vec![0; stream.sizes.iter().copied().max().unwrap_or(0).into()],
            stop: stop.clone(),
        };
        let namespace = testbed.source.handle()?;
        let began = Instant::now();
        let thread = std::thread::Builder::new().name("generator".into()).spawn(move || {
            namespace.join_this_thread()?;
            if let Some(core) = core {
                cores::pin(0, core)?;
            }
            run.until_stopped()
        });
        let thread = thread.map_err(TestbedError::system("start the generator's thread"))?;
        Ok(Self { programs, stop, thread: Some(thread), began })
    }

    /// Packets so far, and the duration.
    pub fn sent(&self) -> SendCount {
        SendCount { packets: self.programs.generator.get(0).sent, time: self.began.elapsed() }
    }

    /// Ends it.
    pub fn stop(mut self) -> Result<SendCount, TestbedError> {
        self.end().map_err(TestbedError::system("generate packets"))?;
        Ok(self.sent())
    }

    fn end(&mut self) -> io::Result<()> {
        use std::os::unix::thread::JoinHandleExt;
        self.stop.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else { return Ok(()) };
        // Repeated: a signal that arrives just before the call would not end the call.
        while !thread.is_finished() {
            // SAFETY: the thread has not been joined, so its handle is valid, even if it has just ended.
            unsafe { libc::pthread_kill(thread.as_pthread_t(), wake_up()) };
            std::thread::sleep(Duration::from_millis(1));
        }
        thread.join().map_err(|_| io::Error::other("the thread panicked"))?
    }
}

impl Drop for Generator<'_> {
    fn drop(&mut self) {
        // After `stop` nothing is left to end; otherwise an error is already being reported.
        let _ = self.end();
    }
}

/// What the thread needs. The descriptor outlives it: the generator borrows the programs.
struct Run {
    program: RawFd,
    frame: Vec<u8>,
    stop: Arc<AtomicBool>,
}

impl Run {
    fn until_stopped(&self) -> io::Result<()> {
        while !self.stop.load(Ordering::Relaxed) {
            let mut options = bpf_test_run_opts {
                sz: size_of::<bpf_test_run_opts>() as libbpf_sys::size_t,
                data_in: self.frame.as_ptr().cast(),
                data_size_in: self.frame.len() as u32,
                repeat: REPEAT,
                flags: libbpf_sys::BPF_F_TEST_XDP_LIVE_FRAMES,
                batch_size: BATCH,
                ..bpf_test_run_opts::default()
            };
            // SAFETY: the options and the frame they point to are whole and outlive the call.
            let result = unsafe { libbpf_sys::bpf_prog_test_run_opts(self.program, &mut options) };
            match io::Error::from_raw_os_error(-result) {
                _ if result == 0 => {}
                error if [Some(libc::EINTR), Some(libc::EAGAIN)].contains(&error.raw_os_error()) => {}
                error => return Err(error),
            }
        }
        Ok(())
    }
}

/// The signal that ends a call: one that nothing else uses.
fn wake_up() -> libc::c_int {
    libc::SIGRTMIN() + 7
}

/// A signal ends a system call only if it has a handler; this one does nothing.
fn install_wake_up() {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: all zeroes are a valid sigaction: empty mask, no flags.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as *const () as libc::sighandler_t;
    // SAFETY: the action is whole and outlives the call; its handler touches nothing.
    unsafe { libc::sigaction(wake_up(), &action, std::ptr::null_mut()) };
}
