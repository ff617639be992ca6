//! The Unix socket that programs connect to in place of netlink, and the datagrams to and from them.
//!
//! Only root and the daemon's own user may connect, by the mode of the file and by the credentials of each connection
//! (`SO_PEERCRED`). A program that does not read its answers is disconnected before they take too much memory, and events
//! that it does not read are left out, as netlink does.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recv, send, socket_with,
};
use zeroize::{Zeroize, Zeroizing};

use crate::database::{Answer, Client};
use crate::message::{Bytes, Messages, Raw};

/// The longest datagram from a program.
const DATAGRAM_MAX: usize = 64 << 10;
/// The most connections.
const CLIENTS_MAX: usize = 64;
/// Datagrams that are read from one program before the others get their turn.
const TURN: usize = 32;
/// Bytes that wait for a program: with more of events, further ones are left out; with more of answers, it is
/// disconnected.
const EVENTS_MAX: usize = 1 << 20;
const ANSWERS_MAX: usize = 64 << 20;

/// Programs that `serve` has rejected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RejectedClients {
    /// Those that may not connect, or for which there is no room.
    pub refused: usize,
    /// Those that were disconnected because they did not read their answers.
    pub too_slow: usize,
}

struct Connection {
    socket: OwnedFd,
    client: Client,
    waiting: VecDeque<Bytes>,
    bytes: usize,
    has_ended: bool,
}

/// The listening socket and its connections; the socket's file is removed on drop.
pub struct Server {
    listener: OwnedFd,
    path: PathBuf,
    connections: Vec<Connection>,
    buffer: Zeroizing<Vec<u8>>,
}

fn new_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

fn is_ready(socket: &PollFd<'_>) -> bool {
    socket.revents().intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR)
}

impl Server {
    /// Listens at `path`, and replaces a socket there on which no process listens.
    ///
    /// # Errors
    /// The system's error, or that another process listens there.
    pub fn listen(path: &Path) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let found = connect(new_socket()?, &SocketAddrUnix::new(path)?);
        if matches!(found, Ok(()) | Err(Errno::AGAIN)) {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens there"));
        }
        // Under another name until it has its mode: nobody can connect before it listens.
        let new = path.with_file_name(format!(".xfrm.{}.sock", std::process::id()));
        let _left_behind = std::fs::remove_file(&new);
        let listener = new_socket()?;
        bind(&listener, &SocketAddrUnix::new(&new)?)?;
        let ready = std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o600))
            .and_then(|()| Ok(listen(&listener, 16)?))
            .and_then(|()| std::fs::rename(&new, path));
        if let Err(error) = ready {
            let _gone = std::fs::remove_file(&new);
            return Err(error);
        }
        let buffer = Zeroizing::new(vec![0; DATAGRAM_MAX]);
        Ok(Self { listener, path: path.into(), connections: Vec::new(), buffer })
    }

    /// Waits for messages, at most this long, and handles them.
    ///
    /// # Errors
    /// The system's error for waiting; those of connections end these.
    pub fn serve(
        &mut self,
        longest: Duration,
        mut handle: impl FnMut(&mut Client, &Raw<'_>) -> Answer,
    ) -> io::Result<RejectedClients> {
        let (ready, accepts) = self.wait(longest)?;
        let mut rejected = RejectedClients::default();
        for at in ready {
            for _ in 0..TURN {
                let Some(length) = self.receive(at) else { break };
                let datagram = Zeroizing::new(self.buffer[..length].to_vec());
                self.buffer[..length].zeroize();
                for raw in Messages(&datagram) {
                    let answer = handle(&mut self.connections[at].client, &raw);
                    self.connections[at].queue(answer.replies);
                    self.send_events(answer.events);
                }
            }
        }
        self.connections.iter_mut().for_each(Connection::send);
        rejected.too_slow =
            self.connections.iter().filter(|connection| connection.bytes > ANSWERS_MAX).count();
        self.connections.retain(|connection| !connection.has_ended && connection.bytes <= ANSWERS_MAX);
        if accepts {
            self.accept(&mut rejected);
        }
        Ok(rejected)
    }

    /// Sends events to the programs that have joined their groups.
    pub fn send_events(&mut self, events: Vec<(u32, Bytes)>) {
        for (group, event) in events {
            for connection in &mut self.connections {
                let listens = connection.client.groups & 1 << (group - 1) != 0;
                if listens && connection.bytes < EVENTS_MAX {
                    connection.queue(vec![event.clone()]);
                }
            }
        }
        self.connections.iter_mut().for_each(Connection::send);
    }

    /// Which connections have something to read, and whether there is a new one.
    fn wait(&self, longest: Duration) -> io::Result<(Vec<usize>, bool)> {
        let mut sockets = vec![PollFd::new(&self.listener, PollFlags::IN)];
        for connection in &self.connections {
            let writes = if connection.waiting.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            sockets.push(PollFd::new(&connection.socket, PollFlags::IN | writes));
        }
        let limit = Timespec { tv_sec: longest.as_secs() as i64, tv_nsec: longest.subsec_nanos().into() };
        match poll(&mut sockets, Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let [listener, others @ ..] = &sockets[..] else { return Ok((Vec::new(), false)) };
        let of_programs = others.iter().enumerate().filter(|(_, socket)| is_ready(socket));
        Ok((of_programs.map(|(at, _)| at).collect(), is_ready(listener)))
    }

    /// Reads a datagram; its length.
    fn receive(&mut self, at: usize) -> Option<usize> {
        let connection = &mut self.connections[at];
        match recv(&connection.socket, &mut self.buffer[..], RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
            Ok((_, 0)) => connection.has_ended = true,
            Ok((_, length)) if length <= DATAGRAM_MAX => return Some(length),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok(_) | Err(_) => connection.has_ended = true,
        }
        None
    }

    fn accept(&mut self, rejected: &mut RejectedClients) {
        let Ok(socket) = accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) else {
            return;
        };
        let Ok(peer) = socket_peercred(socket.as_fd()) else { return };
        let may = peer.uid.is_root() || peer.uid == rustix::process::geteuid();
        if !may || self.connections.len() >= CLIENTS_MAX {
            rejected.refused += 1;
            return;
        }
        let process = peer.pid.as_raw_nonzero().get() as u32;
        let client = Client { process, ..Client::default() };
        let (waiting, bytes, has_ended) = (VecDeque::new(), 0, false);
        self.connections.push(Connection { socket, client, waiting, bytes, has_ended });
    }
}

impl Connection {
    fn queue(&mut self, datagrams: Vec<Bytes>) {
        self.bytes += datagrams.iter().map(|datagram| datagram.len()).sum::<usize>();
        self.waiting.extend(datagrams);
        self.send();
    }

    /// Sends what waits, as far as the program reads.
    fn send(&mut self) {
        while let Some(datagram) = self.waiting.front() {
            match send(&self.socket, datagram, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(_) => {
                    self.bytes -= datagram.len();
                    self.waiting.pop_front();
                }
                Err(Errno::AGAIN | Errno::INTR) => return,
                Err(_) => {
                    self.has_ended = true;
                    return;
                }
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Not another daemon's: that one would have found this one listening.
        let _gone = std::fs::remove_file(&self.path);
    }
}
