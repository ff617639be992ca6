//! Test-runs the program on a frame.

use bm_bpf::{AttachType, testing};

use super::{Kernel, forwards, program};
use crate::error::KernelError;

/// `struct __sk_buff` of `<linux/bpf.h>` in words, and what of it is set.
const SKB_WORDS: usize = 48;
const SKB_IFINDEX: usize = 10;
const SKB_GSO_SIZE: usize = 44;
/// Of `<linux/pkt_cls.h>`.
const TC_ACT_SHOT: u32 = 2;
const TC_ACT_REDIRECT: u32 = 7;
/// How much longer a frame may get, in bytes.
const TAG_ROOM: usize = 256;

/// The result of the program for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is dropped.
    Drop,
    /// It goes to Linux.
    Linux,
    /// It goes to another interface, or to a worker.
    Redirect,
}

impl Kernel {
    /// Runs the program on a frame as if it had arrived on an existing interface; returns the result, and the frame
    /// as it is then. Nothing is sent, but everything is counted. For tests.
    ///
    /// # Errors
    /// The kernel's error, such as a frame without a whole Ethernet header.
    pub fn trial(&mut self, ifindex: u32, frame: &[u8]) -> Result<(Verdict, Vec<u8>), KernelError> {
        self.trial_of(forwards(AttachType::Xdp), ifindex, frame)
    }

    /// Runs the program at tc on a frame that is to be segmented into packets of `gso_size` bytes; 0 for a single packet.
    ///
    /// # Errors
    /// As [`Self::trial`].
    pub fn trial_at_tc(
        &mut self,
        ifindex: u32,
        frame: &[u8],
        gso_size: u32,
    ) -> Result<(Verdict, Vec<u8>), KernelError> {
        let mut context = [0u32; SKB_WORDS];
        (context[SKB_IFINDEX], context[SKB_GSO_SIZE]) = (ifindex, gso_size);
        let program = program(self.object_of(AttachType::Tc)?, forwards(AttachType::Tc));
        let (result, out) = testing::run(&program, &context, frame, 0)
            .map_err(bm_bpf::Error::program("test-running the program at tc"))?;
        let verdict = match result {
            TC_ACT_SHOT => Verdict::Drop,
            TC_ACT_REDIRECT => Verdict::Redirect,
            _ => Verdict::Linux,
        };
        Ok((verdict, out))
    }

    /// Runs one of the programs of the XDP object.
    pub(super) fn trial_of(
        &mut self,
        name: &str,
        ifindex: u32,
        frame: &[u8],
    ) -> Result<(Verdict, Vec<u8>), KernelError> {
        let context = testing::xdp_context(frame.len(), ifindex);
        // The program may add a tag.
        let (result, out) = testing::run(&program(&mut self.object, name), &context, frame, TAG_ROOM)
            .map_err(bm_bpf::Error::program("test-running the program"))?;
        let verdict = match result {
            1 => Verdict::Drop,
            4 => Verdict::Redirect,
            _ => Verdict::Linux,
        };
        Ok((verdict, out))
    }
}
