//! Real tables from files: MRT dumps of a route collector, or lines of `PREFIX/LENGTH [NEXT_HOP]`.
//!
//! A file may have either form, with IPv4 and IPv6 mixed, plain or compressed by gzip or bzip2: its content
//! decides, not its name. Next hops are replaced by small numbers, since the address of a real router means
//! nothing in a test bed. Errors name the file and the line or byte, and say what was expected.

mod mrt;
mod text;

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use bm_wire::prefix::{Address, Ipv4Prefix, Ipv6Prefix};

use crate::tables::{Route, Table};
pub use mrt::MrtFault;
pub use text::LineFault;

/// The contents of the files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rib {
    /// The routes, sorted and without duplicates.
    pub table: Table,
    /// The addresses that the next hops 1, 2, 3 and so on replace, if the files had addresses.
    pub next_hops: Vec<IpAddr>,
    /// Number of duplicate prefixes; the first one of each was used.
    pub duplicates: usize,
    /// MRT records that are not about unicast routes.
    pub skipped: usize,
}

/// Why a file cannot be read.
#[derive(Debug)]
pub struct RibError {
    pub file: PathBuf,
    /// What is wrong with it.
    pub fault: RibFault,
}

/// What is wrong with a file.
#[derive(Debug)]
pub enum RibFault {
    /// It cannot be opened, read or decompressed.
    Io(io::Error),
    /// A line is wrong, counted from 1.
    Line(u64, LineFault),
    /// An MRT record is wrong; its position in bytes, after decompression.
    Record(u64, MrtFault),
    /// It is well formed and contains no unicast route.
    NoRoutes,
}

impl fmt::Display for RibError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.file.display())?;
        match &self.fault {
            RibFault::Io(error) => write!(f, "{error}"),
            RibFault::Line(line, fault) => write!(f, "line {line}: {fault}"),
            RibFault::Record(offset, fault) => write!(f, "MRT record at byte {offset}: {fault}"),
            RibFault::NoRoutes => f.write_str(
                "no routes: give an MRT table dump (TABLE_DUMP_V2) or lines of PREFIX/LENGTH [NEXT_HOP]",
            ),
        }
    }
}

impl std::error::Error for RibError {}

impl From<io::Error> for RibFault {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Reads all the files into one table.
pub fn read<P: AsRef<Path>>(files: &[P]) -> Result<Rib, RibError> {
    let mut gathered = RibBuilder::default();
    for file in files {
        let before = gathered.routes();
        read_file(file.as_ref(), &mut gathered)
            .and_then(|()| if gathered.routes() > before { Ok(()) } else { Err(RibFault::NoRoutes) })
            .map_err(|fault| RibError { file: file.as_ref().to_owned(), fault })?;
    }
    Ok(gathered.finish())
}

fn read_file(file: &Path, gathered: &mut RibBuilder) -> Result<(), RibFault> {
    let mut input = BufReader::with_capacity(1 << 16, decompressed(File::open(file)?)?);
    // Text has no control bytes; the second field of every MRT record starts with one.
    let is_text = input.fill_buf()?.iter().take(12).all(|&byte| byte >= b' ' || b"\t\r\n".contains(&byte));
    if is_text { text::read(input, gathered) } else { mrt::read(input, gathered) }
}

fn decompressed(file: File) -> io::Result<Box<dyn Read>> {
    let mut input = BufReader::with_capacity(1 << 16, file);
    Ok(match input.fill_buf()? {
        [0x1f, 0x8b, ..] => Box::new(flate2::bufread::MultiGzDecoder::new(input)),
        [b'B', b'Z', b'h', ..] => Box::new(bzip2::bufread::MultiBzDecoder::new(input)),
        _ => Box::new(input),
    })
}

/// Routes as they come in.
#[derive(Default)]
struct RibBuilder {
    table: Table,
    numbers: HashMap<IpAddr, u16>,
    next_hops: Vec<IpAddr>,
    skipped: usize,
}

impl RibBuilder {
    fn routes(&self) -> usize {
        self.table.ipv4.len() + self.table.ipv6.len()
    }

    fn add_ipv4(&mut self, prefix: Ipv4Prefix, next_hop: u16) {
        self.table.ipv4.push(Route { prefix, next_hop });
    }

    fn add_ipv6(&mut self, prefix: Ipv6Prefix, next_hop: u16) {
        self.table.ipv6.push(Route { prefix, next_hop });
    }

    /// The number for a next hop's address; after 65,535 of them, numbers are shared.
    fn number(&mut self, address: IpAddr) -> u16 {
        if let Some(&number) = self.numbers.get(&address) {
            return number;
        }
        let number = (self.numbers.len() % usize::from(u16::MAX)) as u16 + 1;
        self.numbers.insert(address, number);
        self.next_hops.push(address);
        number
    }

    fn finish(mut self) -> Rib {
        let duplicates = settle(&mut self.table.ipv4) + settle(&mut self.table.ipv6);
        Rib { table: self.table, next_hops: self.next_hops, duplicates, skipped: self.skipped }
    }
}

/// Sorts, and keeps the first of equal prefixes; returns how many were removed.
fn settle<A: Address>(routes: &mut Vec<Route<A>>) -> usize {
    let before = routes.len();
    routes.sort_by_key(|route| route.prefix);
    routes.dedup_by_key(|route| route.prefix);
    before - routes.len()
}

#[cfg(test)]
mod tests;
