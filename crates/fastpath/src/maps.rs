//! BPF maps with a single value, as memory shared by the program and this process.

use std::io;
use std::os::fd::AsFd;

use bm_sys::{Access, Map};
use libbpf_rs::libbpf_sys::{self, bpf_map_create_opts};
use libbpf_rs::{MapHandle, MapType};

use crate::layout::{View, Views};

/// Creates a map whose only value can be mapped into memory.
pub fn create(name: &str, bytes: usize) -> libbpf_rs::Result<MapHandle> {
    let options = bpf_map_create_opts {
        sz: size_of::<bpf_map_create_opts>() as libbpf_sys::size_t,
        map_flags: libbpf_sys::BPF_F_MMAPABLE,
        ..bpf_map_create_opts::default()
    };
    MapHandle::create(MapType::Array, Some(name), 4, bytes as u32, 1, &options)
}

/// The `views` map, mapped into memory.
pub(crate) struct MappedViews {
    map: Map,
}

impl MappedViews {
    pub fn map(map: &impl AsFd) -> io::Result<Self> {
        let bytes = size_of::<Views>().next_multiple_of(4096);
        Ok(Self { map: Map::file(map, 0, bytes, Access::ReadWrite)? })
    }

    /// The atomics at its start.
    pub fn head(&self) -> &Views {
        // SAFETY: a mapping as large as the value, which starts as zeros and lives as long as `self`; zeros
        // are a value of `Views`. Behind the reference, `of` is in cells.
        unsafe { self.map.place::<Views>(0, 1).as_ref() }
    }

    /// A copy of one of the two views.
    pub fn read(&self, which: usize) -> Box<View> {
        let mut view = View::empty();
        // SAFETY: within the mapping; writers need `&mut self`, and the program only reads. All bytes are a value.
        unsafe { std::ptr::copy_nonoverlapping(self.head().of[which].get(), &mut *view, 1) };
        view
    }

    /// Writes one of the two views. The program must no longer use it: a grace period must lie between its last use
    /// and this call.
    pub fn write(&mut self, which: usize, view: &View) {
        let cell = self.head().of[which].get();
        // SAFETY: within the mapping; `&mut self` keeps other writers out, and the caller the program, whose
        // reads of a view in the making could at worst be torn numbers.
        unsafe { std::ptr::copy_nonoverlapping(view, cell, 1) };
    }
}
