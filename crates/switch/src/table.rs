//! Reads the MAC address table from the kernel in batches.
//!
//! The kernel returns whole buckets of its hash table, so a batch may contain fewer entries than there is room for
//! although more follow: only `ENOENT` marks the last one. A bucket that does not fit into an empty batch gives
//! `ENOSPC`; a larger batch is needed then.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use bm_bpf::MapValue;
use libbpf_rs::{MapCore, MapHandle, libbpf_sys};

use crate::layout::FdbEntry;
use crate::settings::Address;

/// Entries read at once.
const BATCH: usize = 4096;
const KEY: usize = 8;
const VALUE: usize = size_of::<FdbEntry>();

/// The key of an entry in the kernel's map: MAC address in the low 48 bits, VLAN above.
pub fn key(address: Address) -> [u8; KEY] {
    let [a, b, c, d, e, f] = address.mac;
    let mac = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
    (mac | u64::from(address.vlan) << 48).to_ne_bytes()
}

fn address(key: [u8; KEY]) -> Address {
    let key = u64::from_ne_bytes(key);
    let [a, b, c, d, e, f, ..] = key.to_le_bytes();
    Address { mac: [a, b, c, d, e, f], vlan: (key >> 48) as u16 }
}

/// Every entry of a map, including expired ones. Entries that are added or removed meanwhile may be missing.
///
/// # Errors
/// The kernel's error, and `InvalidData` if the map has another layout.
pub fn read(map: &MapHandle) -> io::Result<Vec<(Address, FdbEntry)>> {
    if (map.key_size() as usize, map.value_size() as usize) != (KEY, VALUE) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut batch = Batch::new(BATCH);
    let mut fdb = Vec::new();
    loop {
        let (count, last) = match batch.read_next(map) {
            Ok(count) => (count, false),
            Err(error) if error.code == libc::ENOENT => (error.count, true),
            Err(error) if error.code == libc::EINTR => continue,
            Err(error) if error.code == libc::ENOSPC && batch.room() < map.max_entries() as usize => {
                batch = Batch { next: batch.next, ..Batch::new(batch.room() * 2) };
                continue;
            }
            Err(error) => return Err(io::Error::from_raw_os_error(error.code)),
        };
        let keys = batch.keys.as_chunks::<KEY>().0.iter();
        let values = batch.values.as_chunks::<VALUE>().0.iter();
        let pairs = keys.zip(values).take(count);
        fdb.extend(pairs.filter_map(|(key, value)| Some((address(*key), FdbEntry::from_bytes(value)?))));
        if last {
            return Ok(fdb);
        }
    }
}

/// Space for some entries, and the position from which the kernel continues.
struct Batch {
    keys: Vec<u8>,
    values: Vec<u8>,
    /// The kernel's own number; `None` before the first batch.
    next: Option<u64>,
}

/// Why the batch is not full, and how many entries it contains nevertheless.
struct EndOfBatch {
    code: i32,
    count: usize,
}

impl Batch {
    fn new(room: usize) -> Self {
        Self { keys: vec![0; room * KEY], values: vec![0; room * VALUE], next: None }
    }

    fn room(&self) -> usize {
        self.keys.len() / KEY
    }

    /// Reads the next entries and returns their number.
    fn read_next(&mut self, map: &MapHandle) -> Result<usize, EndOfBatch> {
        let (mut count, mut next) = (self.room() as u32, 0u64);
        let from = self.next.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
        // SAFETY: the arrays have room for `count` keys and values of this map's sizes; both positions have room for
        // the kernel's, which is no longer than a key; no option is needed, so there is no structure of them.
        let failed = unsafe {
            libbpf_sys::bpf_map_lookup_batch(
                map.as_fd().as_raw_fd(),
                from.cast(),
                std::ptr::from_mut(&mut next).cast(),
                self.keys.as_mut_ptr().cast(),
                self.values.as_mut_ptr().cast(),
                &mut count,
                std::ptr::null(),
            )
        };
        let count = (count as usize).min(self.room());
        match failed {
            0 => {
                self.next = Some(next);
                Ok(count)
            }
            code => Err(EndOfBatch { code: -code, count }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libbpf_rs::{MapFlags, MapType};

    fn entry(number: u32) -> (Address, FdbEntry) {
        let [a, b, c, d] = number.to_be_bytes();
        let address = Address { mac: [2, 0, a, b, c, d], vlan: (number % 4095) as u16 };
        (address, FdbEntry { slot: number, ..FdbEntry::default() })
    }

    /// A table with room for this many MAC addresses; `None`, with a message, without the privilege to create one.
    fn table(room: u32) -> Option<MapHandle> {
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
            ..libbpf_sys::bpf_map_create_opts::default()
        };
        let made = MapHandle::create(MapType::Hash, Some("fdb"), KEY as u32, VALUE as u32, room, &options);
        made.inspect_err(|error| eprintln!("skipped: needs root for BPF: {error}")).ok()
    }

    /// All of `count` MAC addresses are read from a table with `room`.
    fn reads_all(count: u32, room: u32) {
        let Some(map) = table(room) else { return };
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for (address, entry) in (0..count).map(entry) {
            keys.extend(key(address));
            values.extend(entry.bytes());
        }
        if count > 0 {
            map.update_batch(&keys, &values, count, MapFlags::ANY, MapFlags::ANY).unwrap();
        }
        let mut read = read(&map).unwrap();
        read.sort_by_key(|(_, entry)| entry.slot);
        assert_eq!(read.len(), count as usize, "of a table with room for {room}");
        assert!(read.into_iter().eq((0..count).map(entry)), "{count} MAC addresses");
    }

    #[test]
    fn reads_every_mac_of_tables_of_any_fill() {
        for (count, room) in [
            (0, 16_384),
            (1, 16_384),
            (100, 16_384),
            (1_023, 16_384),
            (1_024, 16_384),
            (1_024, 1_024),
            (16_384, 16_384),
            (16_384, 65_536),
        ] {
            reads_all(count, room);
        }
    }

    #[test]
    fn reads_a_million_macs() {
        reads_all(1_000_000, 1 << 20);
    }

    #[test]
    fn a_batch_without_room_for_a_bucket_is_tried_again_with_more() {
        let Some(map) = table(1 << 16) else { return };
        for (address, entry) in (0..50_000).map(entry) {
            map.update(&key(address), entry.bytes(), MapFlags::ANY).unwrap();
        }
        // One MAC address at a time: most buckets have room for that, some do not.
        let (mut batch, mut count, mut grown) = (Batch::new(1), 0, false);
        loop {
            match batch.read_next(&map) {
                Ok(read) => count += read,
                Err(ended) if ended.code == libc::ENOSPC => {
                    batch = Batch { next: batch.next, ..Batch::new(batch.room() * 2) };
                    grown = true;
                }
                Err(ended) => {
                    break assert_eq!((count + ended.count, ended.code, grown), (50_000, libc::ENOENT, true));
                }
            }
        }
    }
}
