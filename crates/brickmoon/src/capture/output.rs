//! Where captured packets go: a capture file, a pipe, lines on a terminal, or JSON.

use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Stdout, Write, stdout};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use bm_capture::pcapng::{About, Interface, Writer};
use bm_capture::{Outcome, Packet, summary};
use bm_cli::Failure;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use super::outcome::described;
use super::session::{self, Session};

/// What is written, and where; `None` is standard output.
pub enum Format {
    Pcapng(Option<PathBuf>),
    Lines,
    Json,
}

/// Why the output has ended.
pub enum OutputEnd {
    /// The reader closed the pipe, as `| head` does.
    Closed,
    /// A write failed, for example because the disk is full.
    Failed(String),
}

enum Target {
    File(File),
    Standard(Stdout),
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::File(file) => file.write(bytes),
            Self::Standard(stdout) => stdout.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::File(file) => file.flush(),
            Self::Standard(stdout) => stdout.flush(),
        }
    }
}

impl Target {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::File(file) => file.as_fd(),
            Self::Standard(stdout) => stdout.as_fd(),
        }
    }
}

enum Kind {
    Pcapng(Writer<BufWriter<Target>>),
    Lines(BufWriter<Target>),
    Json(BufWriter<Target>),
}

/// An open output.
pub struct Output {
    kind: Kind,
    /// Its name in messages.
    name: String,
    /// Indices of the interfaces of a capture file, in their order there.
    interfaces: Vec<u32>,
    /// To notice that the reader has closed the pipe while no packets come.
    watched: Option<std::os::fd::OwnedFd>,
}

/// One packet in JSON.
#[derive(Serialize)]
struct PacketJson<'a> {
    /// Since 1970.
    time_ns: u64,
    interface: &'a str,
    direction: &'static str,
    queue: u32,
    /// Of the whole frame, in bytes.
    length: u32,
    summary: String,
    outcome: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// The captured bytes, in hexadecimal.
    frame: String,
}

impl Output {
    /// Opens it; a capture file begins with the ports.
    pub fn open(format: Format, ports: Vec<(u32, String)>, snap_length: u32) -> Result<Self, Failure> {
        let path = match &format {
            Format::Pcapng(path) => path.clone(),
            _ => None,
        };
        let name = path.as_ref().map_or("standard output".into(), |path| path.display().to_string());
        let failed = |error| Failure::Failed(format!("{name}: {error}"));
        let target = match &path {
            Some(path) => Target::File(File::create(path).map_err(failed)?),
            None => Target::Standard(stdout()),
        };
        let watched = target.fd().try_clone_to_owned().ok();
        let to = BufWriter::with_capacity(1 << 16, target);
        let kind = match format {
            Format::Lines => Kind::Lines(to),
            Format::Json => Kind::Json(to),
            Format::Pcapng(_) => {
                let interfaces = ports.iter().map(|(_, name)| Interface {
                    name: name.clone(),
                    description: format!("port {name} of brickmoon"),
                });
                let interfaces: Vec<_> = interfaces.collect();
                let application = concat!("brickmoon ", env!("CARGO_PKG_VERSION"));
                let mut writer = Writer::new(to, application, &interfaces, snap_length).map_err(failed)?;
                // So that a reader starts at once. If it has closed the pipe already, the main loop notices.
                match writer.flush() {
                    Err(error) if error.kind() != ErrorKind::BrokenPipe => return Err(failed(error)),
                    _ => {}
                }
                Kind::Pcapng(writer)
            }
        };
        Ok(Self { kind, name, interfaces: ports.into_iter().map(|(ifindex, _)| ifindex).collect(), watched })
    }

    /// Whether the reader has closed the pipe.
    pub fn is_abandoned(&self) -> bool {
        let Some(fd) = &self.watched else { return false };
        let mut fds = [PollFd::new(fd, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().contains(PollFlags::ERR)
    }

    /// Writes packets, and hands them to the reader at once.
    pub fn write(&mut self, session: &Session, packets: &[Packet]) -> Result<(), OutputEnd> {
        if packets.is_empty() {
            return Ok(());
        }
        let done =
            packets.iter().try_for_each(|packet| self.one(session, packet)).and_then(|()| self.flush());
        done.map_err(|error| self.ended(&error))
    }

    fn one(&mut self, session: &Session, packet: &Packet) -> io::Result<()> {
        let described = described(session, packet);
        let name = session.name(packet.ifindex);
        match &mut self.kind {
            Kind::Pcapng(writer) => {
                let index = self.interfaces.iter().position(|ifindex| *ifindex == packet.ifindex);
                let about = About {
                    interface: index.unwrap_or_default() as u32,
                    time_ns: session.time(packet),
                    length: packet.length,
                    received: packet.is_received(),
                    queue: packet.queue,
                    verdict: xdp_verdict(session, packet),
                    comment: &format!("{name}: {described}"),
                };
                writer.packet(&about, &packet.frame)
            }
            Kind::Lines(to) => writeln!(
                to,
                "{} {name} {} {} ({} bytes) [{described}]",
                clock(session.time(packet)),
                if packet.is_received() { "In " } else { "Out" },
                summary(&packet.frame),
                packet.length,
            ),
            Kind::Json(to) => {
                let shown = PacketJson {
                    time_ns: session.time(packet),
                    interface: name,
                    direction: if packet.is_received() { "in" } else { "out" },
                    queue: packet.queue,
                    length: packet.length,
                    summary: summary(&packet.frame),
                    outcome: described.what,
                    reason: described.reason,
                    frame: packet.frame.iter().map(|byte| format!("{byte:02x}")).collect(),
                };
                serde_json::to_writer(&mut *to, &shown)?;
                writeln!(to)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.kind {
            Kind::Pcapng(writer) => writer.flush(),
            Kind::Lines(to) | Kind::Json(to) => to.flush(),
        }
    }

    /// Ends a capture file with the number of lost packets.
    pub fn end(&mut self, lost: u64) -> Result<(), OutputEnd> {
        let now = session::now();
        let done = match &mut self.kind {
            Kind::Pcapng(writer) => writer.end(0, now, lost).and_then(|()| writer.flush()),
            _ => Ok(()),
        };
        done.map_err(|error| self.ended(&error))
    }

    fn ended(&self, error: &io::Error) -> OutputEnd {
        match error.kind() {
            ErrorKind::BrokenPipe => OutputEnd::Closed,
            _ => OutputEnd::Failed(format!(
                "{}: {error}; the capture has ended, the router goes on",
                self.name
            )),
        }
    }
}

/// The result of the XDP program that decided about a packet.
fn xdp_verdict(session: &Session, packet: &Packet) -> Option<i32> {
    match packet.outcome {
        Outcome::Decided { verdict, .. } if !session.program(packet).ends_with("_tc") => Some(verdict),
        _ => None,
    }
}

/// The time of day in UTC, with nanoseconds.
pub fn clock(time_ns: u64) -> String {
    let (seconds, nanoseconds) = (time_ns / 1_000_000_000 % 86_400, time_ns % 1_000_000_000);
    format!("{:02}:{:02}:{:02}.{nanoseconds:09}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}
