//! Questions and requests to conntrack.

use crate::layout::{HEADER, attribute, header, message};
use crate::{Connection, Tuple, Update};
use bm_netlink::attribute::put;
use bm_netlink::dump::{self, change, request};
use bm_netlink::requests::Requests;
use bm_netlink::socket::Socket;
use bm_netlink::{Error, Family};
use netlink_sys::protocols::NETLINK_NETFILTER;
use std::io;

/// Updates in one send: enough that its system calls cost little, and that answers fit the receive buffer if all are refused.
const SEND: usize = 512;

/// A socket for questions and requests. Needs `CAP_NET_ADMIN`.
#[derive(Debug)]
pub struct Conntrack {
    socket: Socket,
    requests: Requests,
}

impl Conntrack {
    /// Opens a socket in the network namespace of the calling thread.
    pub fn open() -> Result<Self, Error> {
        let socket = present(dump::open(NETLINK_NETFILTER)?)?;
        Ok(Self { socket, requests: Requests::default() })
    }

    /// All connections, or those of a family. It is no snapshot: one that comes or goes meanwhile may be missing, and in rare
    /// cases one is listed twice. The kernel also removes what it meets that has expired.
    pub fn list(&mut self, family: Option<Family>) -> Result<Vec<Connection>, Error> {
        let family = match family {
            None => libc::AF_UNSPEC,
            Some(Family::V4) => libc::AF_INET,
            Some(Family::V6) => libc::AF_INET6,
        };
        let (body, mut list) = ([family as u8, 0, 0, 0], Vec::new());
        dump::dump(&mut self.socket, "list connections", message::GET, &body, |raw| {
            list.push(Connection::read(raw.body)?);
            Ok(())
        })?;
        Ok(list)
    }

    /// The connection that packets with this tuple belong to, of either direction, in the zone of that direction.
    pub fn get(&mut self, tuple: &Tuple, zone: u16) -> Result<Option<Connection>, Error> {
        let mut found = None;
        let asked = request(&mut self.socket, "get a connection", message::GET, &which(tuple, zone), |raw| {
            found = Some(Connection::read(raw.body)?);
            Ok(())
        });
        match asked {
            Err(error) if error.errno() == Some(libc::ENOENT) => Ok(None),
            asked => asked.map(|()| found),
        }
    }

    /// Changes connections; returns the result of each, in their order. An error of `ENOENT`
    /// ([`io::ErrorKind::NotFound`]) says that there is no such connection any more, `EPERM` that its timeout is fixed ([`crate::status::FIXED_TIMEOUT`]).
    ///
    /// Connections are found by their tuple: if a new one with the same has taken the place of the one that is meant, it
    /// is changed.
    ///
    /// # Errors
    /// If some could not be sent, or some answers are lost. Connections may or may not have been changed then.
    pub fn update(&mut self, updates: &[Update]) -> Result<Vec<io::Result<()>>, Error> {
        let mut results = Vec::with_capacity(updates.len());
        for updates in updates.chunks(SEND) {
            let first = results.len();
            for update in updates {
                self.requests.add(&mut self.socket, message::NEW, 0, |message| update.write(message));
                results.push(Ok(()));
            }
            self.requests.send(&mut self.socket, |number, error| {
                results[first + number] = Err(refusal(error));
            })?;
        }
        Ok(results)
    }

    /// Removes the connection that packets with this tuple belong to, if it has this ID or any; returns whether there was one.
    pub fn delete(&mut self, tuple: &Tuple, zone: u16, id: Option<u32>) -> Result<bool, Error> {
        // Without a tuple the kernel would remove all.
        let mut body = which(tuple, zone);
        if let Some(id) = id {
            put(&mut body, attribute::ID, &id.to_be_bytes());
        }
        match change(&mut self.socket, "remove a connection", message::DELETE, 0, &body) {
            Err(error) if error.errno() == Some(libc::ENOENT) => Ok(false),
            changed => changed.map(|()| true),
        }
    }
}

/// The socket, or an error for a kernel without netfilter.
pub(crate) fn present(socket: Option<Socket>) -> Result<Socket, Error> {
    socket.ok_or_else(|| Error::System {
        doing: "open a netlink socket for connection tracking",
        source: io::Error::from_raw_os_error(libc::EPROTONOSUPPORT),
    })
}

/// A message body that names a connection.
fn which(tuple: &Tuple, zone: u16) -> Vec<u8> {
    let mut body = Vec::with_capacity(HEADER + 96);
    body.extend_from_slice(&header(&tuple.source));
    tuple.write(attribute::TUPLE_ORIGINAL, &mut body);
    if zone != 0 {
        put(&mut body, attribute::ZONE, &zone.to_be_bytes());
    }
    body
}

/// Why an update was refused.
fn refusal(error: Error) -> io::Error {
    match error.errno() {
        // The connection was found just before it left the table.
        Some(libc::ETIME) => io::Error::from_raw_os_error(libc::ENOENT),
        Some(errno) => io::Error::from_raw_os_error(errno),
        None => error.into(),
    }
}
