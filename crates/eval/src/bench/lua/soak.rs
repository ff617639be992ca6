//! `bench lua --soak TIME`: does a Lua program stay as fast as it was, over minutes and hours?
//!
//! A machine that others use is faster in one minute and slower in the next. So the same network in Rust, which has no
//! just-in-time compiler and no garbage, takes turns with the one in Lua, 20 ms each, and the result is the ratio of
//! the two by minute: the last minute compared with the second one, when everything is warm. A burst of other work
//! affects both turns of a pair, or makes one pair an outlier, so the median of a minute's pairs is taken.

use std::time::{Duration, Instant};

use bm_graph::Engine;
use bm_lua::{JitReport, LuaError, PreparedFunction, State};

use super::{BREATHS, CASES, Case, turn};
use crate::alternate::{Sample, Series, thread_time};
use crate::bench::{BenchError, Options};
use crate::report::{Align, Row, aligned};

/// One turn of a subject.
const TURN: Duration = Duration::from_millis(20);
/// What a row of the table is about.
const MINUTE: Duration = Duration::from_secs(60);

/// A minute of a case.
#[derive(Clone, Debug, PartialEq)]
pub struct Minute {
    pub case: &'static str,
    /// Which minute of the run, from 1.
    pub minute: u64,
    /// Packets a second in Lua and in Rust, for each turn.
    pub rates: [Vec<f64>; 2],
    /// What the compiler and the collector have done since the start.
    pub jit: JitReport,
    /// Memory of the process that is in RAM, in bytes.
    pub resident_bytes: u64,
}

/// What is measured: both networks, and what they did in this minute.
struct Subject {
    case: &'static Case,
    program: PreparedFunction,
    state: State,
    engine: Engine,
    packets: u64,
    failed: Option<LuaError>,
    rates: [Vec<f64>; 2],
}

impl Subject {
    fn new(case: &'static Case) -> Result<Self, BenchError> {
        let (state, program) = super::in_lua(case)?;
        let (engine, packets) = super::in_rust(case)?;
        Ok(Self { case, program, state, engine, packets, failed: None, rates: [Vec::new(), Vec::new()] })
    }

    /// A pair of turns; the order changes from pair to pair.
    fn turns(&mut self) {
        let (program, failed) = (&self.program, &mut self.failed);
        let mut lua = || rate(|| turn(program, failed));
        let (engine, packets) = (&mut self.engine, self.packets);
        let mut rust = || {
            rate(|| {
                (0..BREATHS).for_each(|_| _ = engine.breathe());
                BREATHS * packets
            })
        };
        let (lua, rust) = if self.rates[0].len().is_multiple_of(2) {
            let first = lua();
            (first, rust())
        } else {
            let first = rust();
            (lua(), first)
        };
        self.rates[0].push(lua);
        self.rates[1].push(rust);
    }

    fn minute(&mut self, minute: u64) -> Minute {
        let rates = std::mem::take(&mut self.rates);
        let (case, jit) = (self.case.name, self.state.jit());
        Minute { case, minute, rates, jit, resident_bytes: resident_bytes() }
    }
}

/// Items a second of this thread's CPU time.
fn rate(mut work: impl FnMut() -> u64) -> f64 {
    let (wall, start, mut items) = (Instant::now(), thread_time(), 0);
    while wall.elapsed() < TURN {
        items += work();
    }
    items as f64 / (thread_time() - start).as_secs_f64().max(1e-9)
}

/// Runs the selected cases in turn for `time`; `each` is called with every minute when it is over.
///
/// # Errors
/// See [`BenchError`].
pub fn soak(
    options: &Options,
    time: Duration,
    mut each: impl FnMut(&[Minute]),
) -> Result<Vec<Minute>, BenchError> {
    let cases = CASES.iter().filter(|case| options.wants(case.name));
    let mut subjects = cases.map(Subject::new).collect::<Result<Vec<_>, _>>()?;
    if subjects.is_empty() {
        return Err(BenchError::NoCase { wanted: options.case.clone().unwrap_or_default() });
    }
    super::settle();
    let mut all = Vec::new();
    let begin = Instant::now();
    let minutes = time.as_secs().div_ceil(MINUTE.as_secs()).max(1);
    for minute in 1..=minutes {
        let end = begin + (MINUTE * minute as u32).min(time);
        while Instant::now() < end || subjects.iter().any(|subject| subject.rates[0].is_empty()) {
            subjects.iter_mut().for_each(Subject::turns);
        }
        if let Some(error) = subjects.iter_mut().find_map(|subject| subject.failed.take()) {
            return Err(BenchError::build("the run in Lua")(error));
        }
        let now: Vec<_> = subjects.iter_mut().map(|subject| subject.minute(minute)).collect();
        each(&now);
        all.extend(now);
    }
    subjects.iter_mut().for_each(|subject| _ = subject.engine.stop());
    Ok(all)
}

impl Minute {
    fn measured(&self, subject: usize) -> Series {
        let rates = self.rates[subject].iter();
        let samples = rates.map(|&rate| Sample { items: 1, rate, ns: 1e9 / rate.max(1e-9) }).collect();
        Series { subject: ["lua", "rust"][subject].into(), samples }
    }

    /// Packets a second, the median of the turns: Lua's and Rust's.
    fn medians(&self) -> [f64; 2] {
        [0, 1].map(|subject| self.measured(subject).rates().median)
    }

    /// Lua's median over Rust's.
    pub fn ratio_of_medians(&self) -> f64 {
        let [lua, rust] = self.medians();
        lua / rust.max(1e-9)
    }

