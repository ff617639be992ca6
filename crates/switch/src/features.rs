//! What devices can send and receive for XDP, for all interfaces in one request (generic netlink, family `netdev`).
//!
//! libbpf queries one interface at a time, and reads the list of all interfaces for each query: with hundreds of
//! ports a switch would do little else.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// From `<linux/genetlink.h>`.
const CONTROLLER: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// From `<linux/netdev.h>`.
const DEV_GET: u8 = 1;
const DEV_IFINDEX: u16 = 1;
const DEV_XDP_FEATURES: u16 = 3;
const TAKES_FRAMES: u64 = 4;
const TAKES_LONG: u64 = 64;

const HEADER: usize = 16;
const GENERIC_HEADER: usize = 4;
const BUFFER: usize = 1 << 16;

/// What one device supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Takes {
    /// It can send frames that XDP redirects to it.
    pub frames: bool,
    /// It can send frames that are in several buffers.
    pub long: bool,
}

/// What every device of this thread's network namespace supports.
pub enum Features {
    /// By interface index.
    Told(BTreeMap<u32, u64>),
    /// Linux before 6.3 cannot be queried. Frames are then sent to every device that may be able to send them, and
    /// frames in several buffers to none.
    Untold,
}

impl Features {
    /// Queries the current state.
    ///
    /// # Errors
    /// The error that Linux returned, unless it only means that it does not know the query.
    pub fn read() -> io::Result<Self> {
        Self::of_answer(ask())
    }

    fn of_answer(answer: io::Result<BTreeMap<u32, u64>>) -> io::Result<Self> {
        match answer {
            // The family does not exist: an old Linux. Any other error, such as no free descriptors, says nothing
            // about devices.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::Untold),
            answer => answer.map(Self::Told),
        }
    }

    /// What a device supports.
    pub fn of(&self, ifindex: u32) -> Takes {
        match self {
            Self::Untold => Takes { frames: true, long: false },
            Self::Told(all) => {
                let has = all.get(&ifindex).copied().unwrap_or(0);
                Takes { frames: has & TAKES_FRAMES != 0, long: has & TAKES_LONG != 0 }
            }
        }
    }
}

fn ask() -> io::Result<BTreeMap<u32, u64>> {
    let socket = open()?;
    let mut name = vec![0; 4];
    name[..4].copy_from_slice(&[11, 0, FAMILY_NAME as u8, 0]);
    name.extend(b"netdev\0\0");
    let mut family = None;
    request(&socket, (CONTROLLER, GET_FAMILY, 0), &name, &mut |attributes| {
        family = number(attributes, FAMILY_ID).map(|id| id as u16).or(family);
    })?;
    let family = family.ok_or(io::ErrorKind::NotFound)?;
    let mut all = BTreeMap::new();
    request(&socket, (family, DEV_GET, libc::NLM_F_DUMP), &[], &mut |attributes| {
        if let Some(ifindex) = number(attributes, DEV_IFINDEX) {
            all.insert(ifindex as u32, number(attributes, DEV_XDP_FEATURES).unwrap_or(0));
        }
    })?;
    Ok(all)
}

fn open() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: passes numbers.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_GENERIC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sends a request, and calls `each` with the attributes of each answer until the last one.
fn request(
    socket: &OwnedFd,
    (kind, command, flags): (u16, u8, i32),
    body: &[u8],
    each: &mut dyn FnMut(&[u8]),
) -> io::Result<()> {
    let mut message = ((HEADER + GENERIC_HEADER + body.len()) as u32).to_ne_bytes().to_vec();
    message.extend(kind.to_ne_bytes());
    message.extend(((libc::NLM_F_REQUEST | libc::NLM_F_ACK | flags) as u16).to_ne_bytes());
    message.extend([0; 8]);
    message.extend([command, 1, 0, 0]);
    message.extend(body);
    // SAFETY: the message is as long as said.
    let sent = unsafe { libc::send(socket.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut buffer = vec![0u8; BUFFER];
    loop {
        // SAFETY: the buffer is as long as said.
        let got = unsafe { libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        if got < 0 {
            match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => continue,
                error => return Err(error),
            }
        }
        if answers(&buffer[..got as usize], each)? {
            return Ok(());
        }
    }
}

/// Handles the answers that arrived together; returns whether the last one was among them.
fn answers(mut bytes: &[u8], each: &mut dyn FnMut(&[u8])) -> io::Result<bool> {
    while let Some((length, kind)) = word(bytes).zip(bytes.get(4..6)) {
        let Some(message) = bytes.get(..length as usize).filter(|message| message.len() >= HEADER) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        match i32::from(u16::from_ne_bytes([kind[0], kind[1]])) {
            libc::NLMSG_DONE => return Ok(true),
            libc::NLMSG_ERROR => match word(&message[HEADER..]).map(|code| code as i32) {
                Some(0) => return Ok(true),
                code => return Err(io::Error::from_raw_os_error(-code.unwrap_or(-libc::EPROTO))),
            },
            _ => each(message.get(HEADER + GENERIC_HEADER..).unwrap_or_default()),
        }
        bytes = bytes.get(message.len().next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

fn word(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?))
}

/// The number in an attribute, of any width.
fn number(mut attributes: &[u8], wanted: u16) -> Option<u64> {
    loop {
        let header = word(attributes)?.to_ne_bytes();
        let (length, kind) = ([header[0], header[1]], [header[2], header[3]]);
        let value = attributes.get(4..usize::from(u16::from_ne_bytes(length)))?;
        if u16::from_ne_bytes(kind) == wanted {
            return match *value {
                [a, b] => Some(u16::from_ne_bytes([a, b]).into()),
                [a, b, c, d] => Some(u32::from_ne_bytes([a, b, c, d]).into()),
                _ => Some(u64::from_ne_bytes(value.try_into().ok()?)),
            };
        }
        attributes = attributes.get((4 + value.len()).next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_numbers_in_attributes() {
        let bytes = [8, 0, 1, 0, 7, 0, 0, 0, 6, 0, 2, 0, 9, 0, 0, 0, 12, 0, 3, 0, 4, 0, 0, 0, 0, 0, 0, 0];
        let found = [1, 2, 3, 4].map(|kind| number(&bytes, kind));
        assert_eq!(found, [Some(7), Some(9), Some(4), None]);
        assert_eq!(number(&bytes[..5], 1), None, "cut short");
        assert!(answers(&[200, 0, 0, 0, 3, 0], &mut |_| {}).is_err());
    }

    #[test]
    fn trouble_is_no_old_linux() {
        let answer = |code| Features::of_answer(Err(io::Error::from_raw_os_error(code)));
        assert!(matches!(answer(libc::ENOENT), Ok(Features::Untold)));
        for code in [libc::EMFILE, libc::ENOMEM, libc::ENOBUFS] {
            assert_eq!(answer(code).err().and_then(|error| error.raw_os_error()), Some(code));
        }
    }

    #[test]
    fn the_loopback_takes_no_frames() {
        let Features::Told(all) = Features::read().unwrap() else {
            return eprintln!("skipped: this Linux does not tell");
        };
        assert!(all.contains_key(&1), "{all:?}");
        assert_eq!(Features::Told(all).of(1), Takes { frames: false, long: false });
    }
}
