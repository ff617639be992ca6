//! Why requests are not carried out, and what no request can have.

use std::borrow::Cow;

use crate::layout::{ESP, attribute, errno};

/// Why a request is not carried out: an error number of Linux, and a text for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestError {
    pub errno: i32,
    pub why: Cow<'static, str>,
}

impl RequestError {
    pub(crate) fn new(errno: i32, why: impl Into<Cow<'static, str>>) -> Self {
        Self { errno, why: why.into() }
    }
}

pub(crate) fn only_esp(protocol: u8) -> Result<(), RequestError> {
    match protocol {
        ESP => Ok(()),
        other => Err(RequestError::new(
            errno::NOT_SUPPORTED,
            format!("IP protocol {other}: only ESP is supported"),
        )),
    }
}

/// What would have an effect that workers do not have. Marks say which packets an object is for, but those of packets that
/// workers handle are known (mark.rs).
pub(crate) fn refuse_unsupported(attributes: &[(u16, &[u8])]) -> Result<(), RequestError> {
    for (kind, value) in attributes {
        let what = match *kind {
            attribute::MARK if value.len() < 8 => {
                return Err(RequestError::new(errno::INVALID, "a mark that is cut off"));
            }
            // Packets that workers handle have no mark, and get none.
            attribute::SET_MARK if word(value, 0) & mask_of_set_mark(attributes) == 0 => continue,
            // Workers look up the route of an ESP packet in the main table, whatever its mark.
            attribute::SET_MARK => "marks of ESP packets (output-mark, set-mark)",
            attribute::OFFLOAD => "SAs in network cards (offload)",
            attribute::TFC if word(value, 0) != 0 => "SAs that pad (tfcpad)",
            attribute::CARE_OF => "care-of addresses",
            attribute::SECURITY => "security contexts",
            _ => continue,
        };
        return Err(RequestError::new(errno::NOT_SUPPORTED, format!("{what} are not supported")));
    }
    Ok(())
}

/// The bits that a mark for ESP packets sets.
fn mask_of_set_mark(attributes: &[(u16, &[u8])]) -> u32 {
    let mask = attributes.iter().find(|(kind, _)| *kind == attribute::SET_MARK_MASK);
    mask.map_or(u32::MAX, |(_, value)| word(value, 0))
}

/// The number of the interface that an object belongs to; 0 for none.
pub(crate) fn if_id(attributes: &[(u16, &[u8])]) -> Result<u32, RequestError> {
    // As in Linux, the last one counts.
    let Some((_, value)) = attributes.iter().rev().find(|(kind, _)| *kind == attribute::INTERFACE) else {
        return Ok(0);
    };
    let bytes = value.first_chunk().filter(|_| value.len() == 4);
    bytes
        .map(|bytes| u32::from_ne_bytes(*bytes))
        .ok_or_else(|| RequestError::new(errno::INVALID, "an if_id that has not 4 bytes"))
}

/// A number of an attribute; zero if there is none.
fn word(value: &[u8], at: usize) -> u32 {
    value.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u32::from_ne_bytes(*word))
}
