//! The structures of the DPDK that is installed on this machine, measured next to ours.
//!
//! ```text
//! peers.c (in this binary) ─► cc, with the flags that pkg-config has for libdpdk ─► a shared object ─► dlopen
//! ```
//!
//! The shim is compiled on demand, so brickmoon needs no DPDK to be built or started, and the DPDK that is measured is
//! the installed one, whatever its version (docs/decisions/0005-peers-at-run-time.md).
//!
//! Fair conditions: DPDK gets its memory from the same allocator as our tables, so in the same kind of pages; its
//! lookups with AVX-512 are enabled; and addresses are in DPDK's format before a turn begins.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;

use bm_fib::memory::{Array, Filled, Pages};
use bm_testbed::tables::Route;

use super::family::Family;
use super::variant::{Kind, Variant};

const SOURCE: &str = include_str!("peers.c");
/// Memory for all tables of DPDK: two of IPv4 with their routes, or the one of IPv6. What is not touched costs
/// nothing.
const MEMORY: usize = 2 << 30;
const PAGE: usize = 2 << 20;
/// Spare room for what updates add.
const ROUTES_TO_SPARE: usize = 1 << 17;
/// Debian's package names; others differ little.
const INSTALL: &str = "install it with: apt-get install libdpdk-dev gcc pkg-config";

/// Why DPDK is not measured, and what to do, in one line.
#[derive(Debug, thiserror::Error)]
#[error("DPDK is left out of the comparison: {}", .0)]
pub struct DpdkMissing(String);

fn missing(why: impl fmt::Display) -> DpdkMissing {
    DpdkMissing(why.to_string())
}

/// Number of blocks that entries of two bytes can address.
const BLOCKS_OF_TWO_BYTES: usize = 32_767;

type Handle = *mut c_void;

/// The functions of `peers.c`.
struct Shim {
    create: unsafe extern "C" fn(c_int, *const c_char, c_int, u32, u32) -> Handle,
    set: unsafe extern "C" fn(Handle, *const c_void, u8, u32) -> c_int,
    remove: unsafe extern "C" fn(Handle, *const c_void, u8) -> c_int,
    select: unsafe extern "C" fn(Handle, c_int) -> c_int,
    lookup: unsafe extern "C" fn(Handle, *const c_void, *mut u64, u32),
    free: unsafe extern "C" fn(Handle),
    error: unsafe extern "C" fn() -> *const c_char,
}

/// DPDK, initialized.
pub struct Peers {
    shim: Shim,
    /// Its name and number.
    pub version: String,
    /// The kind of pages that its tables are in.
    pub pages: Pages,
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", self.version, self.pages)
    }
}

impl Peers {
    /// Compiles the shim and starts DPDK on `core`, where the calling thread stays. Possible once per process.
    ///
    /// # Errors
    /// What is missing.
    pub fn start(core: usize) -> Result<Arc<Self>, DpdkMissing> {
        let folder = Folder::new()
            .map_err(|error| missing(format_args!("cannot create a temporary folder: {error}")))?;
        let object = compile(&folder.0)?;
        let library = open(&object)?;
        let memory = Array::<AtomicU8>::zeroed(MEMORY, Filled::Whole).map_err(missing)?;
        let pages = memory.pages();
        // SAFETY: each name is that of a function of `peers.c`, compiled from the source that these types
        // were written for.
        let Symbols { shim, version, start } = unsafe { symbols(library)? };
        let core = CString::new(core.to_string()).map_err(missing)?;
        // DPDK keeps it until the process ends.
        let memory = Box::leak(Box::new(memory));
        // SAFETY: the memory is ours, is `MEMORY` long, and is never used by anybody else from here on.
        let started = unsafe { start(core.as_ptr(), memory.as_ptr().cast_mut().cast(), MEMORY, PAGE) };
        if started != 0 {
            return Err(missing(format_args!("DPDK does not start: {}", shim.error_text())));
        }
        // SAFETY: the shim gives a string that lives as long as DPDK is loaded.
        let version = unsafe { CStr::from_ptr(version()) }.to_string_lossy().into_owned();
        Ok(Arc::new(Self { shim, version, pages }))
    }

