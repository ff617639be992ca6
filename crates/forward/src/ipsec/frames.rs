//! The IP packet of a frame: where it is, and how it is encrypted and decrypted in the frame's slot.

use std::array;
use std::ops::Range;

use bm_frame::Frame;
use bm_ipsec::{BURST, Buffer, Failure};
use bm_wire::ethernet::{HEADER_LEN, TAG_LEN, ethertype};

/// The most tags in front of a packet.
const TAGS_MAX: usize = 2;
/// The longest link header.
const LINK_MAX: usize = HEADER_LEN + TAGS_MAX * TAG_LEN;

/// Where the IP packet of a frame begins; `None` if there is none.
#[inline]
pub(super) fn network(frame: &[u8]) -> Option<usize> {
    let mut at = HEADER_LEN;
    for _ in 0..=TAGS_MAX {
        match u16::from_be_bytes(*frame.get(at - 2..)?.first_chunk()?) {
            ethertype::IPV4 | ethertype::IPV6 => return Some(at),
            ethertype::VLAN | ethertype::SERVICE_VLAN if at < LINK_MAX => at += TAG_LEN,
            _ => return None,
        }
    }
    None
}

/// The packet at `network` of a frame.
#[inline]
pub(super) fn packet(frame: &Frame, network: usize) -> &[u8] {
    frame.data().get(network..).unwrap_or(&[])
}

/// A frame that waits for others, to be encrypted or decrypted together with them.
pub(super) struct WaitingFrame<T> {
    pub frame: Frame,
    /// Where its packet begins.
    pub network: usize,
    /// The port that the router has chosen, or on which it has arrived.
    pub port: usize,
    pub more: T,
}

/// A frame while its whole slot is in use.
#[derive(Clone, Copy)]
struct OpenFrame {
    /// What was in front of the packet, of which the last bytes are the link header: a fixed number of bytes is a few
    /// instructions, another one a call of memcpy.
    front: [u8; LINK_MAX],
    network: usize,
    headroom: usize,
    length: usize,
}

impl OpenFrame {
    /// Makes the frame as large as its slot.
    #[inline]
    fn new(frame: &mut Frame, network: usize) -> Result<Self, Failure> {
        let (headroom, length, room) = (frame.headroom(), frame.len(), frame.tailroom());
        if network > length.min(LINK_MAX) {
            return Err(Failure::Malformed);
        }
        if headroom + network < LINK_MAX {
            return Err(Failure::NoHeadroom);
        }
        frame.prepend(headroom).map_err(|_| Failure::NoHeadroom)?;
        frame.set_len(headroom + length + room).map_err(|_| Failure::NoTailroom)?;
        let front = frame.data()[..headroom + network].last_chunk().ok_or(Failure::NoHeadroom)?;
        Ok(Self { front: *front, network, headroom, length })
    }

    /// The packet with the room around it.
    #[inline]
    fn buffer<'a>(&self, frame: &'a mut Frame) -> Option<Buffer<'a>> {
        Buffer::new(frame.data_mut(), self.headroom + self.network..self.headroom + self.length)
    }

    /// Makes the frame as large as its packet, if that was changed, or else as it was.
    #[inline]
    fn close(
        self,
        frame: &mut Frame,
        range: Range<usize>,
        changed: Result<(), Failure>,
    ) -> Result<(), Failure> {
        let whole = frame.data_mut();
        // Without room for the link header nothing can be sent.
        let front = whole.get_mut(..range.start).and_then(|front| front.last_chunk_mut());
        let outcome = changed.and(if front.is_some() { Ok(()) } else { Err(Failure::NoHeadroom) });
        if let (Ok(()), Some(front)) = (outcome, front) {
            *front = self.front;
            let kind = if whole.get(range.start).is_some_and(|first| first >> 4 == 6) {
                ethertype::IPV6
            } else {
                ethertype::IPV4
            };
            whole[range.start - 2..range.start].copy_from_slice(&kind.to_be_bytes());
            // Both shorten, so they cannot fail.
            let _shorter = frame.set_len(range.end);
            frame.trim_front(range.start - self.network);
        } else {
            let _shorter = frame.set_len(self.headroom + self.length);
            frame.trim_front(self.headroom);
        }
        outcome
    }
}

/// Runs `change` on the packet at `network`, which may grow both ways in the slot. Afterwards the packet is at `network`
/// again, behind the same link header with the EtherType of the packet.
#[inline]
pub(super) fn change(
    frame: &mut Frame,
    network: usize,
    change: impl FnOnce(&mut Buffer<'_>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let opened = OpenFrame::new(frame, network)?;
    let mut buffer = opened.buffer(frame).ok_or(Failure::Malformed)?;
    let changed = change(&mut buffer);
    let range = buffer.range();
    opened.close(frame, range, changed)
}

/// Runs `change` on the packets of up to [`BURST`] frames at once, which writes an outcome for each.
pub(super) fn change_all<T: Copy>(
    waiting: &mut [WaitingFrame<T>],
    outcomes: &mut [Result<(), Failure>],
    change: impl FnOnce(&mut [(Buffer<'_>, T)], &mut [Result<(), Failure>]),
) {
    let count = waiting.len().min(BURST);
    let Some(more) = waiting.first().map(|first| first.more) else { return };
    let mut opened = [Err(Failure::Malformed); BURST];
    for (place, WaitingFrame { frame, network, .. }) in opened.iter_mut().zip(&mut *waiting) {
        *place = OpenFrame::new(frame, *network);
    }
    let mut frames = waiting.iter_mut().zip(&opened);
    // A frame that could not be opened has no bytes here, which `change` refuses.
    let mut packets: [(Buffer<'_>, T); BURST] = array::from_fn(|_| {
        let next = frames.next().map(|(WaitingFrame { frame, more, .. }, opened)| {
            let buffer = opened.as_ref().ok().and_then(|opened| opened.buffer(frame));
            (buffer.unwrap_or_default(), *more)
        });
        next.unwrap_or((Buffer::default(), more))
    });
    change(&mut packets[..count], outcomes);
    let ranges = packets.map(|(buffer, _)| buffer.range());
    for (((WaitingFrame { frame, .. }, opened), range), outcome) in
        waiting.iter_mut().zip(opened).zip(ranges).zip(outcomes)
    {
        if let Ok(opened) = opened {
            *outcome = opened.close(frame, range, *outcome);
        }
    }
}
