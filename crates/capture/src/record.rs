//! What the programs write: `struct record` of `../bpf/capture.bpf.c`, then bytes of the frame.

/// Bytes of a record.
pub const RECORD: usize = 48;

/// What happened, in the order of `enum kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Arrived,
    Decided,
    Sent,
    SentByLinux,
    WorkerSends,
    WorkerSent,
}

const KINDS: [Kind; 6] =
    [Kind::Arrived, Kind::Decided, Kind::Sent, Kind::SentByLinux, Kind::WorkerSends, Kind::WorkerSent];

/// One record, with the bytes of the frame that came with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Of the clock that starts with the machine.
    pub time_ns: u64,
    /// Equal in the two records of a packet.
    pub id: u64,
    pub ifindex: u32,
    /// Of the whole frame, with its tag.
    pub length: u32,
    /// The interface that it is redirected to; 0 for none.
    pub to: u32,
    pub verdict: i32,
    pub queue: u32,
    pub kind: Kind,
    /// Which counter of the program moved, from 1; 0 if none did.
    pub counter: u16,
    /// With its tag, also where Linux keeps that elsewhere.
    pub frame: Vec<u8>,
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

impl Record {
    /// `None` if the bytes are no record.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let captured = u32_at(bytes, 24)? as usize;
        let mut frame = bytes.get(RECORD..RECORD + captured)?.to_vec();
        let mut length = u32_at(bytes, 20)?;
        let tag = bytes.get(44..RECORD)?;
        if tag[..2] != [0, 0] {
            length += 4;
            if frame.len() >= 12 {
                frame.splice(12..12, tag.iter().copied());
            }
        }
        Some(Self {
            time_ns: u64_at(bytes, 0)?,
            id: u64_at(bytes, 8)?,
            ifindex: u32_at(bytes, 16)?,
            length,
            to: u32_at(bytes, 28)?,
            verdict: u32_at(bytes, 32)?.cast_signed(),
            queue: u32_at(bytes, 36)?,
            kind: *KINDS.get(usize::from(u16_at(bytes, 40)?))?,
            counter: u16_at(bytes, 42)?,
            frame,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A record as the programs write it.
    pub fn bytes(record: &Record, tag: [u8; 4]) -> Vec<u8> {
        let words = [record.ifindex, record.length, record.frame.len() as u32, record.to];
        let mut all = [record.time_ns.to_ne_bytes(), record.id.to_ne_bytes()].concat();
        all.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        all.extend([record.verdict.to_ne_bytes(), record.queue.to_ne_bytes()].concat());
        let kind = KINDS.iter().position(|kind| *kind == record.kind).unwrap() as u16;
        all.extend([kind.to_ne_bytes(), record.counter.to_ne_bytes()].concat());
        all.extend(tag);
        [all, record.frame.clone()].concat()
    }

    pub fn record(kind: Kind, id: u64, frame: &[u8]) -> Record {
        Record {
            time_ns: 1000 + id,
            id,
            ifindex: 3,
            length: frame.len() as u32,
            to: 0,
            verdict: 2,
            queue: 1,
            kind,
            counter: 0,
            frame: frame.to_vec(),
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let record = record(Kind::Decided, 7, &[1; 14]);
        assert_eq!(Record::parse(&bytes(&record, [0; 4])), Some(record.clone()));
        // The kernel pads what it hands out.
        assert_eq!(Record::parse(&[bytes(&record, [0; 4]), vec![0; 6]].concat()), Some(record.clone()));
        assert_eq!(Record::parse(&bytes(&record, [0; 4])[..RECORD + 13]), None);
        assert_eq!(Record::parse(&[]), None);
    }

    #[test]
    fn a_tag_beside_the_frame_is_put_into_it() {
        let frame = [[2; 12].to_vec(), vec![8, 0, 0x45]].concat();
        let parsed = Record::parse(&bytes(&record(Kind::Arrived, 1, &frame), [0x81, 0, 0x20, 5])).unwrap();
        assert_eq!(parsed.frame, [[2; 12].to_vec(), vec![0x81, 0, 0x20, 5, 8, 0, 0x45]].concat());
        assert_eq!(parsed.length, 19);
    }
}
