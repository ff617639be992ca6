//! What the demo has found, as a table for people and as lines for programs.

use std::time::Duration;

use crate::alternate::Series;
use crate::measure::Flow;
use crate::report::{Align, Row, aligned, json_lines};
use bm_api::number::count;

/// One kind of traffic through one router.
pub struct Outcome {
    /// As in `ipv4-full-prefix-64`.
    pub name: String,
    /// For people.
    pub title: String,
    /// Offered at less than the router can take: what counts is what is lost, not rate and time.
    pub is_light: bool,
    pub flow: Flow,
}

impl Outcome {
    /// The figures in a line.
    pub fn line(&self) -> String {
        let Self { title, flow, .. } = self;
        let rate = flow.forwarded() / 1e6;
        let mut line = match self.is_light {
            true => format!("{title:<26}  {rate:>6.3} Mpps  {:>6} lost", percent(flow.lost_share())),
            false => format!("{title:<26}  {rate:>6.3} Mpps  {:>6.2} Gbit/s", flow.wire_bits() / 1e9),
        };
        if !self.is_light && flow.core_ns() > 0.0 {
            line += &format!("  {:>5.0} ns of core a packet", flow.core_ns());
        }
        if flow.arrived.bad() > 0 {
            line += &format!("  {} WRONG: {:?}", count(flow.arrived.bad()), flow.arrived);
        }
        line
    }

    /// Rate, loss and time of core as cells of the table.
    fn cells(&self) -> [String; 3] {
        let ns = match self.flow.core_ns() {
            ns if ns > 0.0 && !self.is_light => format!("{ns:.0}"),
            _ => "-".into(),
        };
        [format!("{:.3}", self.flow.forwarded() / 1e6), percent(self.flow.lost_share()), ns]
    }

    fn row(&self, subject: &str) -> Row {
        let measured = Series { subject: subject.into(), samples: self.flow.samples.clone() };
        Row::mpps("demo", &self.name, &measured)
            .with("offered_mpps", (self.flow.offered / 1e2).round() / 1e4)
            .with("sent", self.flow.sent)
            .with("lost", self.flow.lost())
            .with("bad", self.flow.arrived.bad())
            .with("wire_gbits", (self.flow.wire_bits() / 1e6).round() / 1e3)
    }
}

/// What became of the thin flow while the daemon came or went.
pub struct Gap {
    /// As in `kill-9`.
    pub name: &'static str,
    /// For people.
    pub title: &'static str,
    /// The longest time between two arrivals.
    pub longest: Duration,
    /// The longest time between two packets when they were sent: no shorter gap is the router's.
    pub senders: Duration,
    pub sent: u64,
    pub lost: u64,
}

impl Gap {
    /// The figures in a line.
    pub fn line(&self) -> String {
        format!(
            "longest gap {:.1} ms (the longest at the sender: {:.1} ms), {} of {} packets lost",
            self.longest.as_secs_f64() * 1e3,
            self.senders.as_secs_f64() * 1e3,
            count(self.lost),
            count(self.sent)
        )
    }

    fn row(&self) -> Row {
        let ms = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
        let longest = ms(self.longest);
        Row {
            bench: "demo".into(),
            case: self.name.into(),
            subject: "brickmoon".into(),
            unit: "ms".into(),
            min: longest,
            median: longest,
            max: longest,
            ns: 0.0,
            runs: 1,
            detail: serde_json::Map::new(),
        }
        .with("senders_ms", ms(self.senders))
        .with("sent", self.sent)
        .with("lost", self.lost)
    }
}

/// Everything.
pub struct Results {
    pub linux: Vec<Outcome>,
    pub user: Vec<Outcome>,
    pub kernel: Vec<Outcome>,
    pub gaps: Vec<Gap>,
}

impl Results {
    /// One JSON object a line.
    pub fn json(&self) -> String {
        let mut rows = Vec::new();
        for ((linux, user), kernel) in self.linux.iter().zip(&self.user).zip(&self.kernel) {
            rows.extend([linux.row("linux"), user.row("brickmoon"), kernel.row("brickmoon-kernel")]);
        }
        rows.extend(self.gaps.iter().map(Gap::row));
        json_lines(&rows)
    }

