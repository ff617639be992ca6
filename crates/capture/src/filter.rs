//! A compiled filter, written into the room for it in the object file.

/// Instructions that fit into the room in `../bpf/filter.h`.
const ROOM: usize = 2049;
/// The first instruction of that room: `r0 = ROOM_MARK`.
const MARK: [u8; 8] = [0xb7, 0, 0, 0, 0x69, 0x66, 0x6d, 0x62];
/// A jump to the next instruction; the kernel removes it.
const NOTHING: [u8; 8] = [0x05, 0, 0, 0, 0, 0, 0, 0];
/// The last instruction of a program.
const EXIT: [u8; 8] = [0x95, 0, 0, 0, 0, 0, 0, 0];

/// Which packets are wanted: instructions of BPF that `bm_lua` compiles from tcpdump's language.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    instructions: Vec<u8>,
    bytes: u32,
}

/// The filter has too many instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the filter is too long: it needs {} instructions, and a capture has room for {ROOM}; use prefixes \
     instead of single addresses, or two captures",
    .0
)]
pub struct TooLong(usize);

impl Filter {
    /// A filter that reads `bytes` from the start of a frame at most; with 0, every frame matches.
    ///
    /// # Errors
    /// If it is too long.
    pub fn new(instructions: Vec<u8>, bytes: u32) -> Result<Self, TooLong> {
        let count = instructions.len() / 8;
        if count > ROOM { Err(TooLong(count)) } else { Ok(Self { instructions, bytes }) }
    }

    /// How many bytes from the start of a frame it reads at most.
    pub(crate) fn bytes(&self) -> u32 {
        self.bytes
    }

    /// The object file with this filter in its room: at the end of it, behind jumps that do nothing.
    pub(crate) fn placed(&self, object: &[u8]) -> Vec<u8> {
        let at = object.windows(16).position(|bytes| bytes[..8] == MARK && bytes[8..] == NOTHING);
        let at = at.expect("the object file has room for a filter");
        let mut object = object.to_vec();
        let room = &mut object[at..at + ROOM * 8];
        assert_eq!(room[(ROOM - 1) * 8..], EXIT, "the room has the size that this crate knows");
        let (nothing, code) = room.split_at_mut(ROOM * 8 - self.instructions.len());
        nothing.as_chunks_mut::<8>().0.fill(NOTHING);
        code.copy_from_slice(&self.instructions);
        object
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_at_the_end_of_its_room() {
        let room = [&MARK[..], &[NOTHING; ROOM - 2].concat(), &EXIT].concat();
        let object = [&[1; 24][..], &room, &[2; 16]].concat();
        let code = [[0xb4, 0, 0, 0, 1, 0, 0, 0], EXIT].concat();
        let placed = Filter::new(code.clone(), 0).unwrap().placed(&object);
        assert_eq!(placed.len(), object.len());
        assert_eq!((&placed[..24], &placed[placed.len() - 16..]), (&[1; 24][..], &[2; 16][..]));
        assert_eq!(placed[24..24 + (ROOM - 2) * 8], [NOTHING; ROOM - 2].concat());
        assert_eq!(placed[24 + (ROOM - 2) * 8..24 + ROOM * 8], code);
    }

    #[test]
    fn a_filter_that_is_too_long_is_refused() {
        assert_eq!(Filter::new(vec![0; (ROOM + 1) * 8], 1), Err(TooLong(ROOM + 1)));
    }
}
