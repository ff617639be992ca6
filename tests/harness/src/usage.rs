//! The resources that a process uses according to `/proc`, and whether they grow.

use std::fmt;
use std::time::Duration;

/// The resources in use at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Memory in KiB, with its share of memory that it shares with others.
    pub pss_kib: u64,
    /// Memory in KiB, with all memory that it shares with others.
    pub rss_kib: u64,
    /// Open descriptors.
    pub descriptors: u64,
    /// Memory of BPF maps and programs in the kernel, in KiB.
    pub bpf_kib: u64,
    /// Threads.
    pub threads: u64,
    /// CPU time so far.
    pub processor: Duration,
}

impl Usage {
    /// Of this process, now.
    pub fn of(process: u32) -> std::io::Result<Self> {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{process}/{file}"));
        let (memory, status) = (read("smaps_rollup")?, read("status")?);
        let descriptors = std::fs::read_dir(format!("/proc/{process}/fd"))?.count() as u64;
        Ok(Self {
            pss_kib: field(&memory, "Pss:"),
            rss_kib: field(&memory, "Rss:"),
            descriptors,
            bpf_kib: bpf_memory(process)? / 1024,
            threads: field(&status, "Threads:"),
            processor: processor(&read("stat")?),
        })
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pss_kib, rss_kib, descriptors, bpf_kib, threads, .. } = self;
        write!(
            f,
            "PSS {pss_kib} KiB, RSS {rss_kib} KiB, BPF {bpf_kib} KiB, {descriptors} descriptors, {threads} threads"
        )
    }
}

/// The number after a name at the start of a line.
fn field(text: &str, name: &str) -> u64 {
    let value = text.lines().find_map(|line| line.strip_prefix(name));
    value.and_then(|value| value.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}

/// Memory of the maps and programs that the process has open, in bytes. Each counts once.
fn bpf_memory(process: u32) -> std::io::Result<u64> {
    let mut seen = std::collections::BTreeMap::new();
    for entry in std::fs::read_dir(format!("/proc/{process}/fdinfo"))?.flatten() {
        // It may be closed by now.
        let Ok(text) = std::fs::read_to_string(entry.path()) else { continue };
        for kind in ["map_id:", "prog_id:"] {
            if text.contains(kind) {
                seen.insert((kind, field(&text, kind)), field(&text, "memlock:"));
            }
        }
    }
    Ok(seen.values().sum())
}

/// CPU time in user and system mode, from `/proc/PID/stat`.
fn processor(stat: &str) -> Duration {
    // The name before the last parenthesis may contain anything. Fields 14 and 15 are in ticks of 10 ms.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let ticks: u64 =
        fields.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    Duration::from_millis(10 * ticks)
}

/// How much a value grows over the time of the samples, by linear regression. Samples are pairs of a time and a
/// value. Zero for fewer than two.
pub fn growth(samples: &[(f64, f64)]) -> f64 {
    let count = samples.len() as f64;
    let [Some(first), Some(last)] = [samples.first(), samples.last()] else { return 0.0 };
    let mean = |of: fn(&(f64, f64)) -> f64| samples.iter().map(of).sum::<f64>() / count;
    let (time, value) = (mean(|sample| sample.0), mean(|sample| sample.1));
    let products: f64 = samples.iter().map(|sample| (sample.0 - time) * (sample.1 - value)).sum();
    let squares: f64 = samples.iter().map(|sample| (sample.0 - time).powi(2)).sum();
    if squares == 0.0 { 0.0 } else { products / squares * (last.0 - first.0) }
}

/// How many parts of a run [`rises`] compares.
const PARTS: usize = 12;
/// The least number of pairs of parts in which the later is higher, minus those in which it is lower (Kendall's S), that
/// counts as a trend. One run in twenty without a trend has as many; the standard deviation for twelve values is 14.6.
const PAIRS: i32 = 25;

/// Whether values rise over a run by more than chance explains: the Mann-Kendall trend test over the medians of twelve
/// parts. With a leak nearly every later part is higher; with memory that fluctuates it is not, whatever the slope of
/// the regression line. `false` for fewer than twelve samples.
pub fn rises(samples: &[(f64, f64)]) -> bool {
    if samples.len() < PARTS {
        return false;
    }
    let medians: Vec<f64> = (0..PARTS)
        .map(|part| {
            let bounds = [part, part + 1].map(|edge| edge * samples.len() / PARTS);
            let mut values: Vec<f64> = samples[bounds[0]..bounds[1]].iter().map(|sample| sample.1).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        })
        .collect();
    let pairs = (0..PARTS).flat_map(|at| (at + 1..PARTS).map(move |later| (at, later)));
    pairs.map(|(one, later)| medians[later].total_cmp(&medians[one]) as i32).sum::<i32>() >= PAIRS
}

/// Frames that the full backlogs of this machine's processors did not take so far.
pub fn backlog_drops() -> u64 {
    /// Column of `/proc/net/softnet_stat`, in hexadecimal.
    const DROPPED: usize = 1;
    let text = std::fs::read_to_string("/proc/net/softnet_stat").unwrap_or_default();
    text.lines().filter_map(|line| u64::from_str_radix(line.split(' ').nth(DROPPED)?, 16).ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sees_files_and_memory_of_this_process() {
        let before = Usage::of(std::process::id()).expect("this process");
        let memory = vec![1u8; 64 << 20];
        let files: Vec<_> = (0..100).map(|_| std::fs::File::open("/dev/null").expect("a file")).collect();
        let after = Usage::of(std::process::id()).expect("this process");
        // Other tests of this process run meanwhile.
        assert!(after.descriptors >= before.descriptors + 50, "{before} {after}");
        assert!(after.pss_kib >= before.pss_kib + (32 << 10), "{before} {after}");
        assert!(after.threads >= 1 && after.rss_kib >= after.pss_kib);
        drop((memory, files));
    }

    #[test]
    fn growth_is_that_of_the_line() {
        let line: Vec<_> = (0..11).map(|time| (f64::from(time), 5.0 + 3.0 * f64::from(time))).collect();
        assert!((growth(&line) - 30.0).abs() < 1e-9);
        let flat: Vec<_> = (0..1000).map(|time| (f64::from(time), f64::from(100 + time % 2))).collect();
        assert!(growth(&flat).abs() < 0.01, "{}", growth(&flat));
        assert_eq!((growth(&[]), growth(&[(1.0, 2.0)])), (0.0, 0.0));
    }

    #[test]
    fn a_leak_is_a_trend_and_noise_is_not() {
        // Noise of a tenth, from a hash of the time.
        let noise = |time: u32| f64::from(time.wrapping_mul(2_654_435_761) >> 16) / 65_536.0 * 0.1;
        let of = |leak: f64| -> Vec<_> {
            (0..600).map(|time| (f64::from(time), 1.0 + noise(time) + leak * f64::from(time))).collect()
        };
        assert!(!rises(&of(0.0)) && !rises(&of(-1e-3)));
        assert!(rises(&of(0.05 / 600.0)), "five percent over the run, under noise of ten");
        // Slow waves of three percent, of which the last is the highest.
        let waves: Vec<_> = (0..600)
            .map(|time| {
                (f64::from(time), 1.0 + 0.03 * (f64::from(time) / 70.0).sin() * f64::from(time) / 600.0)
            })
            .collect();
        assert!(!rises(&waves));
        assert!(!rises(&of(1.0)[..5]));
    }

    #[test]
    fn a_name_with_parentheses_does_not_confuse_the_parser() {
        let stat = "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0";
        assert_eq!(processor(stat), Duration::from_secs(3));
    }
}
