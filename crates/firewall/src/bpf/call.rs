//! The system call `bpf(2)` for questions, in one safe function.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// The size of the attributes, which is that of older kernels; the rest is taken as zero.
const SIZE: usize = 64;

/// The point of a link at netfilter.
#[cfg(test)]
pub(super) const AT_NETFILTER: u32 = 45;

/// Commands (`BPF_*`) and what they take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum Command {
    /// Takes an ID, as the next one does; the result is a descriptor.
    ProgramById = 13,
    LinkById = 30,
    /// Takes an ID, and finds the next one.
    NextLink = 31,
    /// Takes a descriptor; the answer is what the kernel knows about that.
    Info = 15,
    /// Takes an interface and a point of it; the answer is the IDs of the programs there.
    ProgramsAt = 16,
    #[cfg(test)]
    Attach = 8,
    #[cfg(test)]
    Detach = 9,
    #[cfg(test)]
    LinkAtNetfilter = 28,
}

impl Command {
    /// For a command with an answer: where the attributes have its address, where they say how much room there is, and
    /// in units of how many bytes.
    fn answer(self) -> Option<(usize, usize, usize)> {
        match self {
            Self::Info => Some((8, 4, 1)),
            Self::ProgramsAt => Some((16, 24, size_of::<u32>())),
            _ => None,
        }
    }

    /// Whether a caller may give it a word at this offset: not part of an address, or how much room there is.
    fn takes(self, at: usize) -> bool {
        match self {
            Self::Info => at == 0,
            Self::ProgramsAt => at < 16,
            // For links of other kinds, some words would be an address.
            #[cfg(test)]
            Self::LinkAtNetfilter => at != 8,
            _ => true,
        }
    }
}

/// `union bpf_attr` after a command.
///
/// Not shared: the kernel reads and writes it only during the system call, which is given a pointer to it.
#[repr(C, align(8))]
pub(super) struct Attributes([u8; SIZE]);

impl Attributes {
    /// The word at an offset.
    pub(super) fn word(&self, at: usize) -> u32 {
        u32::from_ne_bytes([self.0[at], self.0[at + 1], self.0[at + 2], self.0[at + 3]])
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

/// Carries out a command. `words` are the attributes, by their offsets. The answer, for a command that has one, is
/// written into `answer`, whose length must be 0 for others.
///
/// # Panics
/// If the command does not take one of the words, or has no answer and is given room for one.
pub(super) fn ask(command: Command, words: &[(usize, u32)], answer: &mut [u32]) -> io::Result<Attributes> {
    call(command, words, answer).map(|(_, attributes)| attributes)
}

/// Runs a command whose result is a descriptor.
pub(super) fn open(command: Command, words: &[(usize, u32)]) -> io::Result<OwnedFd> {
    let opens = !matches!(command, Command::NextLink | Command::Info | Command::ProgramsAt);
    #[cfg(test)]
    let opens = opens && !matches!(command, Command::Attach | Command::Detach);
    assert!(opens, "{command:?} opens nothing");
    let (fd, _) = call(command, words, &mut [])?;
    // SAFETY: the command has just made the descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn call(command: Command, words: &[(usize, u32)], answer: &mut [u32]) -> io::Result<(i32, Attributes)> {
    let mut attributes = Attributes([0; SIZE]);
    for &(at, word) in words {
        assert!(command.takes(at), "{command:?} takes no word at {at}");
        attributes.put(at, &word.to_ne_bytes());
    }
    // The kernel reads what is there, too: addresses to which it would write more.
    answer.fill(0);
    match command.answer() {
        Some((address, room, unit)) => {
            attributes.put(room, &((size_of_val(answer) / unit) as u32).to_ne_bytes());
            attributes.put(address, &(answer.as_mut_ptr() as u64).to_ne_bytes());
        }
        None => assert!(answer.is_empty(), "{command:?} has no answer"),
    }
    #[cfg(test)]
    if command == Command::LinkAtNetfilter {
        attributes.put(8, &AT_NETFILTER.to_ne_bytes());
    }
    // SAFETY: the attributes are SIZE bytes, as is said. The one address in them, if any, is that of `answer`, which
    // has as much room as is said and contains no address; other words of these commands are numbers (`takes`). Both
    // live for the call.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command as i32, attributes.0.as_mut_ptr(), SIZE) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok((result as i32, attributes)) }
}
