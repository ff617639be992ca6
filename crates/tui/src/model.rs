//! Two samples, from which rates follow, and the histories of some of them.
//!
//! Time is an argument: how long ago `top` was started.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crate::history::History;
use crate::number::time;
use crate::sample::Sample;

/// How long a restart of the daemon is reported.
const NOTICE: Duration = Duration::from_secs(10);

/// What is known about the daemon.
#[derive(Debug, Default)]
pub struct Model {
    latest: Option<TimedSample>,
    previous: Option<TimedSample>,
    histories: BTreeMap<String, History>,
    /// Since when there has been no answer, and why.
    silent: Option<(Duration, String)>,
    notice: Option<(Duration, String)>,
}

#[derive(Debug)]
struct TimedSample {
    at: Duration,
    sample: Sample,
    counters: HashMap<String, u64>,
}

impl Model {
    /// Adds a sample, or why there is none.
    pub fn add(&mut self, at: Duration, result: Result<Sample, String>) {
        match result {
            Ok(sample) => self.add_sample(at, sample),
            Err(why) => {
                let since = self.silent.take().map_or(at, |(since, _)| since);
                self.silent = Some((since, why));
            }
        }
    }

    fn add_sample(&mut self, at: Duration, sample: Sample) {
        self.silent = None;
        let counters = sample.counters();
        self.previous = self.latest.take().filter(|before| !self.restarted(at, before, &sample));
        self.latest = Some(TimedSample { at, sample, counters });
        self.remember();
    }

    /// Whether another process answers than before; then there is nothing to compare with.
    fn restarted(&mut self, at: Duration, before: &TimedSample, now: &Sample) -> bool {
        let (old, new) = (&before.sample.status, &now.status);
        let restarted = old.pid != new.pid || new.uptime_s < old.uptime_s;
        if restarted {
            let text = format!("restarted: process {}, previously {}", new.pid, old.pid);
            self.notice = Some((at, text));
            self.histories.clear();
        }
        restarted
    }

    fn remember(&mut self) {
        let Some(taken) = &self.latest else { return };
        let ports = taken.sample.ports.ports.iter().map(|port| format!("port/{}/received", port.name));
        let drops = taken.sample.drops.drops.iter().map(|drop| format!("drop/{}", drop.reason));
        let workers =
            taken.sample.workers.workers.iter().map(|worker| format!("worker/{}/moves", worker.worker));
        let links = taken.sample.links.links.iter().map(|link| crate::sample::link_key(link) + "/tx");
        let keys: Vec<_> = ports.chain(drops).chain(workers).chain(links).collect();
        self.histories.retain(|key, _| keys.contains(key));
        for key in keys {
            if let Some(rate) = self.rate(&key) {
                self.histories.entry(key).or_default().push(rate);
            }
        }
    }

    /// The latest sample.
    pub fn sample(&self) -> Option<&Sample> {
        self.latest.as_ref().map(|taken| &taken.sample)
    }

    /// How much a counter has grown per second between the last two samples; `None` if it was not in both.
    pub fn rate(&self, key: &str) -> Option<f64> {
        let (latest, previous) = (self.latest.as_ref()?, self.previous.as_ref()?);
        let seconds = latest.at.checked_sub(previous.at)?.as_secs_f64();
        let grown = latest.counters.get(key)?.checked_sub(*previous.counters.get(key)?)?;
        (seconds > 0.0).then(|| grown as f64 / seconds)
    }

    /// The rates of an object's counters, whose keys begin with `object` and a slash.
    pub fn rates_of(&self, object: &str) -> Rates<'_> {
        Rates { model: self, object: object.to_owned() }
    }

    /// The history of a rate as bars.
    pub fn bars(&self, key: &str, width: usize) -> String {
        self.histories.get(key).map(|history| history.bars(width)).unwrap_or_default()
    }

    /// What the user should know about the connection: no answer, or a restart.
    pub fn remark(&self, now: Duration) -> Option<String> {
        if let Some((since, why)) = &self.silent {
            let silent = time(now.saturating_sub(*since).as_secs());
            return Some(format!("no answer for {silent}, trying again: {why}"));
        }
        let (at, text) = self.notice.as_ref()?;
        (now.saturating_sub(*at) < NOTICE).then(|| text.clone())
    }

    /// Whether the last request was answered.
    pub fn answers(&self) -> bool {
        self.silent.is_none() && self.latest.is_some()
    }
}

/// The rates of an object's counters.
pub struct Rates<'m> {
    model: &'m Model,
    object: String,
}

impl Rates<'_> {
    /// As [`Model::rate`], by the counter's name.
    pub fn get(&self, counter: &str) -> Option<f64> {
        self.model.rate(&format!("{}/{counter}", self.object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_api::{Account, Port, Ports, Status};

    fn sample(pid: u32, uptime_s: u64, received: u64) -> Sample {
        let account = Account { received, ..Account::default() };
        let port = Port { name: "a".into(), account, ..Port::default() };
        let status = Status { pid, uptime_s, ..Status::default() };
        Sample { status, ports: Ports { ports: vec![port] }, ..Sample::default() }
    }

    const KEY: &str = "port/a/received";

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn rates_are_per_second_and_need_two_samples() {
        let mut model = Model::default();
        assert!(model.sample().is_none() && model.rate(KEY).is_none());
        model.add(at(0), Ok(sample(1, 10, 1000)));
        assert_eq!(model.rate(KEY), None);
        model.add(at(2), Ok(sample(1, 12, 1500)));
        assert_eq!(model.rate(KEY), Some(250.0));
        assert_eq!(model.rate("port/b/received"), None);
        // A counter that has become smaller has no rate.
        model.add(at(3), Ok(sample(1, 13, 5)));
        assert_eq!(model.rate(KEY), None);
        assert_eq!(model.bars(KEY, 10), "█");
    }

    #[test]
    fn a_restart_is_reported_and_gives_no_rates() {
        let mut model = Model::default();
        model.add(at(0), Ok(sample(1, 10, 1000)));
        model.add(at(1), Ok(sample(1, 11, 1100)));
        model.add(at(2), Err("connection refused".into()));
        model.add(at(6), Err("connection refused".into()));
        assert_eq!(model.remark(at(7)).unwrap(), "no answer for 5 s, trying again: connection refused");
        assert!(!model.answers());
        assert_eq!(model.rate(KEY), Some(100.0), "the last figures stay");
        model.add(at(8), Ok(sample(2, 0, 3000)));
        assert_eq!(model.rate(KEY), None);
        assert_eq!(model.bars(KEY, 10), "");
        assert_eq!(model.remark(at(9)).unwrap(), "restarted: process 2, previously 1");
        assert_eq!(model.remark(at(30)), None);
    }
}
