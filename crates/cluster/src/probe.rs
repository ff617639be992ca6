//! Probes: frames that the fabric program at the other end of a link sends back, with or without its daemon.
//!
//! ```text
//! 0         6         12     14    18      26       34    50
//! | to      | from    | type |magic| nonce | sent at | tag |
//! ```
//!
//! Only their sender reads them, by its own clock. They have the same tag as messages, so they cannot be forged; those that
//! were sent more than a second ago are ignored.

use std::path::Path;

use bm_sys::{open_regular, read_up_to};
use bm_vlb::address::Node;
use bm_vlb::membership::Epoch;
use bm_wire::ethernet::Mac;

use crate::error::ClusterError;
use crate::layout::PORT_PROBE;
use crate::liveness::TIMEOUT_MAX_NS;
use crate::message::{ETHERNET, Key, begin};

/// IEEE 802 local experimental, as that of messages, but another: each has a socket of its own.
pub const ETHERTYPE: u16 = 0x88b6;
const MAGIC: [u8; 4] = *b"bmpr";
/// The shortest key, and the longest file with one.
const KEY_MIN: usize = 16;
const KEY_MAX: u64 = 4096;

/// The frame of a probe.
pub fn frame(epoch: Epoch, from: Mac, to: Node, key: &Key, nonce: u64, now_ns: u64) -> Vec<u8> {
    let mut frame = Vec::with_capacity(64);
    begin(&mut frame, epoch, from, to, PORT_PROBE, ETHERTYPE);
    frame.extend_from_slice(&MAGIC);
    frame.extend_from_slice(&nonce.to_be_bytes());
    frame.extend_from_slice(&now_ns.to_be_bytes());
    key.append_tag(&mut frame, ETHERNET);
    frame
}

/// The round-trip time of a probe, if it is one of ours; `body` is the frame without its Ethernet header.
pub fn read(body: &[u8], key: &Key, nonce: u64, now_ns: u64) -> Option<u64> {
    // Linux may have padded it.
    let body = key.verify(body.get(..36)?)?;
    let (magic, rest) = body.split_first_chunk::<4>()?;
    let (sent_nonce, sent) = rest.split_first_chunk::<8>()?;
    let sent = u64::from_be_bytes(*sent.first_chunk::<8>()?);
    let away = now_ns.checked_sub(sent)?;
    (*magic == MAGIC && u64::from_be_bytes(*sent_nonce) == nonce && away < TIMEOUT_MAX_NS).then_some(away)
}

/// Reads the shared key of the cluster.
///
/// # Errors
/// If the file cannot be read, is accessible by all users, or is too short.
pub(crate) fn read_key(path: &Path) -> Result<Key, ClusterError> {
    use std::os::unix::fs::PermissionsExt;
    let wrong = |why: String| ClusterError::Key { path: path.into(), why };
    let file = open_regular(path).map_err(|error| wrong(error.to_string()))?;
    let metadata = file.metadata().map_err(|error| wrong(error.to_string()))?;
    if metadata.permissions().mode() & 0o007 != 0 {
        return Err(wrong("all users of this machine can access it".into()));
    }
    let text = read_up_to(&file, KEY_MAX).map_err(|error| wrong(error.to_string()))?;
    if text.trim_ascii().len() < KEY_MIN {
        return Err(wrong(format!("a key has at least {KEY_MIN} bytes")));
    }
    Ok(Key::new(&text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_vlb::address::Source;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn accepts_only_own_and_recent_probes() {
        let key = Key::new(b"0123456789abcdef");
        let node = |number| Node::new(number).expect("small");
        let from = Source { input: node(1), via: None, sample: None }.mac();
        let frame = frame(Epoch::new(7), from, node(2), &key, 11, 1000);
        assert_eq!((frame[..6].to_vec(), frame.len()), (vec![0xbe, 7, 0, 0x41, 0, 0], 50));
        let body = &frame[ETHERNET..];
        assert_eq!(read(body, &key, 11, 1250), Some(250));
        assert_eq!(read(&[body, &[0; 10]].concat(), &key, 11, 1250), Some(250), "padded");
        assert_eq!(read(body, &key, 12, 1250), None);
        assert_eq!(read(body, &key, 11, 999), None);
        assert_eq!(read(body, &key, 11, 1000 + TIMEOUT_MAX_NS), None);
        assert_eq!(read(body, &Key::new(b"another"), 11, 1250), None);
        assert_eq!(read(&body[1..], &key, 11, 1250), None);
    }

    #[test]
    fn checks_the_key_file() {
        let path = std::env::temp_dir().join(format!("bm-key-{}", std::process::id()));
        let why = |mode, text: &str| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            read_key(&path).err().map(|error| error.to_string())
        };
        assert_eq!(why(0o600, "0123456789abcdef\n"), None);
        assert!(why(0o600, "short\n").unwrap().contains("a key has at least 16 bytes; create one"));
        assert!(why(0o644, "0123456789abcdef").unwrap().contains("all users of this machine"));
        assert!(why(0o600, &"x".repeat(5000)).unwrap().contains("longer than 4096 bytes"));
        std::fs::remove_file(&path).unwrap();
        assert!(read_key(&path).is_err());
        // One that nobody writes to: reading it would wait for ever.
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(read_key(&path).err().unwrap().to_string().contains("not a regular file"));
        std::fs::remove_file(&path).unwrap();
    }
}
