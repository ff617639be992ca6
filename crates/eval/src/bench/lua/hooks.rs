//! The cases of hooks: the same hook, in Lua and in Rust, gets a burst of 256 packets in the caches again and again.
//! What is measured is the call and the hook's own work, without a router.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bm_frame::{BURST, Burst, Frame, FramePool, Freelist, Mask};
use bm_graph::{HookBurst, HookFate, HookRoom, NoRoutes, Stage, StageHook, Stages};
use bm_lua::hook::{Budget, HookSet, HookSpec, HookWorld};
use bm_stats::Registry;

use crate::alternate::{Turns, alternate};
use crate::bench::BenchError;
use crate::report::Row;

/// Number of bursts per call of a subject.
const BURSTS: u64 = 500;
/// Room for the counters of a hook, with some to spare.
const COUNTERS: usize = 1024;
/// Destination ports of the packets, used in turn; every second packet is TCP, the others are UDP.
const PORTS: [u16; 8] = [53, 80, 443, 443, 8080, 123, 22, 5060];

/// A hook in Lua, and whether the same hook in Rust drops a packet.
pub(super) struct Case {
    pub name: &'static str,
    lua: &'static str,
    rust: Option<fn(&[u8]) -> bool>,
}

/// All cases of hooks.
pub(super) const CASES: [Case; 3] = [
    Case { name: "hook-empty", lua: "return { ingress = function (burst) end }", rust: None },
    Case { name: "hook-acl", lua: include_str!("hook_acl.lua"), rust: Some(|packet| port(packet) == 23) },
    Case {
        name: "filter-tcp80",
        lua: include_str!("filter_tcp80.lua"),
        rust: Some(|packet| is_first_tcp(packet) && port(packet) == 80),
    },
];

/// Hooks that do nothing, at the stages behind the first.
const LATER: [Case; 2] = [
    Case { name: "hook-lookup", lua: "return { lookup = function (burst) end }", rust: None },
    Case { name: "hook-egress", lua: "return { egress = function (burst) end }", rust: None },
];

/// The destination port of a packet whose header is the shortest.
fn port(packet: &[u8]) -> u16 {
    packet.get(36..38).map_or(0, |port| u16::from_be_bytes([port[0], port[1]]))
}

/// Whether it is IPv4 with TCP, and no later fragment, in a header of 20 bytes.
fn is_first_tcp(packet: &[u8]) -> bool {
    packet.first_chunk().is_some_and(|head: &[u8; 34]| {
        head[12..15] == [8, 0, 0x45] && (head[20] & 0x1f | head[21]) == 0 && head[23] == 6
    })
}

/// A hook in Rust.
struct Native(Option<fn(&[u8]) -> bool>);

impl StageHook for Native {
    fn begin(&mut self) -> Stages {
        Stages::NONE.with(Stage::Ingress)
    }

    fn run(&mut self, _stage: Stage, burst: &mut HookBurst<'_>) {
        let Some(drops) = self.0 else { return };
        for (place, frame) in burst.frames.iter().enumerate() {
            if frame.as_ref().is_some_and(|frame| drops(frame.data())) {
                burst.mask.clear(place);
                burst.room.fates[place] = HookFate::Drop;
            }
        }
    }
}

/// A folder with a hook's file, deleted when this is dropped.
struct Folder(PathBuf);

