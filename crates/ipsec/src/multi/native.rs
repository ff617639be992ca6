//! With the library, through `c/shim.c`.
//!
//! A call of the shim returns when all of its packets are done, so an engine keeps no pointer to a packet or a key. It
//! may keep copies of what it has worked on, so its memory is wiped.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::slice;

use zeroize::Zeroize;

use super::{BURST, Open, Seal};
use crate::failure::Failure;
use crate::library::Manager;
use crate::suite::{AES_BLOCK, ESP_HEADER};
use crate::wiped::Wiped;

/// What the library's memory is aligned to.
const ALIGNMENT: usize = 64;
/// `BM_GCM_ROOM`.
const GCM_ROOM: usize = 2048;
/// In front of what is encrypted: SPI, number and IV.
const FRONT: usize = ESP_HEADER + AES_BLOCK;
const ICV_MAX: usize = 16;

/// `struct bm_cbc`. Shared with the shim during a call only, which gets a pointer from a reference.
#[repr(C, align(64))]
struct CbcKeys {
    encrypt: [u8; 240],
    decrypt: [u8; 240],
    inner: [u8; 64],
    outer: [u8; 64],
    key_len: u64,
    icv_len: u64,
}

/// `struct bm_packet`. Shared with the shim during a call only: it is read through a pointer to an array of them.
#[repr(C)]
#[derive(Clone, Copy)]
struct Packet {
    esp: *mut u8,
    length: usize,
    hashed: usize,
    icv: *mut u8,
}

const NO_PACKET: Packet = Packet { esp: ptr::null_mut(), length: 0, hashed: 0, icv: ptr::null_mut() };

/// Keys of AES-GCM in the library's own form, with the functions of its manager. Shared with the shim during a call
/// only, which gets a pointer from a reference; nothing in Rust reads them.
#[repr(C, align(64))]
struct GcmKeys([u8; GCM_ROOM]);

// SAFETY: as in `c/shim.c`; the size is a constant.
unsafe extern "C" {
    safe fn bm_mb_size() -> usize;
    fn bm_mb_init(manager: *mut c_void, kind: c_int) -> c_int;
    fn bm_mb_cbc_keys(
        manager: *mut c_void,
        keys: *mut CbcKeys,
        encryption: *const u8,
        integrity: *const u8,
        integrity_len: usize,
    );
    fn bm_mb_cbc(manager: *mut c_void, keys: *const CbcKeys, packets: *const Packet, count: u32, step: c_int);
    fn bm_mb_gcm_key(manager: *mut c_void, keys: *mut GcmKeys, key: *const u8, key_len: usize);
    fn bm_mb_gcm(
        keys: *const GcmKeys,
        step: c_int,
        bytes: *mut u8,
        length: usize,
        nonce: *const u8,
        aad: *const u8,
        aad_len: usize,
        icv: *mut u8,
    );
}

/// `enum bm_step`.
#[derive(Clone, Copy)]
enum Step {
    Seal,
    Hash,
    Open,
}

/// A manager of the library, which one thread uses at a time.
pub(crate) struct Engine {
    memory: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the memory belongs to the engine alone, and the library keeps nothing that belongs to a thread.
unsafe impl Send for Engine {}

impl Engine {
    /// None if the CPU lacks the instructions, or the library is of another version than the one that was compiled for.
    pub fn new(kind: Manager) -> Option<Self> {
        let layout = Layout::from_size_align(bm_mb_size(), ALIGNMENT).ok()?;
        // SAFETY: the size of a manager is not 0.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let engine = Self { memory, layout };
        // SAFETY: the memory is as large and aligned as the library says, and `kind` has the numbers of `bm_manager`.
        let refused = unsafe { bm_mb_init(engine.manager(), kind as c_int) };
        (refused == 0).then_some(engine)
    }

