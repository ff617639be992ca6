//! Cutting an IPv4 packet into fragments (RFC 791 3.2, 6864), as Linux cuts it.
//!
//! Each fragment but the last contains as many bytes as the MTU and the multiple of eight allow. Options without the
//! copy bit are only in the first; in the others they are replaced by "no operation", so that all headers have the
//! same length, as in Linux.

use bm_wire::checksum;
use bm_wire::ipv4::option::{NO_OPERATION, Options};
use bm_wire::ipv4::{HEADER_LEN, HEADER_LEN_MAX, Ipv4};

const MORE_FRAGMENTS: u16 = 0x2000;
const OFFSET: u16 = 0x1fff;

/// The fragments of a packet whose hop is spent, in order: write each with [`Plan::write`].
pub(crate) struct Plan<'a> {
    packet: &'a [u8],
    header_len: usize,
    payload_len: usize,
    /// Payload bytes that fit after the header: as many as the last fragment may contain.
    room: usize,
    /// Payload bytes of each fragment but the last.
    step: usize,
    /// Offset and flags as they came: a fragment may be cut again.
    came_with: u16,
}

impl<'a> Plan<'a> {
    /// How to fragment `ip` for `mtu`; `None` if not even eight bytes fit after the header, or nothing needs to be
    /// fragmented.
    pub fn new(ip: &Ipv4<&'a [u8]>, mtu: usize) -> Option<Self> {
        let packet = ip.into_inner().get(..usize::from(ip.total_len()))?;
        let header_len = ip.header_len();
        let payload_len = packet.len() - header_len;
        let room = mtu.checked_sub(header_len)?;
        let step = room & !7;
        let came_with = u16::from_be_bytes([packet[6], packet[7]]);
        (step > 0 && payload_len > room).then_some(Self {
            packet,
            header_len,
            payload_len,
            room,
            step,
            came_with,
        })
    }

    /// How many fragments there are.
    pub fn count(&self) -> usize {
        1 + (self.payload_len - self.room).div_ceil(self.step)
    }

