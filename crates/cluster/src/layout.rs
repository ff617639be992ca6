//! The values of the program's maps: `bpf/layout.h` in Rust.

/// The program on fabric links; its name ends in the version of the layout.
pub const PROGRAM: &str = "bm_fabric_1";
/// The largest number of entries of the map of neighbors.
pub const NEIGHBORS: u32 = 65_536;
/// Instead of an interface: the link exists, its interface does not.
pub const NO_INTERFACE: u32 = u32::MAX;
/// Instead of an epoch: there is none.
pub const NO_EPOCH: u32 = 0x100;
/// In place of the external port of messages between nodes: a message, a probe, and the answer to one.
pub const PORT_MESSAGE: u8 = 0;
pub const PORT_PROBE: u8 = 1;
pub const PORT_PROBE_REPLY: u8 = 2;

/// Values that are written into maps exactly as they are in memory.
///
/// # Safety
/// The type must have no padding, and any bytes must be a valid value.
pub unsafe trait Plain: Copy {
    /// Its bytes.
    fn bytes(&self) -> &[u8] {
        // SAFETY: the implementer has no padding, so every byte is initialised.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }

    /// The value of these bytes; `None` if the number of bytes is wrong.
    fn of(bytes: &[u8]) -> Option<Self> {
        // SAFETY: as many bytes as the value has, of which any are one; they need not be aligned.
        (bytes.len() == size_of::<Self>()).then(|| unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() })
    }
}

/// `struct self`.
///
/// Not shared: copied into and out of maps by system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Own {
    pub node: u32,
    pub epoch: u32,
    pub epoch_before: u32,
    pub unused: u32,
}

/// `struct neighbor`.
///
/// Not shared: copied into and out of maps by system calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Neighbor {
    pub to: [u8; 6],
    pub from: [u8; 6],
    pub ifindex: u32,
    pub port: u32,
    pub family: u32,
    pub address: [u8; 16],
}

// SAFETY: numbers only, none narrower than what stands before it leaves a gap.
unsafe impl Plain for Own {}
// SAFETY: the same.
unsafe impl Plain for Neighbor {}

const _: () = {
    assert!(size_of::<Own>() == 16);
    assert!(size_of::<Neighbor>() == 40);
};