    fn manager(&self) -> *mut c_void {
        self.memory.as_ptr().cast()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated with this layout and zeros, and no call of the library is going on.
        unsafe { slice::from_raw_parts_mut(self.memory.as_ptr(), self.layout.size()) }.zeroize();
        // SAFETY: the same, and nobody uses it any more.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}

/// A key of AES-GCM.
pub(crate) struct Gcm(Wiped<GcmKeys>);

impl Gcm {
    /// From a key of 16 or 32 bytes.
    pub fn new(engine: &mut Engine, key: &[u8]) -> Option<Self> {
        let mut keys = Wiped::new(GcmKeys([0; GCM_ROOM]));
        // SAFETY: the engine is a manager, the keys have the room and alignment that the shim checks, and the key has a
        // length that it knows.
        unsafe { bm_mb_gcm_key(engine.manager(), &raw mut *keys, key.as_ptr(), key.len()) };
        Some(Self(keys))
    }

    /// Encrypts in place, and writes the ICV.
    #[inline]
    pub fn seal(&self, bytes: &mut [u8], nonce: &[u8; 12], aad: &[u8], icv: &mut [u8; ICV_MAX]) {
        self.run(Step::Seal, bytes, nonce, aad, icv);
    }

    /// Decrypts in place; whether the ICV is right. If it is not, nobody may read the bytes.
    #[inline]
    pub fn open(&self, bytes: &mut [u8], nonce: &[u8; 12], aad: &[u8], icv: [u8; ICV_MAX]) -> bool {
        let mut right = [0; ICV_MAX];
        self.run(Step::Open, bytes, nonce, aad, &mut right);
        is_same(right, icv)
    }

    #[inline]
    fn run(&self, step: Step, bytes: &mut [u8], nonce: &[u8; 12], aad: &[u8], icv: &mut [u8; ICV_MAX]) {
        let (keys, step, length) = (&raw const *self.0, step as c_int, bytes.len());
        let (bytes, nonce, icv) = (bytes.as_mut_ptr(), nonce.as_ptr(), icv.as_mut_ptr());
        // SAFETY: `new` has prepared the keys, and everything else is in the slices.
        unsafe { bm_mb_gcm(keys, step, bytes, length, nonce, aad.as_ptr(), aad.len(), icv) };
    }
}

/// In constant time: two numbers are compared, without a branch on any part of them.
#[inline]
fn is_same(one: [u8; ICV_MAX], other: [u8; ICV_MAX]) -> bool {
    u128::from_ne_bytes(one) ^ u128::from_ne_bytes(other) == 0
}

/// The keys of an SA with AES-CBC and HMAC.
pub(crate) struct MultiCbc(Wiped<CbcKeys>);

impl MultiCbc {
    /// From keys whose lengths have been checked.
    pub fn new(engine: &mut Engine, encryption: &[u8], integrity: &[u8], icv_len: usize) -> Option<Self> {
        let empty = CbcKeys {
            encrypt: [0; 240],
            decrypt: [0; 240],
            inner: [0; 64],
            outer: [0; 64],
            key_len: encryption.len() as u64,
            icv_len: icv_len as u64,
        };
        let mut keys = Wiped::new(empty);
        let (encryption, integrity, length) = (encryption.as_ptr(), integrity.as_ptr(), integrity.len());
        // SAFETY: the engine is a manager, the keys are as `struct bm_cbc`, and the lengths those of the slices.
        unsafe { bm_mb_cbc_keys(engine.manager(), &raw mut *keys, encryption, integrity, length) };
        Some(Self(keys))
    }

    /// Encrypts and hashes up to [`BURST`] packets.
    pub fn seal(&self, engine: &mut Engine, burst: &mut [Option<Seal<'_>>]) {
        let (mut packets, mut count) = ([NO_PACKET; BURST], 0);
        for (place, Seal { packet, iv, esn_high }) in packets.iter_mut().zip(burst.iter_mut().flatten()) {
            packet[ESP_HEADER..ESP_HEADER + 8].copy_from_slice(&iv.to_be_bytes());
            packet[ESP_HEADER + 8..FRONT].fill(0);
            *place = self.describe(packet, *esn_high);
            count += 1;
        }
        self.run(engine, Step::Seal, &packets[..count]);
    }

    /// Hashes up to [`BURST`] packets, and decrypts those whose ICV is right.
    pub fn open(&self, engine: &mut Engine, burst: &mut [Option<Open<'_>>]) {
        let (mut packets, mut count) = ([NO_PACKET; BURST], 0);
        let mut icvs = [[[0; ICV_MAX]; 2]; BURST];
        let places = packets.iter_mut().zip(&mut icvs);
        for ((place, [expected, found]), Open { packet, esn_high, .. }) in
            places.zip(burst.iter_mut().flatten())
        {
            let icv_len = self.0.icv_len as usize;
            expected[..icv_len].copy_from_slice(&packet[packet.len() - icv_len..]);
            *place = Packet { icv: found.as_mut_ptr(), ..self.describe(packet, *esn_high) };
            count += 1;
        }
        self.run(engine, Step::Hash, &packets[..count]);
        let (mut right, mut rights) = ([NO_PACKET; BURST], 0);
        for ((place, [expected, found]), Open { outcome, .. }) in
            packets.iter().zip(icvs).zip(burst.iter_mut().flatten())
        {
            if is_same(expected, found) {
                right[rights] = *place;
                rights += 1;
            } else {
                **outcome = Err(Failure::Integrity);
            }
        }
        self.run(engine, Step::Open, &right[..rights]);
    }

    /// One step for packets that [`Self::describe`] has described, and whose slices nobody else uses meanwhile.
    #[inline]
    fn run(&self, engine: &mut Engine, step: Step, packets: &[Packet]) {
        let (keys, count) = (&raw const *self.0, packets.len() as u32);
        // SAFETY: the engine is a manager, `new` has prepared the keys, each packet is within its own slice, and its ICV
        // is written behind it or to an array with room for the longest.
        unsafe { bm_mb_cbc(engine.manager(), keys, packets.as_ptr(), count, step as c_int) };
    }

    /// The packet for the shim, with the high half of an extended number in place of its ICV: it is hashed as if it
    /// followed the packet (RFC 4303 2.2.1).
    ///
    /// # Panics
    /// If there is no room for what a packet has, or part of a block: the callers have checked that.
    #[inline]
    fn describe(&self, packet: &mut [u8], esn_high: Option<u32>) -> Packet {
        let length = packet.len().checked_sub(self.0.icv_len as usize).expect("there is room for the ICV");
        assert!(length >= FRONT && (length - FRONT).is_multiple_of(AES_BLOCK), "what is encrypted is blocks");
        let mut hashed = length;
        if let Some(high) = esn_high {
            packet[length..length + 4].copy_from_slice(&high.to_be_bytes());
            hashed += 4;
        }
        let esp = packet.as_mut_ptr();
        Packet { esp, length, hashed, icv: esp.wrapping_add(length) }
    }
}

const _: () = assert!(BURST == 32, "BM_BURST of shim.h is the same");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn icvs_that_differ_in_a_bit_are_not_the_same() {
        let icv: [u8; ICV_MAX] = std::array::from_fn(|at| at as u8);
        assert!(is_same(icv, icv));
        for bit in 0..8 * ICV_MAX {
            let mut other = icv;
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_same(icv, other), "{bit}");
        }
    }
}
