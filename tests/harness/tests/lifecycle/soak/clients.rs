//! Clients of the daemon: a reader of statistics with a thousand requests a second, and readers that are slow to read
//! the answer.

use crate::soak::Loads;
use std::io::{BufRead, BufReader, Error, Read, Result, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long an answer may take on a machine that others use as well.
const PATIENCE: Duration = Duration::from_secs(30);
/// Paths requested in turn.
const STATISTICS: [&str; 4] = ["/v1/ports", "/v1/drops", "/v1/metrics", "/v1/workers"];
/// A path with a long answer.
const LONG: &str = "/v1/routes?limit=100000";
/// How much a slow reader reads at a time, and how long it pauses.
const SIP: usize = 256;
const REST: Duration = Duration::from_millis(100);

/// Results of requests so far.
#[derive(Debug, Default)]
pub struct Asked {
    /// Answers with status 200.
    pub answers: u64,
    /// Connections that ended, each after ten minutes at the latest.
    pub reconnected: u64,
    /// Longest time that an answer took.
    pub slowest: Duration,
    /// The first error.
    pub failure: Option<String>,
}

/// A connection for many requests.
struct Connection(BufReader<UnixStream>);

impl Connection {
    fn open(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Requests a path; returns the body of the answer.
    fn get(&mut self, path: &str) -> Result<Vec<u8>> {
        self.ask(path)?;
        let mut length = 0;
        let mut line = String::new();
        let mut status = String::new();
        while self.0.read_line(&mut line)? > 0 && line != "\r\n" {
            let lower = line.to_ascii_lowercase();
            match lower.strip_prefix("content-length:") {
                Some(count) => length = count.trim().parse().map_err(Error::other)?,
                None if status.is_empty() => status = lower,
                None => {}
            }
            line.clear();
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body)?;
        match status.split(' ').nth(1) {
            Some("200") => Ok(body),
            None => Err(std::io::ErrorKind::UnexpectedEof.into()),
            Some(_) => Err(Error::other(format!("{path}: {status}{}", String::from_utf8_lossy(&body)))),
        }
    }

    fn ask(&mut self, path: &str) -> Result<()> {
        write!(self.0.get_mut(), "GET {path} HTTP/1.1\r\nHost: brickmoon\r\n\r\n")
    }
}

impl Asked {
    /// Adds the results of another client.
    pub fn and(self, other: Self) -> Self {
        Self {
            answers: self.answers + other.answers,
            reconnected: self.reconnected + other.reconnected,
            slowest: self.slowest.max(other.slowest),
            failure: self.failure.or(other.failure),
        }
    }
}

/// Requests statistics `rate` times a second.
pub fn read_statistics(socket: &Path, rate: f64, loads: &Loads) -> Asked {
    let (start, mut asked) = (Instant::now(), Asked::default());
    let mut connection = None;
    let mut number = 0;
    while !loads.are_over() {
        if f64::from(number) > start.elapsed().as_secs_f64() * rate {
            std::thread::sleep(Duration::from_micros(200));
            continue;
        }
        let began = Instant::now();
        let path = STATISTICS[number as usize % STATISTICS.len()];
        let open = connection.take().map_or_else(|| Connection::open(socket), Ok);
        let answer = open.and_then(|mut open| open.get(path).map(|body| (open, body)));
        match answer {
            Ok((open, body)) => {
                connection = Some(open);
                asked.answers += u64::from(!body.is_empty());
                number += 1;
            }
            // The daemon closes a connection after ten minutes; the next request opens another.
            Err(error) if is_closed(&error) => asked.reconnected += 1,
            Err(error) => {
                asked.failure.get_or_insert(error.to_string());
                number += 1;
            }
        }
        asked.slowest = asked.slowest.max(began.elapsed());
    }
    asked
}

/// Opens the counters in shared memory beside the socket.
pub fn open_counters(socket: &Path) -> bm_stats::Reader {
    bm_stats::Reader::open(&socket.with_extension("stats")).unwrap_or_else(|error| panic!("{error}"))
}

/// Reads all counters; there are none if the kernel path forwards for all ports.
pub fn read_counters(counters: &bm_stats::Reader) {
    std::hint::black_box(counters.counters().expect("a file of whole length"));
}

fn is_closed(error: &Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    [BrokenPipe, ConnectionReset, UnexpectedEof].contains(&error.kind())
}

/// Requests long answers and reads them a little at a time. Returns the number of bytes read.
pub fn read_slowly(socket: &Path, loads: &Loads) -> u64 {
    let mut bytes = 0;
    let mut some = [0; SIP];
    while !loads.are_over() {
        let mut open = Connection::open(socket).expect("the daemon listens");
        open.ask(LONG).expect("the daemon listens");
        // Until the daemon closes it.
        while let Ok(count @ 1..) = open.0.get_mut().read(&mut some) {
            bytes += count as u64;
            if loads.are_over() {
                break;
            }
            std::thread::sleep(REST);
        }
    }
    bytes
}