    /// Writes fragment `index` to the start of `buffer`; returns its length. `None` if it does not fit.
    pub fn write(&self, index: usize, buffer: &mut [u8]) -> Option<usize> {
        let start = index * self.step;
        let is_last = self.payload_len.checked_sub(start)? <= self.room;
        let end = if is_last { self.payload_len } else { start + self.step };
        let total_len = self.header_len + end - start;
        let out = buffer.get_mut(..total_len)?;
        let (header, payload) = out.split_at_mut(self.header_len);
        header.copy_from_slice(&self.packet[..self.header_len]);
        payload.copy_from_slice(&self.packet[self.header_len + start..self.header_len + end]);
        // Those of a later fragment were removed when it was made.
        if index > 0 && self.came_with & OFFSET == 0 {
            blank_uncopied(&mut header[HEADER_LEN..]);
        }
        let more = if end < self.payload_len { MORE_FRAGMENTS } else { self.came_with & MORE_FRAGMENTS };
        let offset = (self.came_with & OFFSET) + (start / 8) as u16;
        // A new header has no reserved flag; DF was not set, or nothing would be cut.
        let word = more | offset & OFFSET;
        header[2..4].copy_from_slice(&(total_len as u16).to_be_bytes());
        header[6..8].copy_from_slice(&word.to_be_bytes());
        let sum = checksum::ipv4_header(header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        Some(total_len)
    }
}

/// Puts "no operation" over the options that only the first fragment carries.
fn blank_uncopied(options: &mut [u8]) {
    let mut keep = [0; HEADER_LEN_MAX - HEADER_LEN];
    let before = &mut keep[..options.len()];
    before.copy_from_slice(options);
    for option in Options::new(before).flatten().filter(|option| !option.is_copied()) {
        options[option.offset..option.offset + option.bytes.len()].fill(NO_OPERATION);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_wire::ipv4::Ipv4Header;

    fn packet(options: &[u8], payload: usize, header: Ipv4Header) -> Vec<u8> {
        let total_len = (20 + options.len() + payload) as u16;
        let mut bytes = vec![0; usize::from(total_len)];
        let at = Ipv4Header { total_len, ttl: 9, protocol: 17, ..header }
            .emit_with_options(options, &mut bytes)
            .unwrap();
        bytes[at..].iter_mut().enumerate().for_each(|(index, byte)| *byte = index as u8);
        bytes
    }

    fn cut(packet: &[u8], mtu: usize) -> Option<Vec<Vec<u8>>> {
        let plan = Plan::new(&Ipv4::parse(packet).unwrap(), mtu)?;
        let write = |index| {
            let mut buffer = [0xee; 2000];
            let length = plan.write(index, &mut buffer).unwrap();
            buffer[..length].to_vec()
        };
        Some((0..plan.count()).map(write).collect())
    }

    /// Offset, MF and payload of each fragment, after its header was checked.
    fn pieces(fragments: &[Vec<u8>]) -> Vec<(u16, bool, Vec<u8>)> {
        let piece = |bytes: &Vec<u8>| {
            let ip = Ipv4::parse(&bytes[..]).unwrap();
            assert!(ip.checksum_ok() && usize::from(ip.total_len()) == bytes.len());
            assert_eq!((ip.id(), ip.ttl(), ip.protocol()), (0x1234, 9, 17));
            (ip.fragment_offset(), ip.more_fragments(), ip.payload().to_vec())
        };
        fragments.iter().map(piece).collect()
    }

    #[test]
    fn pieces_join_to_the_same_bytes() {
        let whole = packet(&[], 1400, Ipv4Header { id: 0x1234, ..Default::default() });
        let fragments = cut(&whole, 576).unwrap();
        let pieces = pieces(&fragments);
        assert_eq!(
            pieces.iter().map(|piece| (piece.0, piece.1)).collect::<Vec<_>>(),
            [(0, true), (552, true), (1104, false)]
        );
        assert_eq!(pieces.into_iter().flat_map(|piece| piece.2).collect::<Vec<_>>(), whole[20..]);
        assert!(fragments.iter().all(|fragment| fragment.len() <= 576));
    }

    #[test]
    fn the_last_piece_need_not_be_a_multiple_of_eight() {
        let whole = packet(&[], 196, Ipv4Header { id: 0x1234, ..Default::default() });
        let pieces = pieces(&cut(&whole, 120).unwrap());
        assert_eq!(pieces.iter().map(|piece| piece.2.len()).collect::<Vec<_>>(), [96, 100]);
    }

    #[test]
    fn a_fragment_is_cut_again() {
        let header =
            Ipv4Header { id: 0x1234, more_fragments: true, fragment_offset: 1480, ..Default::default() };
        let pieces = pieces(&cut(&packet(&[], 64, header), 20 + 47).unwrap());
        assert_eq!(
            pieces.iter().map(|piece| (piece.0, piece.1, piece.2.len())).collect::<Vec<_>>(),
            [(1480, true, 40), (1520, true, 24)]
        );
        let last = Ipv4Header { id: 0x1234, fragment_offset: 1480, ..Default::default() };
        let fragments = cut(&packet(&[], 64, last), 60).unwrap();
        assert_eq!(self::pieces(&fragments).iter().map(|piece| piece.1).collect::<Vec<_>>(), [true, false]);
    }

    #[test]
    fn options_follow_the_copy_bit() {
        // Record Route (not copied), Router Alert (copied).
        let options = [7, 7, 4, 0, 0, 0, 0, 148, 4, 0, 0, 0];
        let fragments =
            cut(&packet(&options, 64, Ipv4Header { id: 0x1234, ..Default::default() }), 32 + 40).unwrap();
        assert_eq!(fragments[0][20..32], options);
        assert_eq!(fragments[1][20..32], [1, 1, 1, 1, 1, 1, 1, 148, 4, 0, 0, 0]);
        pieces(&fragments);
    }

    #[test]
    fn packets_that_need_not_or_cannot_be_fragmented_are_left() {
        let whole = packet(&[], 100, Ipv4Header::default());
        assert!(cut(&whole, 120).is_none());
        assert!(cut(&whole, 27).is_none() && cut(&whole, 0).is_none());
        assert_eq!(cut(&whole, 28).unwrap().len(), 13);
        assert_eq!(cut(&whole, 119).unwrap().len(), 2);
    }
}