impl Folder {
    fn with(text: &str) -> std::io::Result<Self> {
        let folder = std::env::temp_dir().join(format!("bm-bench-hook-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join("hook.lua"), text)?;
        Ok(Self(folder))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

/// The packets, and what a hook decides about them.
struct Bed {
    burst: Burst,
    room: Box<HookRoom>,
    frames: Freelist,
}

impl Bed {
    fn new(frame_pool: &Arc<FramePool>) -> Self {
        let (mut frames, mut burst) = (Freelist::new(frame_pool.clone(), 2 * BURST), Burst::new());
        while let Some(frame) = frames.allocate_with(&packet(burst.len())) {
            if let Err(frame) = burst.push(frame) {
                frames.free(frame);
                break;
            }
        }
        Self { burst, room: HookRoom::new(), frames }
    }

    /// Calls a hook with the burst; returns which packets it left.
    fn run(&mut self, hook: &mut dyn StageHook) -> Mask {
        let mut mask = Mask::first(self.burst.len());
        let frames: &mut [Option<Frame>] = self.burst.places_mut();
        let (room, ports) = (&mut *self.room, &[][..]);
        let mut burst = HookBurst {
            frames,
            mask: &mut mask,
            room,
            ports,
            port: 0,
            family: 0,
            now_ns: 0,
            routes: &NoRoutes,
        };
        hook.run(Stage::Ingress, &mut burst);
        mask
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.burst.free_all(&mut self.frames);
    }
}

/// 60 bytes of TCP or UDP over IPv4.
fn packet(number: usize) -> [u8; 60] {
    let mut packet = [0; 60];
    let protocol = if number.is_multiple_of(2) { 6 } else { 17 };
    packet[..24].copy_from_slice(&[
        2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 1, 9, 8, 0, 0x45, 0, 0, 46, 0, 1, 0, 0, 64, protocol,
    ]);
    packet[26..34].copy_from_slice(&[192, 0, 2, number as u8, 198, 51, 100, 7]);
    packet[36..38].copy_from_slice(&PORTS[number / 2 % PORTS.len()].to_be_bytes());
    packet
}

/// The hook of a case, or one that does nothing at a later stage, for a router with these ports.
pub(in crate::bench) fn named(
    name: &str,
    frame_pool: &Arc<FramePool>,
    ports: &[&str],
) -> Result<(HookSet, Box<dyn StageHook>), BenchError> {
    let case = CASES.iter().chain(&LATER).find(|case| case.name == name);
    loaded(case.ok_or_else(|| BenchError::NoCase { wanted: name.into() })?, frame_pool, ports)
}

/// The hook of a case, loaded for one worker. The set must outlive it.
fn loaded(
    case: &Case,
    frame_pool: &Arc<FramePool>,
    ports: &[&str],
) -> Result<(HookSet, Box<dyn StageHook>), BenchError> {
    let folder = Folder::with(case.lua).map_err(BenchError::build("the hook's file"))?;
    let registry = Registry::anonymous(COUNTERS).map_err(BenchError::build("counters"))?;
    let world = HookWorld { frame_pool: frame_pool.clone(), registry: Arc::new(registry) };
    let set = HookSet::new(world).map_err(BenchError::build("the hook"))?;
    let file = folder.0.join("hook.lua");
    let budget = Budget { cycles: 5000, percent: 25, patience: Duration::from_secs(1) };
    let (name, arguments) = (case.name.into(), serde_json::Value::Null);
    let spec = HookSpec { name, file, stage: None, arguments, budget, on_failure: None, trees: Vec::new() };
    let ports = ports.iter().map(|port| (*port).into()).collect();
    set.start(&[spec], 1, ports).map_err(BenchError::build("the hook"))?;
    let hook = set.worker(0).ok_or_else(|| BenchError::build("the hook")("it has no worker"))?;
    Ok((set, hook))
}

/// Measures one case.
pub(super) fn measure(case: &Case, turns: Turns) -> Result<Vec<Row>, BenchError> {
    let frame_pool = FramePool::new(4096, 2048).map_err(BenchError::build("frame memory"))?;
    let (set, mut lua) = loaded(case, &frame_pool, &["left"])?;
    let (mut rust, mut beds) = (Native(case.rust), [Bed::new(&frame_pool), Bed::new(&frame_pool)]);
    lua.begin();
    let [of_lua, of_rust] = &mut beds;
    let measured = alternate(
        turns,
        &mut [("lua", &mut || turn(of_lua, &mut *lua)), ("rust", &mut || turn(of_rust, &mut rust))],
    );
    if let Some(error) = set.report().into_iter().find_map(|hook| hook.error) {
        return Err(BenchError::build("the hook in Lua")(error));
    }
    let rows = measured.iter().map(|measured| Row::mpps("lua", case.name, measured));
    Ok(rows.map(|row| row.with("frame_bytes", 60).with("burst", BURST)).collect())
}

fn turn(bed: &mut Bed, hook: &mut dyn StageHook) -> u64 {
    for _ in 0..BURSTS {
        std::hint::black_box(bed.run(hook));
    }
    BURSTS * BURST as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hooks_in_lua_and_in_rust_drop_the_same_packets() {
        let frame_pool = FramePool::new(4096, 2048).unwrap();
        for (case, left) in CASES.iter().zip([256, 256, 256 - 16]) {
            let (_set, mut lua) = loaded(case, &frame_pool, &["left"]).unwrap();
            assert!(lua.begin().has(Stage::Ingress));
            let mut bed = Bed::new(&frame_pool);
            let expected = bed.run(&mut Native(case.rust));
            assert_eq!((bed.run(&mut *lua), expected.count()), (expected, left), "{}", case.name);
        }
    }
}
