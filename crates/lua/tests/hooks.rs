//! Hooks on a router in memory: packets in, packets out byte by byte, and counters for all others.

#![allow(clippy::unwrap_used)]

mod hooks {
    pub mod examples;
    pub mod failures;
    pub mod hangs;
    pub mod on_failure;
    pub mod stages;
}

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bm_forward::testing::Lab;
use bm_frame::FramePool;
use bm_graph::Stage;
use bm_lua::hook::{Budget, HookNews, HookReport, HookSet, HookSpec, HookWorld, OnHang};
use bm_stats::Registry;

/// A router between 192.0.2.0/24 and 198.51.100.0/24, with everything else behind 198.51.100.7.
pub(crate) const WORLD: &str = "
    interface left 0 02:00:00:00:00:01 192.0.2.1/24 2001:db8:1::1/64
    interface right 1 02:00:00:00:00:02 198.51.100.1/24 2001:db8:2::1/64
    interface other 2 02:00:00:00:00:03 203.0.113.1/24
    neighbor 198.51.100.7 right 02:00:00:00:02:07
    neighbor 203.0.113.5 other 02:00:00:00:03:05
    route 0.0.0.0/0 via 198.51.100.7 right";

/// 192.0.2.9:12345 > 8.8.8.8:53, UDP "data", TTL 64, to the router; and the same as it leaves, with TTL 63.
pub(crate) const IN: [u8; 46] = [
    2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 1, 9, 8, 0, 0x45, 0, 0, 32, 0x12, 0x34, 0, 0, 64, 17, 0x96, 0x80, 192, 0,
    2, 9, 8, 8, 8, 8, 0x30, 0x39, 0, 53, 0, 12, 0, 0, b'd', b'a', b't', b'a',
];
pub(crate) const OUT: [u8; 46] = [
    2, 0, 0, 0, 2, 7, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 32, 0x12, 0x34, 0, 0, 63, 17, 0x97, 0x80, 192, 0,
    2, 9, 8, 8, 8, 8, 0x30, 0x39, 0, 53, 0, 12, 0, 0, b'd', b'a', b't', b'a',
];

/// Hooks on a router, each in its own file.
pub(crate) struct Rig {
    pub(crate) lab: Lab,
    pub(crate) set: Arc<HookSet>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) specs: Vec<HookSpec>,
    folder: PathBuf,
}

/// A folder of the test's own.
pub(crate) fn folder() -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("bm-hooks-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

pub(crate) fn spec(file: PathBuf, stage: Option<Stage>) -> HookSpec {
    let name = file.file_stem().unwrap().to_str().unwrap().to_string();
    let arguments = serde_json::Value::Null;
    let budget = Budget { cycles: 0, percent: 25, patience: Duration::from_millis(500) };
    HookSpec { name, file, stage, arguments, budget, on_failure: None, trees: Vec::new() }
}

impl Rig {
    /// One hook with this text in `hook.lua`, at `stage`.
    pub(crate) fn new(stage: Stage, text: &str) -> Self {
        Self::with(|spec| HookSpec { stage: Some(stage), ..spec }, text)
    }

    /// The same with a changed specification.
    pub(crate) fn with(change: impl FnOnce(HookSpec) -> HookSpec, text: &str) -> Self {
        let folder = folder();
        let file = folder.join("hook.lua");
        std::fs::write(&file, text).unwrap();
        Self::of(vec![change(spec(file, None))], folder, WORLD).unwrap()
    }

    /// Hooks whose files exist.
    pub(crate) fn of(specs: Vec<HookSpec>, folder: PathBuf, world: &str) -> Result<Self, String> {
        let registry = Arc::new(Registry::anonymous(4096).unwrap());
        let mut set = None;
        let hooks = |frame_pool: &Arc<FramePool>| {
            let world = HookWorld { frame_pool: frame_pool.clone(), registry: registry.clone() };
            let made = HookSet::new(world).unwrap();
            let ports = ["left", "right", "other"].map(String::from).to_vec();
            let started = made.start(&specs, 1, ports);
            let threads = [made.worker(0), made.slow()];
            set = Some(started.map(|()| made));
            threads
        };
        let lab = Lab::with_hooks(world, hooks);
        match set.unwrap() {
            Ok(set) => Ok(Self { lab, set: Arc::new(set), registry, specs, folder }),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Writes another text and reloads the hook.
    pub(crate) fn reload(&mut self, text: &str) -> Result<(), String> {
        std::fs::write(self.folder.join("hook.lua"), text).unwrap();
        let (set, specs) = (self.set.clone(), self.specs.clone());
        let reloading = std::thread::spawn(move || set.reload(&specs).map_err(|error| error.to_string()));
        // A worker installs new versions while it runs.
        while !reloading.is_finished() {
            self.lab.run();
        }
        reloading.join().unwrap()
    }

    /// A counter of the hook, summed over threads.
    pub(crate) fn count(&self, name: &str) -> u64 {
        let ends = format!("/{name}");
        let ours = |name: &String| name.starts_with("hook/") && name.ends_with(&ends);
        self.registry.counters().into_iter().filter(|(name, _)| ours(name)).map(|(_, value)| value).sum()
    }

    pub(crate) fn report(&self) -> HookReport {
        self.set.report().remove(0)
    }

    pub(crate) fn news(&self) -> Vec<HookNews> {
        self.set.supervise(OnHang::Interrupt)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // Closes versions that were replaced, which frees their frames.
        self.set.supervise(OnHang::Interrupt);
        let _gone = std::fs::remove_dir_all(&self.folder);
    }
}
