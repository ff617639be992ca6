//! A BGP speaker that only sends (RFC 4271): opens a session, announces and withdraws IPv4 prefixes.
//!
//! It accepts whatever the peer sends, and keeps the session up as long as it exists.

use crate::PATIENCE;
use crate::netns::Namespace;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// A prefix: address and length.
pub type Prefix = (Ipv4Addr, u8);

const OPEN: u8 = 1;
const UPDATE: u8 = 2;
const KEEPALIVE: u8 = 4;
const HEADER_LEN: usize = 19;
/// Bytes of the longest message.
const MESSAGE_MAX: usize = 4096;
/// A session with the router.
pub struct Speaker {
    stream: TcpStream,
    autonomous_system: u32,
}

impl Speaker {
    /// Connects from a namespace to a router at port 179 and exchanges the first messages.
    pub fn connect(namespace: &Namespace, router: &str, autonomous_system: u32, id: &str) -> Self {
        let address: SocketAddr = format!("{router}:179").parse().expect("an address and a port");
        let open = open(autonomous_system, id.parse().expect("an address"));
        let deadline = Instant::now() + PATIENCE;
        // A peer that has just started refuses connections at first, with various errors.
        let stream = loop {
            match namespace.within(|| handshake(&address, &open)) {
                Ok(stream) => break stream,
                Err(error) => assert!(Instant::now() < deadline, "BGP to {address}: {error}"),
            }
            std::thread::sleep(Duration::from_millis(100));
        };
        keep_alive(&stream);
        Self { stream, autonomous_system }
    }

    /// Announces prefixes, each with its next hop; returns the number of messages.
    pub fn announce(&mut self, routes: &[(Prefix, Ipv4Addr)]) -> usize {
        let mut by_next_hop: BTreeMap<Ipv4Addr, Vec<Prefix>> = BTreeMap::new();
        for (prefix, next_hop) in routes {
            by_next_hop.entry(*next_hop).or_default().push(*prefix);
        }
        let mut sent = 0;
        for (next_hop, prefixes) in by_next_hop {
            let attributes = self.attributes(next_hop);
            let head = [&[0, 0], &(attributes.len() as u16).to_be_bytes()[..], &attributes].concat();
            for part in parts(&prefixes, MESSAGE_MAX - HEADER_LEN - head.len()) {
                send(&mut self.stream, &message(UPDATE, &[&head[..], &part].concat()));
                sent += 1;
            }
        }
        sent
    }

    /// Withdraws prefixes; returns the number of messages.
    pub fn withdraw(&mut self, prefixes: &[Prefix]) -> usize {
        let parts = parts(prefixes, MESSAGE_MAX - HEADER_LEN - 4);
        for part in &parts {
            let body = [&(part.len() as u16).to_be_bytes()[..], part, &[0, 0]].concat();
            send(&mut self.stream, &message(UPDATE, &body));
        }
        parts.len()
    }

    /// ORIGIN, AS_PATH and NEXT_HOP.
    fn attributes(&self, next_hop: Ipv4Addr) -> Vec<u8> {
        let path = self.autonomous_system.to_be_bytes();
        [&[0x40, 1, 1, 0, 0x40, 2, 6, 2, 1], &path[..], &[0x40, 3, 4], &next_hop.octets()].concat()
    }
}

impl Drop for Speaker {
    fn drop(&mut self) {
        // Ends the thread that keeps the session up.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

/// Connects, and exchanges OPEN and KEEPALIVE.
fn handshake(address: &SocketAddr, open: &[u8]) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(address, Duration::from_secs(1))?;
    stream.write_all(open)?;
    let expect = |stream: &mut TcpStream, wanted| match receive(stream)? {
        (kind, _) if kind == wanted => Ok(()),
        (kind, body) => Err(std::io::Error::other(format!("message {kind} {body:?} instead of {wanted}"))),
    };
    expect(&mut stream, OPEN)?;
    stream.write_all(&message(KEEPALIVE, &[]))?;
    expect(&mut stream, KEEPALIVE)?;
    Ok(stream)
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = (HEADER_LEN + body.len()) as u16;
    [&[0xff; 16], &length.to_be_bytes()[..], &[kind], body].concat()
}

/// Version 4, hold time 180 s, IPv4 unicast (RFC 4760) and four-byte AS numbers (RFC 6793).
fn open(autonomous_system: u32, id: Ipv4Addr) -> Vec<u8> {
    let short = u16::try_from(autonomous_system).unwrap_or(23_456).to_be_bytes();
    let capabilities = [&[1, 4, 0, 1, 0, 1, 65, 4], &autonomous_system.to_be_bytes()[..]].concat();
    let length = capabilities.len() as u8;
    let body = [&[4], &short[..], &[0, 180], &id.octets(), &[length + 2, 2, length], &capabilities].concat();
    message(OPEN, &body)
}

/// Encodes prefixes for messages, in pieces of at most `room` bytes.
fn parts(prefixes: &[Prefix], room: usize) -> Vec<Vec<u8>> {
    let mut parts: Vec<Vec<u8>> = Vec::new();
    for (address, length) in prefixes {
        let bytes = &address.octets()[..usize::from(*length).div_ceil(8)];
        if parts.last().is_none_or(|part| part.len() + 1 + bytes.len() > room) {
            parts.push(Vec::with_capacity(room));
        }
        let part = parts.last_mut().expect("one was pushed");
        part.push(*length);
        part.extend(bytes);
    }
    parts
}

fn send(stream: &mut TcpStream, message: &[u8]) {
    stream.write_all(message).unwrap_or_else(|error| panic!("BGP session: {error}"));
}

fn receive(stream: &mut TcpStream) -> std::io::Result<(u8, Vec<u8>)> {
    let mut header = [0; HEADER_LEN];
    stream.read_exact(&mut header)?;
    let length = usize::from(u16::from_be_bytes([header[16], header[17]]));
    let mut body = vec![0; length.saturating_sub(HEADER_LEN)];
    stream.read_exact(&mut body)?;
    Ok((header[18], body))
}

/// Answers each KEEPALIVE with another, on a thread that ends with the session.
fn keep_alive(stream: &TcpStream) {
    let mut stream = stream.try_clone().expect("a socket can be shared");
    std::thread::spawn(move || {
        while let Ok((kind, _)) = receive(&mut stream) {
            if kind == KEEPALIVE && stream.write_all(&message(KEEPALIVE, &[])).is_err() {
                return;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_message_byte_by_byte() {
        let expected = [
            &[0xff; 16][..],
            &[
                0, 43, 1, 4, 0xfd, 0xe9, 0, 180, 10, 0, 0, 1, 14, 2, 12, 1, 4, 0, 1, 0, 1, 65, 4, 0, 0, 0xfd,
                0xe9,
            ],
        ];
        assert_eq!(open(65_001, Ipv4Addr::new(10, 0, 0, 1)), expected.concat());
    }

    #[test]
    fn prefixes_fill_messages() {
        let prefixes = [(Ipv4Addr::new(10, 0, 0, 0), 8), (Ipv4Addr::new(10, 1, 2, 128), 25)];
        assert_eq!(parts(&prefixes, 7), [vec![8, 10, 25, 10, 1, 2, 128]]);
        assert_eq!(parts(&prefixes, 6), [vec![8, 10], vec![25, 10, 1, 2, 128]]);
    }
}
