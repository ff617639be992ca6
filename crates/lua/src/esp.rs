//! What Lua's `lib.ipsec.esp` calls for each packet: ESP by `bm-ipsec`, as C functions whose addresses Lua gets in a table.
//!
//! ```text
//! lib/ipsec/esp.lua ── struct brickmoon_esp ──► sender, seal · receiver, open ──► PayloadSender, PayloadReceiver
//! ```

use std::ffi::c_void;
use std::hash::{BuildHasher, RandomState};
use std::slice;

use bm_ipsec::{FRONT, Failure, KEY, PayloadReceiver, PayloadSender, Resync};

use crate::hook::guard::uninterrupted;

/// `struct brickmoon_esp` of `lib/ipsec/esp.lua`. Shared with Lua, which only reads it: it is a constant.
#[repr(C)]
pub(crate) struct Functions {
    sender: unsafe extern "C" fn(u32, *const u8) -> *mut PayloadSender,
    receiver: unsafe extern "C" fn(u32, *const u8, u32, u32, u32) -> *mut PayloadReceiver,
    free_sender: unsafe extern "C" fn(*mut PayloadSender),
    free_receiver: unsafe extern "C" fn(*mut PayloadReceiver),
    back: extern "C" fn(u32) -> u32,
    seal: unsafe extern "C" fn(*mut PayloadSender, *mut u8, u32, u8) -> i32,
    open: unsafe extern "C" fn(*mut PayloadReceiver, *mut u8, u32) -> i32,
}

static FUNCTIONS: Functions = Functions { sender, receiver, free_sender, free_receiver, back, seal, open };

/// The address of the functions.
pub(crate) fn address() -> *mut c_void {
    std::ptr::from_ref(&FUNCTIONS).cast_mut().cast()
}

/// What a negative result means: the first is for -1.
pub(crate) fn failures() -> impl Iterator<Item = &'static str> {
    Failure::ALL.iter().map(|failure| failure.meaning())
}

fn code(failure: Failure) -> i32 {
    let at = Failure::ALL.iter().position(|other| *other == failure).unwrap_or_default();
    -1 - at as i32
}

/// From the seed of hash tables, which the system draws at random for each thread.
fn random() -> u64 {
    let of = |number: u64| RandomState::new().hash_one(number);
    of(0) ^ of(1).rotate_left(32)
}

/// # Safety
/// `key` points to [`KEY`] bytes.
unsafe extern "C" fn sender(spi: u32, key: *const u8) -> *mut PayloadSender {
    // SAFETY: the caller's promise.
    let key = unsafe { &*key.cast::<[u8; KEY]>() };
    uninterrupted(|| Box::into_raw(Box::new(PayloadSender::new(spi, key, random()))))
}

/// # Safety
/// `key` points to [`KEY`] bytes.
unsafe extern "C" fn receiver(
    spi: u32,
    key: *const u8,
    window: u32,
    after: u32,
    attempts: u32,
) -> *mut PayloadReceiver {
    // SAFETY: the caller's promise.
    let key = unsafe { &*key.cast::<[u8; KEY]>() };
    let resync = Resync { after, attempts };
    uninterrupted(|| Box::into_raw(Box::new(PayloadReceiver::new(spi, key, window, resync))))
}

/// # Safety
/// `sender` is from [`sender`], and is not used any more.
unsafe extern "C" fn free_sender(sender: *mut PayloadSender) {
    // SAFETY: the caller's promise.
    uninterrupted(|| drop(unsafe { Box::from_raw(sender) }));
}

/// # Safety
/// `receiver` is from [`receiver`], and is not used any more.
unsafe extern "C" fn free_receiver(receiver: *mut PayloadReceiver) {
    // SAFETY: the caller's promise.
    uninterrupted(|| drop(unsafe { Box::from_raw(receiver) }));
}

/// Bytes behind a payload.
extern "C" fn back(length: u32) -> u32 {
    bm_ipsec::back(length as usize) as u32
}

/// Encrypts the payload of `length` bytes that is [`FRONT`] bytes behind `packet`; 0 or a failure.
///
/// # Safety
/// `sender` is from [`sender`], and `packet` points to `FRONT + length + back(length)` bytes. No other thread uses them.
unsafe extern "C" fn seal(sender: *mut PayloadSender, packet: *mut u8, length: u32, next_header: u8) -> i32 {
    let length = length as usize;
    // SAFETY: the caller's promise.
    let (sender, packet) =
        unsafe { (&mut *sender, slice::from_raw_parts_mut(packet, FRONT + length + bm_ipsec::back(length))) };
    uninterrupted(|| sender.seal(packet, length, next_header)).map_or_else(code, |()| 0)
}

/// Decrypts an ESP packet; the length of its payload, [`FRONT`] bytes behind `packet`, times 256 plus its next header, or a
/// failure.
///
/// # Safety
/// `receiver` is from [`receiver`], and `packet` points to `length` bytes. No other thread uses them.
unsafe extern "C" fn open(receiver: *mut PayloadReceiver, packet: *mut u8, length: u32) -> i32 {
    // SAFETY: the caller's promise.
    let (receiver, packet) = unsafe { (&mut *receiver, slice::from_raw_parts_mut(packet, length as usize)) };
    // Packets of Lua have less than 64 KiB.
    uninterrupted(|| receiver.open(packet))
        .map_or_else(code, |(range, next_header)| (range.len() as i32) << 8 | i32::from(next_header))
}
