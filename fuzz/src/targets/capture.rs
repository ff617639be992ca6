//! Capture files: pcap and pcapng of both byte orders.
//!
//! Checks: a file is read to its end or to the first error, which names the file; packets are no longer than the file;
//! and a port that repeats the file receives the same packets each time.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use bm_frame::{Burst, FramePool, Freelist};
use bm_port::Port;
use bm_port_pcap::PcapPort;
use std::sync::Arc;

static DEPOT: LazyLock<Arc<FramePool>> =
    LazyLock::new(|| FramePool::new(1024, 2048).expect("memory for a few frames"));

/// Reads a file.
pub fn run(bytes: &[u8]) {
    in_file(bytes, |path| {
        let once = packets(path, false, usize::MAX, bytes.len());
        if let Ok((packets, None)) = &once {
            let again = self::packets(path, true, packets.len() * 2, bytes.len());
            let again =
                again.unwrap_or_else(|error| panic!("can be read once, but not repeatedly: {error}")).0;
            assert_eq!(again, [&packets[..], packets].concat());
        }
    });
}

type Packets = (Vec<Vec<u8>>, Option<String>);

/// The packets that a port receives from a file, at most `most`, and the error, if any.
fn packets(path: &Path, repeat: bool, most: usize, length: usize) -> Result<Packets, String> {
    let mut port = PcapPort::new(Some(path), None, repeat).map_err(|error| error.to_string())?;
    let mut frames = Freelist::new(DEPOT.clone(), 256);
    let (mut burst, mut packets) = (Burst::new(), Vec::new());
    while !port.is_done() && packets.len() < most {
        port.receive(&mut burst, &mut frames);
        let before = packets.len();
        for frame in burst.drain() {
            assert!(frame.data().len() <= length, "a packet longer than its file");
            packets.push(frame.data().to_vec());
            frames.free(frame);
        }
        if before == packets.len() {
            break;
        }
    }
    packets.truncate(most);
    Ok((packets, port.error().map(ToString::to_string)))
}

/// Calls `then` with the path of a file that has these bytes.
pub fn in_file(bytes: &[u8], then: impl FnOnce(&Path)) {
    // SAFETY: the name is a string with its zero, and the call takes nothing else of ours.
    let fd = unsafe { libc::memfd_create(c"fuzz".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0, "memfd_create: {}", std::io::Error::last_os_error());
    // SAFETY: the descriptor is new and nobody else has it.
    let mut file = unsafe { File::from_raw_fd(fd) };
    file.write_all(bytes).expect("memory for the file");
    then(&PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())));
}
