//! Hooks on two workers, each a thread with its own Lua state: both see the whole of what one publishes, memory is
//! shared, and a worker that hangs does not stop the other.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bm_frame::{Burst, FramePool, Freelist, Mask};
use bm_graph::{HookBurst, HookRoom, NoRoutes, Stage, StageHook};
use bm_lua::hook::{Budget, Health, HookNews, HookSet, HookSpec, HookWorld, OnFailure, OnHang};
use bm_stats::Registry;

/// A packet that begins with 1 publishes a table of its second byte. A packet that begins with 2 is dropped if the
/// table published last says so, and counted in shared memory. A packet that begins with 3 hangs.
const HOOK: &str = r#"
local hook = require("brickmoon.hook")
local told, calls = hook.reason("told"), hook.memory("calls", "uint32_t", 1)
return { ingress = function (burst)
   for i = 0, burst.count - 1 do
      local d = burst.packet[i].data
      if d[0] == 1 then hook.publish("drops", { [d[1]] = true, n = d[1] }) end
      while d[0] == 3 do end
      local drops = hook.shared("drops")
      assert(not drops or drops[drops.n], "half of a change")
      if d[0] == 2 and drops and drops[d[1]] and drops.n == d[1] then
         calls[0] = calls[0] + 1
         -- The count of all workers together, where the test can read it.
         d[2] = calls[0]
         burst.drop(i, told)
      end
   end
end }
"#;

struct Rig {
    set: Arc<HookSet>,
    frame_pool: Arc<FramePool>,
    registry: Arc<Registry>,
    folder: PathBuf,
}

impl Rig {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("bm-sharing-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("hook.lua");
        std::fs::write(&file, HOOK).unwrap();
        let frame_pool = FramePool::new(4096, 2048).unwrap();
        let registry = Arc::new(Registry::anonymous(4096).unwrap());
        let set =
            HookSet::new(HookWorld { frame_pool: frame_pool.clone(), registry: registry.clone() }).unwrap();
        let budget = Budget { cycles: 0, percent: 25, patience: Duration::from_secs(3600) };
        let spec = HookSpec {
            name: "hook".into(),
            file,
            stage: None,
            arguments: serde_json::Value::Null,
            budget,
            on_failure: Some(OnFailure::Pass),
            trees: Vec::new(),
        };
        set.start(&[spec], 2, vec!["left".into()]).unwrap();
        Self { set: Arc::new(set), frame_pool, registry, folder }
    }

    fn worker(&self, index: usize) -> Worker {
        let mut hook = self.set.worker(index).unwrap();
        hook.begin();
        Worker { hook, frames: Freelist::new(self.frame_pool.clone(), 128), room: HookRoom::new() }
    }

    /// A counter of the hook, summed over threads.
    fn count(&self, name: &str) -> u64 {
        let counters = self.registry.counters();
        counters
            .iter()
            .filter(|(other, _)| other.ends_with(&format!("/{name}")))
            .map(|(_, value)| value)
            .sum()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.folder);
    }
}

/// One worker's hooks, which get bursts of one packet.
struct Worker {
    hook: Box<dyn StageHook>,
    frames: Freelist,
    room: Box<HookRoom>,
}

impl Worker {
    /// Whether a packet with these first bytes passes, and its third byte then.
    fn pass(&mut self, kind: u8, number: u8) -> (bool, u8) {
        let mut bytes = [0; 60];
        bytes[..2].copy_from_slice(&[kind, number]);
        let mut frames = Burst::new();
        frames.push(self.frames.allocate_with(&bytes).unwrap()).unwrap();
        let mut mask = Mask::first(1);
        let mut burst = HookBurst {
            frames: frames.places_mut(),
            mask: &mut mask,
            room: &mut self.room,
            ports: &[],
            port: 0,
            family: 0,
            now_ns: 0,
            routes: &NoRoutes,
        };
        self.hook.begin();
        self.hook.run(Stage::Ingress, &mut burst);
        let third = frames.get(0).unwrap().data()[2];
        frames.free_all(&mut self.frames);
        (mask.has(0), third)
    }
}

#[test]
fn both_workers_see_what_one_publishes() {
    let rig = Rig::new("publish");
    let [mut first, mut second] = [rig.worker(0), rig.worker(1)];
    assert_eq!(second.pass(2, 7), (true, 0), "nothing was published yet");
    // On a thread of its own, like a worker.
    std::thread::scope(|scope| _ = scope.spawn(|| first.pass(1, 7)).join().unwrap());
    assert_eq!((first.pass(2, 7), second.pass(2, 7)), ((false, 1), (false, 2)), "one table, one memory");
    std::thread::scope(|scope| _ = scope.spawn(|| second.pass(1, 9)).join().unwrap());
    assert_eq!((first.pass(2, 7), first.pass(2, 9), second.pass(2, 9)), ((true, 0), (false, 3), (false, 4)));
    assert_eq!((rig.count("drop/told"), rig.count("errors")), (4, 0));
}

#[test]
fn readers_see_one_table_or_the_other_while_both_workers_publish() {
    let rig = Rig::new("race");
    let workers = [rig.worker(0), rig.worker(1)];
    std::thread::scope(|scope| {
        for (number, mut worker) in (1u8..).zip(workers) {
            scope.spawn(move || {
                for _ in 0..2000 {
                    worker.pass(1, number);
                    worker.pass(2, number);
                }
            });
        }
    });
    assert_eq!(rig.count("errors"), 0);
}

#[test]
fn a_worker_that_hangs_is_freed_soon_while_the_other_keeps_running() {
    let rig = Rig::new("hang");
    let [mut first, mut second] = [rig.worker(0), rig.worker(1)];
    let hanging = std::thread::spawn(move || {
        let passed = first.pass(3, 0);
        (passed, first)
    });
    let begin = Instant::now();
    let news = loop {
        let news = rig.set.supervise(OnHang::Interrupt);
        if !news.is_empty() {
            break news;
        }
        // Meanwhile the other worker forwards.
        if rig.set.report()[0].health == Health::Good {
            assert_eq!(second.pass(0, 0), (true, 0));
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    println!("interrupted after {:?}", begin.elapsed());
    let ((passed, _), mut first) = hanging.join().unwrap();
    assert!(passed, "the packet must pass as if there were no hook");
    let [HookNews::Retired { health: Health::Hung, .. }] = &news[..] else { panic!("{news:?}") };
    assert_eq!((rig.count("hangs"), rig.set.report()[0].running), (1, None));
    assert_eq!(
        (first.pass(3, 0).0, second.pass(3, 0).0),
        (true, true),
        "the hook must be off on both workers"
    );
}