    /// A table of all `routes`, which are sorted by address.
    ///
    /// # Errors
    /// If DPDK has no room for it.
    pub fn build<A: Family>(self: &Arc<Self>, of: Variant, routes: &[Route<A>]) -> Result<Peer, DpdkMissing> {
        let refused = |what: &str| missing(format_args!("{} has no room for {what}", of.name));
        let blocks = A::blocks(routes);
        // Some to spare, for what updates add.
        let mut room = blocks + blocks / 8 + 256;
        if of.entry == 2 {
            if blocks > BLOCKS_OF_TWO_BYTES {
                return Err(refused(&format!(
                    "{blocks} blocks: its entries can address {BLOCKS_OF_TWO_BYTES}"
                )));
            }
            room = room.min(BLOCKS_OF_TWO_BYTES);
        }
        let handle =
            self.create(of, routes.len() + ROUTES_TO_SPARE, room).ok_or_else(|| refused("a table"))?;
        let bytes = ((1 << 24) + blocks * 256) * of.entry;
        let mut peer = Peer { peers: self.clone(), handle, of, bytes, form: "x4" };
        if of.kind != Kind::Lpm {
            peer.form = if peer.select(1) { "avx512" } else { "scalar" };
            if peer.form == "scalar" && !peer.select(0) {
                return Err(missing(format_args!("{} has no lookup for this CPU", of.name)));
            }
        }
        peer.fill(routes).map_err(|route| refused(&route.prefix.to_string()))?;
        Ok(peer)
    }

    fn create(&self, of: Variant, routes: usize, blocks: usize) -> Option<Handle> {
        let (kind, entry) = (of.kind as c_int, of.entry as c_int);
        let name = CString::new(of.name).ok()?;
        // SAFETY: the name ends in a zero and outlives the call.
        let made = unsafe { (self.shim.create)(kind, name.as_ptr(), entry, routes as u32, blocks as u32) };
        (!made.is_null()).then_some(made)
    }
}

impl Shim {
    fn error_text(&self) -> String {
        // SAFETY: the shim gives a string that lives until its next call on this thread.
        unsafe { CStr::from_ptr((self.error)()) }.to_string_lossy().into_owned()
    }
}

/// A table of DPDK.
pub struct Peer {
    peers: Arc<Peers>,
    handle: Handle,
    of: Variant,
    /// Its parameters for these routes, in bytes: without spare blocks.
    pub bytes: usize,
    /// The form of its lookup.
    pub form: &'static str,
}

impl Peer {
    /// Selects a form of the lookup; whether this CPU has it.
    fn select(&self, vector: i32) -> bool {
        // SAFETY: the handle is live.
        unsafe { (self.peers.shim.select)(self.handle, vector) == 0 }
    }

    /// The subject: the variant and the form of its lookup.
    pub fn name(&self) -> String {
        format!("{}-{}", self.of.name, self.form)
    }

    /// The kind of pages that its tables are in.
    pub fn pages(&self) -> Pages {
        self.peers.pages
    }

    fn fill<A: Family>(&mut self, routes: &[Route<A>]) -> Result<(), Route<A>> {
        if self.of.kind != Kind::Lpm {
            return routes.iter().try_for_each(|route| self.set(route).then_some(()).ok_or(*route));
        }
        let mut shortest_first = routes.to_vec();
        shortest_first.sort_by_key(|route| route.prefix.length());
        shortest_first.iter().try_for_each(|route| self.set(route).then_some(()).ok_or(*route))
    }

    /// Whether its routes can be changed.
    pub fn has_updates(&self) -> bool {
        self.of.kind != Kind::Lpm
    }

    /// Sets a route; `false` if there is no room.
    pub fn set<A: Family>(&mut self, route: &Route<A>) -> bool {
        let (address, length) = (route.prefix.first().wire(), route.prefix.length());
        // SAFETY: the handle is live, and `address` is as long as the structure's addresses are.
        let set = unsafe {
            (self.peers.shim.set)(self.handle, (&raw const address).cast(), length, route.next_hop.into())
        };
        set == 0
    }

    /// Removes a route; `false` if there is none.
    pub fn remove<A: Family>(&mut self, prefix: bm_wire::prefix::Prefix<A>) -> bool {
        let address = prefix.first().wire();
        // SAFETY: as in `set`.
        unsafe { (self.peers.shim.remove)(self.handle, (&raw const address).cast(), prefix.length()) == 0 }
    }

    /// Looks up `addresses` into `hops`, as the structure writes them: see [`Self::hop`].
    ///
    /// # Panics
    /// If `hops` is shorter than `addresses`.
    #[inline]
    pub fn look_up<A: Family>(&self, addresses: &[A::Wire], hops: &mut [u64]) {
        assert!(hops.len() >= addresses.len());
        let count = addresses.len() as u32;
        // SAFETY: the handle is live; `count` addresses can be read, and there is room for as many hops.
        unsafe {
            (self.peers.shim.lookup)(self.handle, addresses.as_ptr().cast(), hops.as_mut_ptr(), count);
        }
    }

