//! Makes glibc return freed memory to the system.
//!
//! With glibc's defaults a daemon that runs for months, changes large tables all the time and answers requests on many
//! threads keeps growing:
//!
//! | default | what it does to the daemon | here |
//! |---|---|---|
//! | eight arenas per core, one for each new thread | every thread that has ever answered keeps the memory of its largest reply | [`ARENAS`] |
//! | once a block of some size has been freed, blocks up to that size (32 MiB) come from arenas | tables that grow by doubling leave holes between small blocks, which can be neither used nor returned | blocks of [`LARGE`] or more are mapped individually, always |
//! | twice that size stays at the end of each arena | the same amount again, in each arena | at most [`LARGE`] |

#![allow(unsafe_code, reason = "no safe crate that we use has mallopt")]

/// Number of arenas of the process. The threads that allocate often are the one that maintains the tables, the one that
/// follows Linux's firewall, and those that answer requests; with this number they rarely wait for each other.
const ARENAS: libc::c_int = 4;
/// Minimum size in bytes of blocks that are mapped individually and unmapped when freed.
const LARGE: libc::c_int = 256 << 10;

/// Makes the allocator return freed memory to the system. To be called before any other thread is started. Does nothing
/// with other allocators than glibc's.
pub fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    for (setting, value) in
        [(libc::M_ARENA_MAX, ARENAS), (libc::M_MMAP_THRESHOLD, LARGE), (libc::M_TRIM_THRESHOLD, LARGE)]
    {
        // SAFETY: passes numbers. It fails for values out of range only, which these are not, and then changes nothing.
        unsafe { libc::mallopt(setting, value) };
    }
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    /// Number of bytes in arenas, and in individually mapped blocks.
    fn used() -> (usize, usize) {
        // SAFETY: has no arguments and returns plain numbers.
        let used = unsafe { libc::mallinfo2() };
        (used.arena, used.hblkhd)
    }

    fn mapped() -> usize {
        used().1
    }

    #[test]
    fn large_blocks_are_mapped_even_if_larger_ones_have_been_freed() {
        give_memory_back();
        if used().0 == 0 {
            eprintln!("skipped: another allocator is in use, such as that of AddressSanitizer");
            return;
        }
        // From here on, by default, blocks up to 16 MiB would be parts of an arena.
        drop(std::hint::black_box(vec![1u8; 16 << 20]));
        let before = mapped();
        let blocks: Vec<_> = (0..8).map(|_| std::hint::black_box(vec![1u8; 8 << 20])).collect();
        let with_them = mapped();
        assert!(with_them >= before + (60 << 20), "{before} bytes, then {with_them}");
        drop(blocks);
        assert!(mapped() + (60 << 20) <= with_them, "{with_them} bytes, then {}", mapped());
    }
}
