//! IPv4 options, as a router in Linux processes them (RFC 791 3.1, RFC 1812 5.2.4, RFC 7126).
//!
//! Record Route and Timestamp get this router's address and the time, a malformed option causes an error, source
//! routes are refused, and unknown options are kept unchanged. A pointer is used only after checking that it is
//! within its option.

use bm_wire::ipv4::option::{
    END, LOOSE_SOURCE_ROUTE, NO_OPERATION, RECORD_ROUTE, ROUTER_ALERT, STRICT_SOURCE_ROUTE, TIMESTAMP,
};
use bm_wire::ipv4::{HEADER_LEN, HEADER_LEN_MAX};

/// Low bits of a Timestamp's flag byte: what is requested.
const TIME_ONLY: u8 = 0;
const TIME_AND_ADDRESS: u8 = 1;
const TIME_IF_ADDRESSED: u8 = 3;

/// The parameters for processing options.
pub(crate) struct Context<'a> {
    /// The address by which the packet's source knows this router.
    pub address: u32,
    /// Milliseconds since midnight, universal time.
    pub midnight_ms: u32,
    /// Whether an address is this machine's.
    pub is_ours: &'a dyn Fn(u32) -> bool,
}

/// The options of a packet, and what was done about them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Processed {
    /// Routers are to look at the packet (RFC 2113).
    pub alert: bool,
    /// Bytes were changed: the header checksum must be computed again.
    pub changed: bool,
    /// Why the packet may not be forwarded.
    pub fault: Option<Fault>,
    record: Option<Slot>,
    timestamp: Option<Slot>,
    source_route: bool,
}

/// Why a packet may not be forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The byte of the header at which a Parameter Problem points.
    At(u8),
    SourceRoute,
}

/// The position of an option and what was written into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    at: usize,
    length: usize,
    address: bool,
    time: bool,
}

/// Processes `options`, the bytes between the fixed header and the payload.
pub(crate) fn process(options: &mut [u8], context: &Context<'_>) -> Processed {
    let mut done = Processed::default();
    done.fault = walk(options, &mut done, context).err();
    if done.fault.is_none() && done.source_route {
        done.fault = Some(Fault::SourceRoute);
    }
    done
}

fn walk(options: &mut [u8], done: &mut Processed, context: &Context<'_>) -> Result<(), Fault> {
    let mut at = 0;
    while let Some(&kind) = options.get(at) {
        match kind {
            END => {
                // What follows the end is meaningless; Linux clears it.
                done.changed |= options[at..].iter().any(|&byte| byte != END);
                options[at..].fill(END);
                break;
            }
            NO_OPERATION => at += 1,
            _ => {
                let length = options.get(at + 1).map_or(0, |&length| usize::from(length));
                let option = options.get_mut(at..at + length).filter(|option| option.len() >= 2);
                let option = option.ok_or(fault(at))?;
                one(option, at, done, context).map_err(|inside| fault(at + inside))?;
                at += length;
            }
        }
    }
    Ok(())
}

fn fault(at: usize) -> Fault {
    Fault::At((HEADER_LEN + at) as u8)
}