    /// The next hop of address `index` of the last [`Self::look_up`].
    pub fn hop(&self, hops: &[u64], index: usize) -> u32 {
        match self.of.kind {
            // They are 32 bits each, the first in the low half.
            Kind::Lpm => (hops[index / 2] >> (32 * (index % 2))) as u32,
            _ => hops[index] as u32,
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // SAFETY: made by `create`, freed once, and no longer borrowed.
        unsafe { (self.peers.shim.free)(self.handle) }
    }
}

/// A folder that is deleted when this is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> std::io::Result<Self> {
        let path = std::env::temp_dir().join(format!("brickmoon-peers-{}", std::process::id()));
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _left_behind = std::fs::remove_dir_all(&self.0);
    }
}

/// The flags that pkg-config has for libdpdk.
fn flags(of: &str) -> Result<Vec<String>, DpdkMissing> {
    let found = Command::new("pkg-config").args([of, "libdpdk"]).output();
    let found = found.map_err(|error| missing(format_args!("pkg-config: {error}; {INSTALL}")))?;
    if !found.status.success() {
        return Err(missing(format_args!("DPDK is not installed; {INSTALL}")));
    }
    Ok(String::from_utf8_lossy(&found.stdout).split_whitespace().map(String::from).collect())
}

fn compile(folder: &Path) -> Result<PathBuf, DpdkMissing> {
    let (source, object) = (folder.join("peers.c"), folder.join("peers.so"));
    std::fs::write(&source, SOURCE)
        .map_err(|error| missing(format_args!("{}: {error}", source.display())))?;
    let compiled = Command::new("cc")
        .args(["-O3", "-shared", "-fPIC", "-w"])
        .args(flags("--cflags")?)
        // After DPDK's own flags, which name the oldest CPU that it runs on.
        .args(["-march=native", "-DALLOW_EXPERIMENTAL_API", "-o"])
        .args([&object, &source])
        .args(flags("--libs")?)
        .output()
        .map_err(|error| missing(format_args!("cc: {error}; {INSTALL}")))?;
    if compiled.status.success() {
        return Ok(object);
    }
    let text = String::from_utf8_lossy(&compiled.stderr).into_owned();
    let first = text.lines().find(|line| line.contains("error")).unwrap_or("cc failed").to_string();
    Err(missing(format_args!("the shim does not compile against this DPDK: {first}; {INSTALL}")))
}

fn open(object: &Path) -> Result<Handle, DpdkMissing> {
    let path = CString::new(object.as_os_str().as_encoded_bytes()).map_err(missing)?;
    // SAFETY: loading runs the constructors of DPDK's libraries, which touch nothing of ours.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        // SAFETY: after a failure dlerror gives a string, which is copied at once.
        let why = unsafe { CStr::from_ptr(libc::dlerror()) };
        return Err(missing(format_args!("{}; {INSTALL}", why.to_string_lossy())));
    }
    Ok(library)
}

type Version = unsafe extern "C" fn() -> *const c_char;
type Start = unsafe extern "C" fn(*const c_char, *mut c_void, usize, usize) -> c_int;

/// The functions of `peers.c`.
struct Symbols {
    shim: Shim,
    version: Version,
    start: Start,
}

/// # Safety
/// `library` must be what `peers.c` was compiled to.
unsafe fn symbols(library: Handle) -> Result<Symbols, DpdkMissing> {
    let find = |name: &CStr| {
        // SAFETY: the library is loaded and stays so; the name ends in a zero.
        let found = unsafe { libc::dlsym(library, name.as_ptr()) };
        if found.is_null() { Err(missing(format_args!("the shim has no {name:?}"))) } else { Ok(found) }
    };
    // SAFETY: the types of the fields are those that `peers.c` gives these functions.
    unsafe {
        let shim = Shim {
            create: std::mem::transmute::<Handle, unsafe extern "C" fn(_, _, _, _, _) -> _>(find(
                c"peer_create",
            )?),
            set: std::mem::transmute::<Handle, unsafe extern "C" fn(_, _, _, _) -> _>(find(c"peer_set")?),
            remove: std::mem::transmute::<Handle, unsafe extern "C" fn(_, _, _) -> _>(find(c"peer_remove")?),
            select: std::mem::transmute::<Handle, unsafe extern "C" fn(_, _) -> _>(find(c"peer_select")?),
            lookup: std::mem::transmute::<Handle, unsafe extern "C" fn(_, _, _, _)>(find(c"peer_lookup")?),
            free: std::mem::transmute::<Handle, unsafe extern "C" fn(_)>(find(c"peer_free")?),
            error: std::mem::transmute::<Handle, Version>(find(c"peers_error")?),
        };
        let version = std::mem::transmute::<Handle, Version>(find(c"peers_version")?);
        let start = std::mem::transmute::<Handle, Start>(find(c"peers_start")?);
        Ok(Symbols { shim, version, start })
    }
}