    /// Linux and brickmoon's two paths side by side.
    pub fn table(&self) -> String {
        let head =
            ["", "Linux Mpps", "lost", "ns", "user Mpps", "lost", "ns", "by ns", "kernel Mpps", "lost"];
        let mut lines = vec![head.into_iter().chain(["ns", "by ns"]).map(String::from).collect()];
        for ((linux, user), kernel) in self.linux.iter().zip(&self.user).zip(&self.kernel) {
            let mut line = vec![linux.title.clone()];
            line.extend(linux.cells());
            for outcome in [user, kernel] {
                line.extend(outcome.cells());
                line.push(match linux.is_light {
                    true => "-".into(),
                    false => ratio(linux.flow.core_ns(), outcome.flow.core_ns()),
                });
            }
            lines.push(line);
        }
        let mut columns = [Align::Right; 12];
        columns[0] = Align::Left;
        let note = "\nThe generator sends more than the router can forward; packets that find the queue full are lost. ns is the\n\
                    CPU time of the router's core for one packet; by ns is Linux's time divided by that, which does not\n\
                    depend on other load.\n";
        aligned(&lines, &columns) + note
    }

    /// What happened to the thin flow.
    pub fn gaps(&self) -> String {
        let lines: Vec<_> = self.gaps.iter().map(|gap| vec![gap.title.into(), gap.line()]).collect();
        aligned(&lines, &[Align::Left, Align::Left])
    }
}

fn ratio(value: f64, base: f64) -> String {
    if value > 0.0 && base > 0.0 { format!("{:.2}", value / base) } else { "-".into() }
}

/// Two digits that mean something: 0.03 %, 1.2 %, 87 %.
fn percent(share: f64) -> String {
    match share * 100.0 {
        p if p >= 10.0 => format!("{p:.0} %"),
        p if p >= 1.0 => format!("{p:.1} %"),
        0.0 => "0 %".into(),
        p => format!("{p:.2} %"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alternate::Sample;
    use bm_testbed::traffic::Arrived;

    fn outcome(rate: f64, lost: u64) -> Outcome {
        let sample = Sample { items: 1000, rate, ns: 1e9 / rate };
        let arrived = Arrived { good: 1000, bytes: 60_000, ..Arrived::default() };
        let flow = Flow { samples: vec![sample], offered: 5e6, sent: 1000 + lost, arrived };
        let (name, title) = ("ipv4-full-prefix-64".into(), "IPv4, 64 bytes".into());
        Outcome { name, title, is_light: false, flow }
    }

    fn results() -> Results {
        let gap = Gap {
            name: "kill-9",
            title: "kill -9",
            longest: Duration::from_micros(12_340),
            senders: Duration::from_micros(210),
            sent: 20_000,
            lost: 120,
        };
        Results {
            linux: vec![outcome(0.8e6, 9_000)],
            user: vec![outcome(1.2e6, 5)],
            kernel: vec![outcome(4e6, 0)],
            gaps: vec![gap],
        }
    }

    #[test]
    fn prints_results_side_by_side() {
        let want = "                Linux Mpps  lost    ns  user Mpps    lost   ns  by ns  kernel Mpps  lost   ns  by ns\n\
                    IPv4, 64 bytes       0.800  90 %  1250      1.200  0.50 %  833   1.50        4.000   0 %  250   5.00\n";
        let table = results().table();
        assert!(table.starts_with(want), "{table}");
        let want =
            "kill -9  longest gap 12.3 ms (the longest at the sender: 0.2 ms), 120 of 20,000 packets lost\n";
        assert_eq!(results().gaps(), want);
    }

    #[test]
    fn json_can_be_parsed() {
        let text = results().json();
        let rows: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(rows.len(), 4);
        assert_eq!((&rows[0]["subject"], &rows[1]["subject"]), (&"linux".into(), &"brickmoon".into()));
        assert_eq!((&rows[1]["median"], &rows[1]["detail"]["lost"]), (&1.2.into(), &5.into()));
        assert_eq!((&rows[3]["case"], &rows[3]["unit"]), (&"kill-9".into(), &"ms".into()));
        assert_eq!((&rows[3]["median"], &rows[3]["detail"]["lost"]), (&12.34.into(), &120.into()));
    }
}