/// Processes one complete option; an error contains the offset of the wrong byte.
fn one(option: &mut [u8], at: usize, done: &mut Processed, context: &Context<'_>) -> Result<(), usize> {
    let slot = Slot { at, length: option.len(), address: false, time: false };
    match option[0] {
        LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE => {
            pointer(option, 3, 4)?;
            if std::mem::replace(&mut done.source_route, true) { Err(0) } else { Ok(()) }
        }
        RECORD_ROUTE if done.record.is_some() => Err(0),
        RECORD_ROUTE => {
            let address = record(option, context)?;
            done.changed |= address;
            done.record = Some(Slot { address, ..slot });
            Ok(())
        }
        TIMESTAMP if done.timestamp.is_some() => Err(0),
        TIMESTAMP => {
            let (time, changed) = timestamp(option, context)?;
            done.changed |= changed;
            done.timestamp = Some(Slot { time, ..slot });
            Ok(())
        }
        ROUTER_ALERT => {
            let value = option.get(2..4).ok_or(1usize)?;
            done.alert |= value == [0, 0];
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The pointer byte of an option of at least `length` bytes; it counts from 1 and is at least `least`.
fn pointer(option: &[u8], length: usize, least: u8) -> Result<usize, usize> {
    match option.get(2) {
        Some(&pointer) if option.len() >= length && pointer >= least => Ok(usize::from(pointer)),
        Some(_) if option.len() >= length => Err(2),
        _ => Err(1),
    }
}

/// The free bytes that a pointer points at, `count` of them; on error the pointer is wrong.
fn room(option: &mut [u8], pointer: usize, count: usize) -> Result<&mut [u8], usize> {
    option.get_mut(pointer - 1..pointer - 1 + count).ok_or(2)
}

fn record(option: &mut [u8], context: &Context<'_>) -> Result<bool, usize> {
    let pointer = pointer(option, 3, 4)?;
    if pointer > option.len() {
        return Ok(false);
    }
    room(option, pointer, 4)?.copy_from_slice(&context.address.to_be_bytes());
    option[2] += 4;
    Ok(true)
}

/// Returns whether a time was written, and whether anything changed.
fn timestamp(option: &mut [u8], context: &Context<'_>) -> Result<(bool, bool), usize> {
    let pointer = pointer(option, 4, 5)?;
    let flags = option[3];
    if pointer > option.len() {
        return overflow(option, flags).map(|changed| (false, changed));
    }
    room(option, pointer, 4)?;
    let time = context.midnight_ms.to_be_bytes();
    match flags & 0xf {
        TIME_ONLY => {
            room(option, pointer, 4)?.copy_from_slice(&time);
            option[2] += 4;
            Ok((true, true))
        }
        TIME_AND_ADDRESS => {
            let (address, when) = room(option, pointer, 8)?.split_at_mut(4);
            address.copy_from_slice(&context.address.to_be_bytes());
            when.copy_from_slice(&time);
            option[2] += 8;
            Ok((true, true))
        }
        TIME_IF_ADDRESSED => {
            let (address, when) = room(option, pointer, 8)?.split_at_mut(4);
            let address = address.iter().fold(0, |number, &byte| number << 8 | u32::from(byte));
            let ours = (context.is_ours)(address);
            if ours {
                when.copy_from_slice(&time);
                option[2] += 8;
            }
            Ok((ours, ours))
        }
        _ => Ok((false, false)),
    }
}

/// No room for a time is left: the routers that found none are counted, up to 15.
fn overflow(option: &mut [u8], flags: u8) -> Result<bool, usize> {
    if flags & 0xf == TIME_IF_ADDRESSED {
        return Ok(false);
    }
    if flags >> 4 == 15 {
        return Err(3);
    }
    option[3] = flags + 0x10;
    Ok(true)
}

impl Processed {
    /// Writes `address`, which the packet leaves with, into Record Route.
    pub fn record_again(&self, options: &mut [u8], address: u32) {
        let Some(Slot { at, length, address: true, .. }) = self.record else { return };
        let Some(option) = options.get_mut(at..at + length) else { return };
        let slot = usize::from(option[2]).checked_sub(5).and_then(|slot| option.get_mut(slot..slot + 4));
        if let Some(slot) = slot {
            slot.copy_from_slice(&address.to_be_bytes());
        }
    }

    /// The options of an error about the packet (RFC 1812 4.3.2.6, as in Linux): its Record Route and Timestamp are
    /// returned, with this router's entries as the error's sender. `context` is that of the error. `None` if there is
    /// no room for what was requested.
    pub fn echo(&self, options: &[u8], context: &Context<'_>) -> Option<Echo> {
        let mut echo = Echo::default();
        if let Some(slot) = self.record {
            let option = echo.copy(options, slot)?;
            if slot.address && usize::from(option[2]) <= slot.length {
                record(option, context).ok()?;
            }
        }
        if let Some(slot) = self.timestamp {
            let option = echo.copy(options, slot)?;
            if slot.time && usize::from(option[2]) <= slot.length {
                timestamp(option, context).ok()?;
            }
        }
        echo.length = echo.length.next_multiple_of(4);
        Some(echo)
    }
}

/// Options of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Echo {
    bytes: [u8; HEADER_LEN_MAX - HEADER_LEN],
    length: usize,
}

impl Default for Echo {
    fn default() -> Self {
        Self { bytes: [END; HEADER_LEN_MAX - HEADER_LEN], length: 0 }
    }
}

impl Echo {
    /// Appends the option in `slot`; the rest of the last word stays "end of list".
    fn copy(&mut self, options: &[u8], slot: Slot) -> Option<&mut [u8]> {
        let option = options.get(slot.at..slot.at + slot.length)?;
        let end = self.length + slot.length;
        let place = self.bytes.get_mut(self.length..end)?;
        self.length = end;
        place.copy_from_slice(option);
        Some(place)
    }

    /// The options, a multiple of four bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u32 = 0xc0a8_0101;

    const CONTEXT: Context<'static> =
        Context { address: US, midnight_ms: 0x0102_0304, is_ours: &|address| address == 0x0a00_0001 };

    /// The options after processing, whether they were changed, and whether routers are alerted.
    fn run(options: &[u8]) -> Result<(Vec<u8>, bool, bool), Fault> {
        let mut options = options.to_vec();
        let done = process(&mut options, &CONTEXT);
        done.fault.map_or(Ok((options, done.changed, done.alert)), Err)
    }

    fn changed(options: &[u8]) -> Result<(Vec<u8>, bool, bool), Fault> {
        Ok((options.to_vec(), true, false))
    }

    fn unchanged(options: &[u8]) {
        assert_eq!(run(options), Ok((options.to_vec(), false, false)), "{options:?}");
    }

    #[test]
    fn records_the_route() {
        assert_eq!(
            run(&[7, 11, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            changed(&[7, 11, 8, 192, 168, 1, 1, 0, 0, 0, 0, 0])
        );
        assert_eq!(run(&[1, 7, 7, 4, 0, 0, 0, 0]), changed(&[1, 7, 7, 8, 192, 168, 1, 1]));
        unchanged(&[7, 7, 8, 1, 2, 3, 4, 0]);
    }

    #[test]
    fn reports_wrong_pointers() {
        // Below the first slot, within a slot that is cut, and an option too short for a pointer.
        assert_eq!(run(&[7, 7, 3, 0, 0, 0, 0, 0]), Err(Fault::At(22)));
        assert_eq!(run(&[7, 7, 5, 0, 0, 0, 0, 0]), Err(Fault::At(22)));
        assert_eq!(run(&[7, 2, 0, 0]), Err(Fault::At(21)));
        assert_eq!(run(&[68, 3, 5, 0]), Err(Fault::At(21)));
        assert_eq!(run(&[68, 8, 4, 0, 0, 0, 0, 0]), Err(Fault::At(22)));
        assert_eq!(run(&[68, 8, 6, 0, 0, 0, 0, 0]), Err(Fault::At(22)));
        assert_eq!(run(&[68, 8, 5, 1, 0, 0, 0, 0]), Err(Fault::At(22)));
        // Far past the option counts as full.
        unchanged(&[7, 7, 255, 1, 2, 3, 4, 0]);
    }

    #[test]
    fn reports_wrong_lengths() {
        for options in [&[7, 1, 4, 0][..], &[7, 0, 4, 0], &[7, 9, 4, 0], &[1, 1, 1, 7]] {
            let at = 20 + options.iter().position(|&byte| byte == 7).unwrap() as u8;
            assert_eq!(run(options), Err(Fault::At(at)), "{options:?}");
        }
        assert_eq!(run(&[148, 3, 0, 0]), Err(Fault::At(21)));
    }

    #[test]
    fn duplicate_options_are_refused() {
        assert_eq!(run(&[7, 3, 4, 7, 3, 4, 0, 0]), Err(Fault::At(23)));
        assert_eq!(run(&[68, 4, 5, 0, 68, 4, 5, 0]), Err(Fault::At(24)));
    }

    #[test]
    fn stamps_the_time_in_three_manners() {
        assert_eq!(run(&[68, 8, 5, 0, 0, 0, 0, 0]), changed(&[68, 8, 9, 0, 1, 2, 3, 4]));
        assert_eq!(
            run(&[68, 12, 5, 1, 0, 0, 0, 0, 0, 0, 0, 0]),
            changed(&[68, 12, 13, 1, 192, 168, 1, 1, 1, 2, 3, 4])
        );
        assert_eq!(
            run(&[68, 12, 5, 3, 10, 0, 0, 1, 0, 0, 0, 0]),
            changed(&[68, 12, 13, 3, 10, 0, 0, 1, 1, 2, 3, 4])
        );
        unchanged(&[68, 12, 5, 3, 10, 0, 0, 2, 0, 0, 0, 0]);
        unchanged(&[68, 8, 5, 9, 0, 0, 0, 0]);
    }

    #[test]
    fn a_full_timestamp_counts_who_found_no_room() {
        assert_eq!(run(&[68, 8, 9, 0, 1, 2, 3, 4]), changed(&[68, 8, 9, 0x10, 1, 2, 3, 4]));
        assert_eq!(run(&[68, 8, 9, 0xf0, 1, 2, 3, 4]), Err(Fault::At(23)));
        unchanged(&[68, 8, 9, 0xf3, 1, 2, 3, 4]);
    }

    #[test]
    fn source_routes_are_refused_and_malformed_ones_reported() {
        assert_eq!(run(&[131, 7, 4, 10, 0, 0, 1, 0]), Err(Fault::SourceRoute));
        assert_eq!(run(&[137, 7, 8, 10, 0, 0, 1, 0]), Err(Fault::SourceRoute));
        assert_eq!(run(&[131, 7, 3, 10, 0, 0, 1, 0]), Err(Fault::At(22)));
        assert_eq!(run(&[131, 3, 4, 137, 3, 4, 0, 0]), Err(Fault::At(23)));
    }

    #[test]
    fn alerts_and_what_is_unknown() {
        assert_eq!(run(&[148, 4, 0, 0]), Ok((vec![148, 4, 0, 0], false, true)));
        unchanged(&[148, 4, 0, 1]);
        unchanged(&[130, 11, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0]);
        unchanged(&[25, 4, 0xff, 0xff]);
        assert_eq!(run(&[1, 0, 9, 9]), changed(&[1, 0, 0, 0]));
        unchanged(&[]);
    }

    #[test]
    fn errors_carry_routes_and_times_back() {
        let echo = |options: &[u8]| {
            let mut options = options.to_vec();
            let done = process(&mut options, &CONTEXT);
            done.echo(&options, &Context { address: 0x0909_0909, ..CONTEXT })
                .map(|echo| echo.bytes().to_vec())
        };
        // Recorded on the way in, and again on the way out if there is room.
        assert_eq!(
            echo(&[7, 11, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            Some(vec![7, 11, 12, 192, 168, 1, 1, 9, 9, 9, 9, 0])
        );
        assert_eq!(echo(&[7, 7, 4, 0, 0, 0, 0, 0]), Some(vec![7, 7, 8, 192, 168, 1, 1, 0]));
        assert_eq!(
            echo(&[7, 7, 8, 1, 2, 3, 4, 1, 7, 7, 8, 1, 2, 3, 4, 0]),
            Some(vec![7, 7, 8, 1, 2, 3, 4, 0])
        );
        assert_eq!(echo(&[68, 8, 5, 0, 0, 0, 0, 0]), Some(vec![68, 8, 9, 0, 1, 2, 3, 4]));
        assert_eq!(
            echo(&[68, 12, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            Some(vec![68, 12, 13, 0, 1, 2, 3, 4, 1, 2, 3, 4])
        );
        assert_eq!(echo(&[148, 4, 0, 0]), Some(vec![]));
    }

    #[test]
    fn a_route_is_recorded_as_it_leaves() {
        let mut options = [1, 7, 7, 4, 0, 0, 0, 0];
        let done = process(&mut options, &CONTEXT);
        done.record_again(&mut options, 0x0909_0909);
        assert_eq!(options, [1, 7, 7, 8, 9, 9, 9, 9]);
    }

    proptest::proptest! {
        #[test]
        fn survives_any_bytes(options in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..=40)) {
            let mut after = options.clone();
            let done = process(&mut after, &CONTEXT);
            // A slot may have held our address already.
            assert!(done.changed || done.fault.is_some() || after == options);
            if let Some(echo) = done.echo(&after, &CONTEXT) {
                assert!(echo.bytes().len().is_multiple_of(4));
            }
            done.record_again(&mut after, 7);
            assert_eq!(after.len(), options.len());
        }
    }
}
