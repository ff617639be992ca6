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
///
/// Lua has the addresses of senders and receivers only to pass them back, never two at a time of the same one, and not
/// after it has freed it. A key are [`KEY`] bytes, which do not change during the call.
#[repr(C)]
pub(crate) struct Functions {
    sender: extern "C" fn(u32, &[u8; KEY]) -> Box<PayloadSender>,
    receiver: extern "C" fn(u32, &[u8; KEY], u32, u32, u32) -> Box<PayloadReceiver>,
    free_sender: extern "C" fn(Box<PayloadSender>),
    free_receiver: extern "C" fn(Box<PayloadReceiver>),
    back: extern "C" fn(u32) -> u32,
    seal: unsafe extern "C" fn(&mut PayloadSender, *mut u8, u32, u8) -> i32,
    open: unsafe extern "C" fn(&mut PayloadReceiver, *mut u8, u32) -> i32,
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
    let [low, high] = [0, 1].map(|number: u64| RandomState::new().hash_one(number));
    low ^ high.rotate_left(32)
}

extern "C" fn sender(spi: u32, key: &[u8; KEY]) -> Box<PayloadSender> {
    uninterrupted(|| Box::new(PayloadSender::new(spi, key, random())))
}

extern "C" fn receiver(
    spi: u32,
    key: &[u8; KEY],
    window: u32,
    after: u32,
    attempts: u32,
) -> Box<PayloadReceiver> {
    let resync = Resync { after, attempts };
    uninterrupted(|| Box::new(PayloadReceiver::new(spi, key, window, resync)))
}

extern "C" fn free_sender(sender: Box<PayloadSender>) {
    uninterrupted(|| drop(sender));
}

extern "C" fn free_receiver(receiver: Box<PayloadReceiver>) {
    uninterrupted(|| drop(receiver));
}

/// Bytes behind a payload.
extern "C" fn back(length: u32) -> u32 {
    bm_ipsec::back(length as usize) as u32
}

/// Encrypts the payload of `length` bytes that is [`FRONT`] bytes behind `packet`; 0 or a failure.
///
/// # Safety
/// `packet` points to `FRONT + length + back(length)` bytes, which nobody else uses.
unsafe extern "C" fn seal(sender: &mut PayloadSender, packet: *mut u8, length: u32, next_header: u8) -> i32 {
    let length = length as usize;
    // SAFETY: the caller's promise.
    let packet = unsafe { slice::from_raw_parts_mut(packet, FRONT + length + bm_ipsec::back(length)) };
    uninterrupted(|| sender.seal(packet, length, next_header)).map_or_else(code, |()| 0)
}

/// Decrypts an ESP packet; the length of its payload, [`FRONT`] bytes behind `packet`, times 256 plus its next header, or a
/// failure.
///
/// # Safety
/// `packet` points to `length` bytes, which nobody else uses.
unsafe extern "C" fn open(receiver: &mut PayloadReceiver, packet: *mut u8, length: u32) -> i32 {
    // SAFETY: the caller's promise.
    let packet = unsafe { slice::from_raw_parts_mut(packet, length as usize) };
    // Packets of Lua have less than 64 KiB.
    uninterrupted(|| receiver.open(packet))
        .map_or_else(code, |(range, next_header)| (range.len() as i32) << 8 | i32::from(next_header))
}
