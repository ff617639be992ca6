//! IPv4 options, as a router in Linux processes them (RFC 791 3.1, RFC 1812 5.2.4, RFC 7126).
//!
//! Record Route and Timestamp get our address and the time, a broken option is told to the source, source
//! routes are refused, what is not known is carried on unchanged. A pointer is believed only after it is
//! shown to lie within its option.

use bm_wire::ipv4::HEADER_LEN;
use bm_wire::ipv4::option::{
    END, LOOSE_SOURCE_ROUTE, NO_OPERATION, RECORD_ROUTE, ROUTER_ALERT, STRICT_SOURCE_ROUTE, TIMESTAMP,
};

/// Low bits of a Timestamp's flag byte: what is wanted.
const TIME_ONLY: u8 = 0;
const TIME_AND_ADDRESS: u8 = 1;
const TIME_IF_ADDRESSED: u8 = 3;

/// What options are processed with.
pub(crate) struct Context<'a> {
    /// Our address, as it is recorded.
    pub address: u32,
    /// Milliseconds since midnight, universal time.
    pub midnight_ms: u32,
    /// Whether an address is this machine's.
    pub is_ours: &'a dyn Fn(u32) -> bool,
}

/// What the options of a packet asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Processed {
    /// Routers are to look at the packet (RFC 2113).
    pub alert: bool,
    /// Bytes were changed: the header checksum must be made anew.
    pub changed: bool,
}

/// Why a packet may not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The byte of the header at which a Parameter Problem points.
    At(u8),
    /// A source route.
    SourceRoute,
}

/// Which options there were: each of these may be in a header once.
#[derive(Default)]
struct Seen {
    record: bool,
    timestamp: bool,
    route: bool,
}

/// Processes `options`, the bytes between the fixed header and the payload.
pub(crate) fn process(options: &mut [u8], context: &Context<'_>) -> Result<Processed, Fault> {
    let (mut at, mut seen, mut done) = (0, Seen::default(), Processed::default());
    while let Some(&kind) = options.get(at) {
        match kind {
            END => {
                // What follows the end is nothing; Linux makes sure that it says nothing.
                done.changed |= options[at..].iter().any(|&byte| byte != END);
                options[at..].fill(END);
                break;
            }
            NO_OPERATION => at += 1,
            _ => {
                let length = options.get(at + 1).map_or(0, |&length| usize::from(length));
                let option = options.get_mut(at..at + length).filter(|option| option.len() >= 2);
                let option = option.ok_or(fault(at))?;
                one(option, &mut seen, &mut done, context).map_err(|inside| fault(at + inside))?;
                at += length;
            }
        }
    }
    if seen.route { Err(Fault::SourceRoute) } else { Ok(done) }
}

fn fault(at: usize) -> Fault {
    Fault::At((HEADER_LEN + at) as u8)
}

/// Processes one whole option; on error says which of its bytes is wrong.
fn one(option: &mut [u8], seen: &mut Seen, done: &mut Processed, context: &Context<'_>) -> Result<(), usize> {
    match option[0] {
        LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE => {
            pointer(option, 3, 4)?;
            once(&mut seen.route)
        }
        RECORD_ROUTE => {
            once(&mut seen.record)?;
            done.changed |= record(option, context)?;
            Ok(())
        }
        TIMESTAMP => {
            once(&mut seen.timestamp)?;
            done.changed |= timestamp(option, context)?;
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

fn once(seen: &mut bool) -> Result<(), usize> {
    if std::mem::replace(seen, true) { Err(0) } else { Ok(()) }
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

fn timestamp(option: &mut [u8], context: &Context<'_>) -> Result<bool, usize> {
    let pointer = pointer(option, 4, 5)?;
    let flags = option[3];
    if pointer > option.len() {
        return overflow(option, flags);
    }
    room(option, pointer, 4)?;
    let time = context.midnight_ms.to_be_bytes();
    match flags & 0xf {
        TIME_ONLY => {
            room(option, pointer, 4)?.copy_from_slice(&time);
            option[2] += 4;
        }
        TIME_AND_ADDRESS => {
            let (address, when) = room(option, pointer, 8)?.split_at_mut(4);
            address.copy_from_slice(&context.address.to_be_bytes());
            when.copy_from_slice(&time);
            option[2] += 8;
        }
        TIME_IF_ADDRESSED => {
            let (address, when) = room(option, pointer, 8)?.split_at_mut(4);
            let address = address.iter().fold(0, |number, &byte| number << 8 | u32::from(byte));
            if !(context.is_ours)(address) {
                return Ok(false);
            }
            when.copy_from_slice(&time);
            option[2] += 8;
        }
        _ => return Ok(false),
    }
    Ok(true)
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

#[cfg(test)]
mod tests {
    use super::*;

    const US: u32 = 0xc0a8_0101;

    fn run(options: &[u8]) -> Result<(Vec<u8>, Processed), Fault> {
        let mut options = options.to_vec();
        let context =
            Context { address: US, midnight_ms: 0x0102_0304, is_ours: &|address| address == 0x0a00_0001 };
        process(&mut options, &context).map(|done| (options, done))
    }

    fn changed(options: &[u8]) -> Result<(Vec<u8>, Processed), Fault> {
        Ok((options.to_vec(), Processed { alert: false, changed: true }))
    }

    fn unchanged(options: &[u8]) {
        assert_eq!(run(options), Ok((options.to_vec(), Processed::default())), "{options:?}");
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
    fn pointers_that_lie_are_told() {
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
    fn lengths_that_lie_are_told() {
        for options in [&[7, 1, 4, 0][..], &[7, 0, 4, 0], &[7, 9, 4, 0], &[1, 1, 1, 7]] {
            let at = 20 + options.iter().position(|&byte| byte == 7).unwrap() as u8;
            assert_eq!(run(options), Err(Fault::At(at)), "{options:?}");
        }
        assert_eq!(run(&[148, 3, 0, 0]), Err(Fault::At(21)));
    }

    #[test]
    fn twice_is_once_too_often() {
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
    fn source_routes_are_refused_and_broken_ones_told() {
        assert_eq!(run(&[131, 7, 4, 10, 0, 0, 1, 0]), Err(Fault::SourceRoute));
        assert_eq!(run(&[137, 7, 8, 10, 0, 0, 1, 0]), Err(Fault::SourceRoute));
        assert_eq!(run(&[131, 7, 3, 10, 0, 0, 1, 0]), Err(Fault::At(22)));
        assert_eq!(run(&[131, 3, 4, 137, 3, 4, 0, 0]), Err(Fault::At(23)));
    }

    #[test]
    fn alerts_and_what_is_unknown() {
        let alert = Processed { alert: true, changed: false };
        assert_eq!(run(&[148, 4, 0, 0]), Ok((vec![148, 4, 0, 0], alert)));
        unchanged(&[148, 4, 0, 1]);
        unchanged(&[130, 11, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0]);
        unchanged(&[25, 4, 0xff, 0xff]);
        assert_eq!(run(&[1, 0, 9, 9]), changed(&[1, 0, 0, 0]));
        unchanged(&[]);
    }

    proptest::proptest! {
        #[test]
        fn survives_any_bytes(options in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..=40)) {
            if let Ok((after, done)) = run(&options) {
                assert_eq!(after.len(), options.len());
                assert_eq!(done.changed, after != options);
            }
        }
    }
}
