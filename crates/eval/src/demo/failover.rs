//! What a thin, steady flow sees when the daemon is killed, started again, and ended in order.

use std::time::Duration;

use bm_testbed::interrupt;
use bm_testbed::traffic::{Paced, Sink, SinkMode};

use super::daemon::{Daemon, ForwardingPath};
use super::results::Gap;
use super::scene::Scene;
use super::story::Story;
use super::{DemoError, DemoOptions};

/// Before the event, for the flow to be steady; after it, for all effects to show; at last, for packets that
/// are still on their way.
const LEAD: Duration = Duration::from_millis(500);
const TAIL: Duration = Duration::from_millis(1500);
const DRAIN: Duration = Duration::from_millis(50);

/// Kills, restarts and stops the daemon while the flow goes on.
pub fn run(
    options: &DemoOptions,
    scene: &Scene,
    daemon: &mut Daemon,
    story: &mut Story<'_>,
) -> Result<Vec<Gap>, DemoError> {
    let sink = Sink::attach(&scene.programs, &scene.testbed, SinkMode::Skbs)?;
    let mut gaps = Vec::new();
    let mut event = |name, title, does: &mut dyn FnMut() -> Result<(), DemoError>| {
        let gap = story.step(&format!("{title} while 10,000 packets a second flow"), || {
            observe(scene, &sink, name, title, does)
        })?;
        story.note(&gap.line())?;
        gaps.push(gap);
        Ok::<_, DemoError>(())
    };
    event("kill-9", "kill -9 brickmoon", &mut || Ok(daemon.kill()?))?;
    event("restart", "start it again", &mut || {
        *daemon = scene.daemon(options, ForwardingPath::User)?;
        Ok(())
    })?;
    event("stop", "stop it", &mut || Ok(daemon.stop()?))?;
    Ok(gaps)
}

fn observe(
    scene: &Scene,
    sink: &Sink<'_>,
    name: &'static str,
    title: &'static str,
    does: &mut dyn FnMut() -> Result<(), DemoError>,
) -> Result<Gap, DemoError> {
    sink.reset()?;
    sink.track(&scene.thin);
    let paced = Paced::start(&scene.testbed, &scene.thin)?;
    interrupt::sleep(LEAD)?;
    does()?;
    interrupt::sleep(TAIL)?;
    let sent = paced.stop()?;
    interrupt::sleep(DRAIN)?;
    let (arrived, tracked) = (sink.arrived()?, sink.tracked());
    Ok(Gap {
        name,
        title,
        longest: tracked.gap_max,
        senders: sent.gap_max,
        sent: sent.packets,
        lost: sent.packets.saturating_sub(arrived.good + arrived.bad()),
    })
}
