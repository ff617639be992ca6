//! Memory that was freed goes back to the system.
//!
//! glibc's defaults suit programs that run for minutes. A daemon that runs for months, changes large tables all the time
//! and answers questions on many threads keeps growing with them:
//!
//! | default | what it does to the daemon | here |
//! |---|---|---|
//! | eight arenas a core, one for each new thread | every thread that has ever answered keeps the memory of its largest answer | [`ARENAS`] |
//! | once a block of some size has been freed, blocks up to that size (32 MiB) come from arenas | tables that grow by doubling leave holes between small blocks, which nobody can use or give back | blocks of [`LARGE`] or more are mapped each by itself, always |
//! | twice that size stays at the end of each arena | the same once more, for each arena | no more than [`LARGE`] |

#![allow(unsafe_code, reason = "no safe crate that we use has mallopt")]

/// Arenas of the process. Threads that allocate all the time are the one that keeps the tables, the one that follows
/// Linux's firewall, and those that answer: each finds one without waiting, most of the time.
const ARENAS: libc::c_int = 4;
/// Bytes from which on a block is mapped by itself and unmapped when it is freed.
const LARGE: libc::c_int = 256 << 10;

/// Has the allocator give memory back to the system when it is freed. To be called before any other thread is started.
/// Where the allocator is not glibc's, nothing happens.
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

    /// Bytes that are mapped each block by itself.
    fn mapped() -> usize {
        // SAFETY: has no arguments and returns plain numbers.
        unsafe { libc::mallinfo2() }.hblkhd
    }

    #[test]
    fn large_blocks_are_mapped_even_if_larger_ones_have_been_freed() {
        give_memory_back();
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
