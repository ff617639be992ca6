//! Cases `sas` and `policies`: how long does it take to find an SA or a policy among many?
//!
//! A subject is how many there are. 4,096 random ones are looked up in turn.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use bm_ipsec::{Action, Direction, Policies, Policy, SaId, SaTable, Selector, key};
use bm_testbed::random::{Random, Seed};

use super::super::BenchError;
use crate::alternate::{Sample, Turns, alternate_samples, thread_time};
use crate::report::Row;

const SEED: Seed = Seed(17);
/// How many there are.
const NUMBERS: [u32; 3] = [1, 100, 10_000];
/// Lookups in a repetition.
const LOOKUPS: usize = 4096;

/// What is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// SAs by SPI and destination.
    Sas,
    /// Outbound policies by the packet: each has a source network of its own, and all have one destination.
    Policies,
}

impl Case {
    pub const ALL: [Self; 2] = [Self::Sas, Self::Policies];

    pub fn name(self) -> &'static str {
        match self {
            Self::Sas => "sas",
            Self::Policies => "policies",
        }
    }
}

/// Measures a case.
///
/// # Errors
/// There is no room for so many policies.
pub fn measure(case: Case, turns: Turns) -> Result<Vec<Row>, BenchError> {
    let subjects: Vec<_> = NUMBERS.map(|number| number.to_string()).into();
    let measured = match case {
        Case::Sas => {
            let mut tables: Vec<_> = NUMBERS.iter().map(|&number| (sas(number), order(number))).collect();
            alternate_samples(turns.runs, subjects, |subject| {
                let (table, order) = &mut tables[subject];
                turn(turns, |&number| table.find(id(number)).copied(), order)
            })
        }
        Case::Policies => {
            let mut tables = Vec::new();
            for number in NUMBERS {
                let packets: Vec<_> = order(number).into_iter().map(packet).collect();
                tables.push((policies(number)?, packets));
            }
            alternate_samples(turns.runs, subjects, |subject| {
                let (policies, packets) = &tables[subject];
                turn(
                    turns,
                    |packet| policies.find(Direction::Out, &key(packet)?).map(|policy| policy.priority),
                    packets,
                )
            })
        }
    }?;
    Ok(measured.iter().map(|measured| Row::mpps("ipsec", case.name(), measured)).collect())
}

/// A slot after its warm-up.
fn turn<T>(turns: Turns, mut find: impl FnMut(&T) -> Option<u32>, all: &[T]) -> Result<Sample, BenchError> {
    repeat(turns.warm_up, &mut find, all)?;
    repeat(turns.slot, &mut find, all)
}

fn repeat<T>(
    time: Duration,
    find: &mut impl FnMut(&T) -> Option<u32>,
    all: &[T],
) -> Result<Sample, BenchError> {
    let (wall, start, mut items, mut found) = (Instant::now(), thread_time(), 0, 0);
    while items == 0 || wall.elapsed() < time {
        found += all.iter().filter(|one| black_box(find(one)).is_some()).count();
        items += all.len();
    }
    let spent = thread_time() - start;
    if found != items {
        return Err(BenchError::build("find all")(format!("{found} of {items} were found")));
    }
    let rate = items as f64 / spent.as_secs_f64().max(1e-9);
    Ok(Sample { items: items as u64, rate, ns: 1e9 / rate })
}

/// Numbers below `number` in random order, with repetitions.
fn order(number: u32) -> Vec<u32> {
    let mut random = Random::new(SEED);
    (0..LOOKUPS).map(|_| random.below(number as usize) as u32).collect()
}

/// Random-looking SPIs, as an IKE daemon chooses them, for one destination.
fn id(number: u32) -> SaId {
    let destination = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    SaId { spi: number.wrapping_mul(0x9e37_79b1) | 0x8000_0000, destination }
}

fn sas(number: u32) -> SaTable<u32> {
    let mut table = SaTable::new();
    (0..number).for_each(|one| _ = table.insert(id(one), one));
    table
}

/// 10.0.0.0/24, 10.0.1.0/24 and so on, to 172.16.0.0/12.
fn policies(number: u32) -> Result<Policies, BenchError> {
    let policies = (0..number).map(|one| Policy {
        at: 0,
        direction: Direction::Out,
        priority: one,
        if_id: 0,
        selector: Selector {
            source: format!("{}/24", Ipv4Addr::from(0x0a00_0000 | one << 8)).parse().ok(),
            destination: "172.16.0.0/12".parse().ok(),
            ..Selector::default()
        },
        action: Action::Protect(id(one)),
    });
    Policies::new(policies.collect()).map_err(BenchError::build("build policies"))
}

/// A UDP packet from the network of a policy.
fn packet(one: u32) -> [u8; 28] {
    let mut packet = [0; 28];
    (packet[0], packet[3], packet[8], packet[9]) = (0x45, 28, 64, 17);
    packet[12..16].copy_from_slice(&(0x0a00_0007 | one << 8).to_be_bytes());
    packet[16..20].copy_from_slice(&[172, 16, 0, 9]);
    packet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_found() {
        let turns = Turns { runs: 1, slot: Duration::from_micros(100), warm_up: Duration::ZERO };
        for case in Case::ALL {
            let rows = measure(case, turns).unwrap();
            assert_eq!(
                rows.iter().map(|row| row.subject.as_str()).collect::<Vec<_>>(),
                ["1", "100", "10000"]
            );
        }
    }
}
