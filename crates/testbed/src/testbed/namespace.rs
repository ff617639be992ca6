//! One network namespace: commands, settings and code that run inside it.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Command, Output, Stdio};

use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketType, socket};
use rustix::process::{Pid, Signal, getpid, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::TestbedError;

/// A network namespace that is deleted when this is dropped.
pub struct Namespace {
    name: String,
    handle: OwnedFd,
}

/// A handle by which a thread can enter a namespace.
pub struct Handle(OwnedFd);

impl Handle {
    /// Moves this thread into the namespace for the rest of its life.
    pub fn join_this_thread(&self) -> std::io::Result<()> {
        enter(&self.0)
    }
}

/// Offloads of an interface (names as in ethtool).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    Gro,
    TxChecksum,
}

impl Feature {
    /// Numbers of the ethtool commands that set it.
    fn command(self) -> u32 {
        match self {
            Self::Gro => 0x2c,
            Self::TxChecksum => 0x17,
        }
    }
}

impl Namespace {
    /// Creates a namespace; the name must be unused.
    pub fn create(name: &str) -> Result<Self, TestbedError> {
        command(&mut Command::new("ip"), &["netns", "add", name], "")?;
        let path = format!("/run/netns/{name}");
        match File::open(&path) {
            Ok(file) => Ok(Self { name: name.into(), handle: file.into() }),
            Err(error) => {
                delete(name);
                Err(TestbedError::System { what: path, error })
            }
        }
    }

    /// The name, as shown by `ip netns`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs code on its own thread inside the namespace. Sockets and BPF links created there stay in it.
    pub fn enter<T: Send>(
        &self,
        code: impl FnOnce() -> Result<T, TestbedError> + Send,
    ) -> Result<T, TestbedError> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let what = format!("enter {}", self.name);
                enter(&self.handle).map_err(TestbedError::system(what))?;
                code()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// A handle that a long-lived thread can keep.
    pub fn handle(&self) -> Result<Handle, TestbedError> {
        self.handle.try_clone().map(Handle).map_err(TestbedError::system("duplicate a namespace"))
    }

    /// Makes a command join this namespace before it runs.
    pub fn confine(&self, command: &mut Command) -> Result<(), TestbedError> {
        use std::os::unix::process::CommandExt;
        let handle = self.handle()?;
        // SAFETY: runs in the child between fork and exec, where only async-signal-safe calls are sound;
        // it makes one system call and allocates nothing.
        unsafe { command.pre_exec(move || handle.join_this_thread()) };
        Ok(())
    }

    /// Runs a command inside, with /sys showing this namespace, and returns what it printed.
    pub fn run(&self, words: &[&str]) -> Result<String, TestbedError> {
        let words = [&["netns", "exec", &self.name], words].concat();
        command(&mut Command::new("ip"), &words, "")
    }

    /// Runs lines of `ip` inside, in one process; it ends at the first that fails.
    pub fn ip_batch(&self, lines: &str) -> Result<(), TestbedError> {
        command(&mut Command::new("ip"), &["-n", &self.name, "-batch", "-"], lines).map(|_| ())
    }

    /// Writes settings, as paths below /proc/sys.
    pub fn sysctl(&self, settings: &[(&str, &str)]) -> Result<(), TestbedError> {
        self.enter(|| {
            settings.iter().try_for_each(|(path, value)| {
                let path = format!("/proc/sys/{path}");
                std::fs::write(&path, value).map_err(TestbedError::system(path))
            })
        })
    }

    /// Turns an offload of an interface on or off.
    pub fn ethtool(&self, interface: &str, feature: Feature, on: bool) -> Result<(), TestbedError> {
        let what = format!("{}: set {feature:?} of {interface} to {on}", self.name);
        self.enter(|| set_feature(interface, feature, on).map_err(TestbedError::system(what)))
    }

    /// The index of an interface.
    pub fn index(&self, interface: &str) -> Result<u32, TestbedError> {
        let what = format!("{}: interface {interface}", self.name);
        self.enter(|| {
            let socket = socket(AddressFamily::INET, SocketType::DGRAM, None);
            let index = socket.and_then(|socket| name_to_index(socket, interface));
            index.map_err(|error| TestbedError::system(what)(error.into()))
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        delete(&self.name);
    }
}

fn enter(handle: &OwnedFd) -> std::io::Result<()> {
    Ok(move_into_link_name_space(handle.as_fd(), Some(LinkNameSpaceType::Network))?)
}

/// Shared with the kernel for the duration of an ioctl, which gets its address; the compiler does not see that.
#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

fn set_feature(interface: &str, feature: Feature, on: bool) -> std::io::Result<()> {
    let mut value = EthtoolValue { command: feature.command(), data: u32::from(on) };
    // SAFETY: all zeroes are a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // One byte short, so that the name keeps its terminating zero.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").or_else(|_| std::net::UdpSocket::bind("[::]:0"))?;
    // SAFETY: SIOCETHTOOL reads an ifreq whose data points to an ethtool_value; both are whole, ours, and
    // outlive the call.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &request) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Deletes a namespace and ends the processes in it. If there is none of that name, does nothing.
pub fn delete(name: &str) {
    if !std::path::Path::new("/run/netns").join(name).exists() {
        return;
    }
    let pids = command(&mut Command::new("ip"), &["netns", "pids", name], "").unwrap_or_default();
    for pid in pids.split_whitespace().filter_map(|word| Pid::from_raw(word.parse().ok()?)) {
        // Our own threads may be inside; they end by themselves.
        if pid != getpid() {
            // One that has ended meanwhile is none to end.
            let _ended = kill_process(pid, Signal::KILL);
        }
    }
    let _ = command(&mut Command::new("ip"), &["netns", "del", name], "");
}

/// Runs a command until it ends, with `input`, and returns what it printed.
pub fn command(program: &mut Command, words: &[&str], input: &str) -> Result<String, TestbedError> {
    let shown = format!("{} {}", program.get_program().to_string_lossy(), words.join(" "));
    match output(program.args(words), input) {
        Ok(done) if done.status.success() => Ok(String::from_utf8_lossy(&done.stdout).into()),
        Ok(done) => {
            let text = String::from_utf8_lossy(&done.stderr).into_owned();
            let text = if text.trim().is_empty() { done.status.to_string() } else { text };
            Err(TestbedError::Command { command: shown, output: text })
        }
        Err(error) => Err(TestbedError::System { what: shown, error }),
    }
}

fn output(command: &mut Command, input: &str) -> std::io::Result<Output> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let stdin = child.stdin.take();
    // On a thread: if the child prints before it has read everything, each would wait for the other.
    std::thread::scope(|scope| {
        scope.spawn(move || stdin.map(|mut stdin| stdin.write_all(input.as_bytes())));
        child.wait_with_output()
    })
}
