//! Random steps by a seed. All names, prefixes, addresses and numbers come from small pools, so that steps meet: what one
//! adds, another one deletes, replaces or shadows.
//!
//! Most steps are undone some steps later, so that the router does not end up without links.

use crate::model::open;
use crate::model::step::{Kind, Step, Tool};
use bm_tests::rulesets::{self, Net, Random};
use std::collections::VecDeque;

mod filters;
mod links;
mod routes;
mod state;

/// How often each sort is chosen.
const WEIGHTS: &[(Kind, usize)] = &[
    (Kind::Link, 5),
    (Kind::Device, 2),
    (Kind::Moved, 1),
    (Kind::FarEnd, 2),
    (Kind::Address, 7),
    (Kind::Neighbor, 6),
    (Kind::Route4, 14),
    (Kind::Route6, 12),
    (Kind::Multipath, 3),
    (Kind::NextHop, 5),
    (Kind::Rule, 8),
    (Kind::Setting, 6),
    (Kind::Ruleset, 4),
    (Kind::Traffic, 2),
    (Kind::Policy, 2),
    (Kind::Filter, 5),
    (Kind::Verify, 4),
];
/// At most so many steps wait to be undone.
const WAITING_MAX: usize = 10;
/// What rulesets, filters and policies are about.
const NET: Net = Net {
    input: "r0",
    outputs: &["r1", "r2"],
    sources4: &["192.0.2.2", "172.16.1.9", "172.31.1.1"],
    targets4: &["10.9.9.9", "10.20.1.9", "10.1.1.200", "10.2.9.9"],
    sources6: &["2001:db8:1::2", "2001:db8:c000::7", "2001:db8:c001::7"],
    targets6: &["2001:db8:a000::9", "2001:db8:a101::1", "2001:db8:b000::9"],
};

/// Makes steps without end.
pub struct Generator {
    random: Random,
    /// What undoes a step, and how many steps it still waits.
    waiting: VecDeque<(usize, Step)>,
}

/// A step, and what undoes it.
pub(crate) type Undoable = (Step, Vec<Step>);

impl Generator {
    pub fn new(seed: u64) -> Self {
        Self { random: Random::from_seed(seed), waiting: VecDeque::new() }
    }

    /// The next step that is not open.
    pub fn next(&mut self) -> Step {
        loop {
            let step = self.any();
            if open::reason(&step).is_none() {
                return step;
            }
        }
    }

    fn any(&mut self) -> Step {
        self.waiting.iter_mut().for_each(|(wait, _)| *wait = wait.saturating_sub(1));
        if let Some(at) = self.waiting.iter().position(|(wait, _)| *wait == 0) {
            return self.waiting.remove(at).map(|(_, step)| step).expect("its position was found");
        }
        let (step, undo) = self.made();
        let wait = 1 + self.random.below(8);
        if self.waiting.len() > WAITING_MAX {
            self.waiting.iter_mut().for_each(|(wait, _)| *wait = 0);
        }
        self.waiting.extend(undo.into_iter().map(|step| (wait, step)));
        step
    }

    fn made(&mut self) -> Undoable {
        let total: usize = WEIGHTS.iter().map(|(_, weight)| weight).sum();
        let mut at = self.random.below(total);
        let kind = WEIGHTS.iter().find(|(_, weight)| {
            let found = at < *weight;
            at = at.saturating_sub(*weight);
            found
        });
        let (kind, random) = (kind.map_or(Kind::Verify, |(kind, _)| *kind), &mut self.random);
        match kind {
            Kind::Link => links::link(random),
            Kind::Device => links::device(random),
            Kind::Moved => links::moved(random),
            Kind::FarEnd => links::far_end(random),
            Kind::Address => state::address(random),
            Kind::Neighbor => state::neighbor(random),
            Kind::Route4 => routes::route(random, false),
            Kind::Route6 => routes::route(random, true),
            Kind::Multipath => routes::multipath(random),
            Kind::NextHop => routes::next_hop(random),
            Kind::Rule => routes::rule(random),
            Kind::Setting => state::setting(random),
            Kind::Ruleset => ruleset(random),
            Kind::Traffic => {
                let clear = "qdisc del dev r0 clsact\nqdisc del dev r1 clsact\nqdisc del dev r2 clsact\nqdisc del dev r0 root\nqdisc del dev r1 root\nqdisc del dev r2 root";
                let undo = Step::by(kind, Tool::Tc, clear);
                (Step::by(kind, Tool::Tc, traffic(random)), vec![undo])
            }
            Kind::Policy => {
                let lines = rulesets::xfrm(&NET, random);
                (Step::ip(kind, lines.trim_end()), vec![Step::ip(kind, "xfrm policy flush")])
            }
            Kind::Filter => filters::filter(random),
            Kind::Verify => (Step::by(kind, Tool::Verify, "verify"), Vec::new()),
        }
    }
}

fn ruleset(random: &mut Random) -> Undoable {
    let text = if random.one_in(4) {
        random.choice(SPECIAL_RULESETS).to_owned()
    } else {
        rulesets::nftables(&NET, random)
    };
    let text = if text.starts_with("flush") { text } else { format!("flush ruleset\n{text}") };
    (Step::by(Kind::Ruleset, Tool::Nft, text), vec![Step::by(Kind::Ruleset, Tool::Nft, "flush ruleset")])
}

/// Chains reached by maps, sets, NAT, marks that rules select by.
const SPECIAL_RULESETS: &[&str] = &[
    "table ip t {\n chain d { drop; }\n chain base { type filter hook forward priority 0; ip daddr vmap { 10.20.0.0/16 : jump d, 10.9.9.9 : drop }; }\n}\n",
    "table ip t {\n chain n { dnat to 10.9.9.77; }\n chain base { type nat hook prerouting priority dstnat; udp dport vmap { 53 : jump n }; }\n}\n",
    "table inet t {\n set s { type ipv4_addr; flags interval; elements = { 10.20.1.0/24, 10.2.9.9 }; }\n chain base { type filter hook forward priority 0; ip daddr @s counter drop; }\n}\n",
    "table inet t {\n chain base { type filter hook prerouting priority mangle; ip daddr 10.20.0.0/16 meta mark set 7; ip6 daddr 2001:db8:a020::/44 meta mark set 7; }\n}\n",
    "table inet t {\n chain base { type filter hook forward priority 0; ct state established accept; udp dport 53 drop; }\n}\n",
];

/// Filters as in the suite of rulesets, or a shaper.
fn traffic(random: &mut Random) -> String {
    let shaped = random.choice(&["r1", "r2", "r0"]);
    let text = match random.below(4) {
        0 => format!("qdisc add dev {shaped} root tbf rate 1gbit burst 1mb latency 50ms"),
        1 => format!(
            "qdisc add dev {shaped} root handle 1: htb default 1\nclass add dev {shaped} parent 1: classid 1:1 htb rate 1gbit"
        ),
        _ => rulesets::tc(&NET, random),
    };
    text.trim_end().to_owned()
}

/// Some of these attributes, each with one of its values.
fn some(random: &mut Random, one_in: usize, attributes: &[&[&str]]) -> Vec<String> {
    let mut chosen = Vec::new();
    for values in attributes {
        if random.one_in(one_in) {
            chosen.push(random.choice(values).to_owned());
        }
    }
    chosen
}