    /// The median of the ratios of pairs of turns, Lua's over Rust's.
    pub fn ratio(&self) -> f64 {
        let [lua, rust] = &self.rates;
        let mut ratios: Vec<_> = lua.iter().zip(rust).map(|(lua, rust)| lua / rust.max(1e-9)).collect();
        ratios.sort_by(f64::total_cmp);
        match ratios.len() {
            0 => 0.0,
            pairs => (ratios[(pairs - 1) / 2] + ratios[pairs / 2]) / 2.0,
        }
    }

    /// Both subjects as rows of `bench lua`, with further details of the minute.
    pub fn rows(&self) -> [Row; 2] {
        [0, 1].map(|subject| {
            let row = Row::mpps("lua", self.case, &self.measured(subject)).with("minute", self.minute);
            if subject == 1 {
                return row;
            }
            row.with("ratio", self.ratio())
                .with("ratio_of_medians", self.ratio_of_medians())
                .with("pairs", self.rates[0].len())
                .with("heap_bytes", self.jit.heap_bytes)
                .with("resident_bytes", self.resident_bytes)
                .with("traces", self.jit.traces)
                .with("aborts", self.jit.aborts)
                .with("flushes", self.jit.flushes)
                .with("code_bytes", self.jit.code_bytes)
        })
    }

    fn line(&self) -> Vec<String> {
        let [lua, rust] = self.medians().map(|rate| format!("{:.1}", rate / 1e6));
        let JitReport { traces, aborts, flushes, code_bytes, heap_bytes } = self.jit;
        let compiler = [traces, aborts, flushes].map(|count| count.to_string());
        let memory = [code_bytes, heap_bytes, self.resident_bytes].map(|bytes| (bytes / 1024).to_string());
        let ratios = [self.ratio_of_medians(), self.ratio()].map(|ratio| format!("{ratio:.3}"));
        let pairs = self.rates[0].len().to_string();
        let head = [self.case.into(), self.minute.to_string(), pairs, lua, rust].into_iter().chain(ratios);
        head.chain(compiler).chain(memory).collect()
    }
}

/// The minutes as a table, and for each case its last minute compared with its second.
pub fn soak_table(minutes: &[Minute]) -> String {
    let head = [
        "case",
        "minute",
        "pairs",
        "lua mpps",
        "rust mpps",
        "medians",
        "paired",
        "traces",
        "aborts",
        "flushes",
        "code KiB",
        "heap KiB",
        "RSS KiB",
    ];
    let mut lines = vec![head.map(String::from).to_vec()];
    lines.extend(minutes.iter().map(Minute::line));
    let columns: Vec<_> =
        head.iter().map(|name| if *name == "case" { Align::Left } else { Align::Right }).collect();
    let mut text = aligned(&lines, &columns);
    for second in minutes.iter().filter(|minute| minute.minute == 2) {
        let mut of_case = minutes.iter().filter(|minute| minute.case == second.case);
        let Some(last) = of_case.next_back() else { continue };
        text += &format!(
            "{}: minute {} has {:.1} % of minute 2's paired ratio, and {:.1} % of its rate in Lua\n",
            second.case,
            last.minute,
            100.0 * last.ratio() / second.ratio().max(1e-9),
            100.0 * last.medians()[0] / second.medians()[0].max(1e-9)
        );
    }
    text
}

/// Resident memory, as the kernel counts it.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: u64 = line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default();
    kib * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minute(minute: u64, lua: f64) -> Minute {
        // Pairs of 0.5, 2 and 1 times `lua` over 50; by medians 2 over 1.
        let rates = [vec![lua, 3.0 * lua, 2.0 * lua], vec![100e6, 75e6, 100e6]];
        let jit = JitReport { traces: 9, aborts: 1, flushes: 0, code_bytes: 2048, heap_bytes: 4096 };
        Minute { case: "forward", minute, rates, jit, resident_bytes: 1 << 20 }
    }

    #[test]
    fn compares_the_last_minute_with_the_second() {
        let minutes = [minute(1, 10e6), minute(2, 50e6), minute(3, 49e6)];
        assert_eq!((minutes[1].ratio(), minutes[1].ratio_of_medians()), (1.0, 1.0));
        let even = Minute { rates: [vec![1.0, 4.0], vec![1.0, 2.0]], ..minute(1, 1.0) };
        assert_eq!(even.ratio(), 1.5);
        let text = soak_table(&minutes);
        assert!(
            text.contains("forward       3      3      98.0      100.0    0.980   0.980       9"),
            "{text}"
        );
        let end = "forward: minute 3 has 98.0 % of minute 2's paired ratio, and 98.0 % of its rate in Lua\n";
        assert!(text.ends_with(end), "{text}");
        let [lua, rust] = minutes[2].rows();
        assert_eq!((lua.median, rust.median, lua.detail["heap_bytes"].as_u64()), (98.0, 100.0, Some(4096)));
        assert_eq!((lua.detail["ratio"].as_f64(), lua.detail["pairs"].as_u64()), (Some(0.98), Some(3)));
    }

    #[test]
    fn runs_the_selected_cases() {
        let options = Options { case: Some("source-sink".into()), ..Options::default() };
        let minutes = soak(&options, Duration::from_millis(1), |_| {}).unwrap();
        assert_eq!((minutes.len(), minutes[0].case, minutes[0].minute), (1, "source-sink", 1));
        assert!(minutes[0].ratio() > 0.0 && minutes[0].jit.traces > 0 && minutes[0].jit.code_bytes > 0);
        assert!(minutes[0].jit.heap_bytes > 0 && minutes[0].resident_bytes > 0);
        let none = Options { case: Some("nothing".into()), ..Options::default() };
        assert!(matches!(soak(&none, Duration::ZERO, |_| {}), Err(BenchError::NoCase { .. })));
    }
}
