//! For tests: a bpffs that exists only during the test, and programs run on a frame.

use std::io;
use std::path::Path;

use crate::bpffs::{OWN, USUAL};
use crate::mount;
use libbpf_rs::{ProgramInput, ProgramMut};

/// Gives this thread, and the processes that it starts, a mount namespace of their own, with an empty bpffs at the
/// usual place and none at brickmoon's.
///
/// # Errors
/// What was refused: it needs root.
pub fn own_bpffs() -> io::Result<()> {
    mount::leave()?;
    // Usually nothing is mounted there.
    let _none = mount::unmount_here(Path::new(OWN), rustix::mount::UnmountFlags::DETACH);
    mount::mount_here(Path::new(USUAL))
}

/// The context of an XDP program (`struct xdp_md` in words) for a frame of this length that arrived on an interface.
pub fn xdp_context(length: usize, ifindex: u32) -> [u32; 6] {
    let mut context = [0; 6];
    (context[1], context[3]) = (length as u32, ifindex);
    context
}

/// Runs a program on a frame. Returns the program's result, and the frame, which may have grown by up to `room` bytes.
///
/// # Errors
/// The kernel's error.
pub fn run(
    program: &ProgramMut<'_>,
    context: &[u32],
    frame: &[u8],
    room: usize,
) -> libbpf_rs::Result<(u32, Vec<u8>)> {
    let mut context: Vec<u8> = context.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let mut out = vec![0; frame.len() + room];
    let input = ProgramInput {
        data_in: Some(frame),
        data_out: Some(&mut out),
        context_in: Some(&mut context),
        ..ProgramInput::default()
    };
    let done = program.test_run(input)?;
    let (result, length) = (done.return_value, done.data.map_or(0, |data| data.len()));
    out.truncate(length);
    Ok((result, out))
}
