//! Every setting of docs/settings.md that is not without effect, changed to another value: for a set of packets each
//! subject does what Linux alone does.
//!
//! The page is made from the list in `bm-netlink`, so a setting that is added there is tested here. Values are the
//! opposite of what a fresh namespace has, except those in [`VALUES`]. If addresses or routes are lost with a setting,
//! packets are also compared once it is back, and then what was lost is made again.

use bm_tests::exchange::Seen;
use bm_tests::lab::{Ends, Lab, Side};
use bm_tests::packet::{Ip4, Ip6, neighbor_solicitation, put16};
use bm_tests::subject::Subject;
use bm_tests::{normalise, report};
use bm_wire::checksum::checksum;
use bm_wire::protocol::HOP_BY_HOP;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// Settings for which 1 is no other value, or one that changes nothing.
const VALUES: [(&str, &str); 16] = [
    ("ipv4/ip_default_ttl", "99"),
    ("ipv4/fib_multipath_hash_policy", "3"),
    ("ipv4/fib_multipath_hash_seed", "4711"),
    ("ipv6/fib_multipath_hash_policy", "3"),
    ("ipv4/fib_multipath_hash_fields", "48"),
    ("ipv6/fib_multipath_hash_fields", "48"),
    ("ipv4/icmp_msgs_burst", "900000"),
    ("ipv4/icmp_msgs_per_sec", "900000"),
    ("ipv4/icmp_ratelimit", "1"),
    ("ipv4/icmp_ratemask", "6168"),
    ("ipv6/icmp/ratelimit", "1"),
    ("ipv6/icmp/ratemask", "1-127"),
    ("ipv6/conf/r1/mtu", "1400"),
    ("ipv6/conf/*/hop_limit", "99"),
    ("ipv6/max_hbh_length", "7"),
    ("ipv6/max_hbh_opts_number", "1"),
];
/// How long a setting without events may take to reach a mirror.
const UNANNOUNCED: Duration = Duration::from_secs(5);
/// How long Linux alone may lose messages: on a busy machine it has sent no ICMPv6 errors for a second.
const LOSING: Duration = Duration::from_secs(30);

const HOST: &str = "192.0.2.2";
const HOST6: &str = "2001:db8:1::2";
const FAR6: &str = "2001:db8:a000::9";
/// An address for which the router answers solicitations, if it may.
const PROXIED: &str = "2001:db8:a000::77";

/// What the router has besides the lab's routes.
const PREPARED: &str = "\
neigh add proxy 2001:db8:a000::77 dev r0
route add 10.88.0.0/16 nexthop via 198.51.100.2 nexthop via 198.51.100.3
route add 2001:db8:a888::/48 nexthop via 2001:db8:2::2 nexthop via 2001:db8:2::3
";

/// Neighbors of `r0` and `r1` that each send one packet at most, since redirects are limited for each source.
const FRESH: Range<u8> = 20..240;
/// The neighbor that stands for all of these in outcomes.
const KNOWN: u8 = 240;

/// The same with the neighbors of [`FRESH`].
fn prepared() -> String {
    let neighbor = |side: Side, n| {
        format!("neigh replace {} lladdr {} dev {} nud permanent\n", side.v4(n), side.mac(2), side.router())
    };
    let fresh = FRESH.flat_map(|n| [neighbor(Side::Src, n), neighbor(Side::Snk, n)]);
    PREPARED.to_owned() + &fresh.collect::<String>()
}

/// A setting, and the value to give it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Changed {
    path: String,
    value: String,
    /// Another setting without which it does not matter, and that one's value.
    beside: Option<(String, &'static str)>,
    /// What then happens to the router's links, as lines of `ip`.
    then: &'static str,
    /// Whether addresses or routes are lost with it.
    loses: bool,
}

impl Changed {
    fn new(path: String, value: String) -> Self {
        let policy = path.strip_suffix("fields").map(|hash| (format!("{hash}policy"), "3"));
        let is_about_links = path.ends_with("skip_notify_on_dev_down");
        Self {
            value,
            beside: policy.filter(|_| path.ends_with("multipath_hash_fields")),
            then: if is_about_links { "link set r1 down\nlink set r1 up\n" } else { "" },
            loses: is_about_links || path.ends_with("disable_ipv6"),
            path,
        }
    }

    /// The settings to be made, with their values.
    fn settings(&self) -> Vec<(String, &str)> {
        let beside = self.beside.iter().map(|(path, value)| (format!("net/{path}"), *value));
        beside.chain([(format!("net/{}", self.path), &*self.value)]).collect()
    }
}

/// The settings of the page that matter, as patterns.
fn patterns() -> Vec<String> {
    let page = include_str!("../../../../docs/settings.md");
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let matters = rows.filter(|row| !row.contains("| without effect |"));
    matters.filter_map(|row| Some(row.split('`').nth(1)?.to_string())).collect()
}

/// Each setting that matters, with another value than it has.
fn changes(lab: &Lab) -> Vec<Changed> {
    let mut all = Vec::new();
    for pattern in patterns() {
        let interfaces = if pattern.contains("conf/*/") { &["r0", "r1", "all"][..] } else { &[""] };
        for interface in interfaces {
            let path = pattern.replace('*', interface);
            if !is_writable(lab, &path) {
                continue;
            }
            let now = lab.rtr.setting(&format!("net/{path}"));
            let fits = |name: &str| name == path || name.replace('*', interface) == path;
            let value = match VALUES.iter().find(|(name, _)| fits(name)) {
                Some((_, value)) => (*value).to_string(),
                None if now == "0" => "1".into(),
                None => "0".into(),
            };
            if value != now && !(pattern.ends_with("/mtu") && *interface != "r1") {
                all.push(Changed::new(path, value));
            }
        }
    }
    all
}

/// Whether this kernel has a setting that can be changed in a namespace.
fn is_writable(lab: &Lab, path: &str) -> bool {
    let file = format!("/proc/sys/net/{path}");
    lab.rtr.within(|| {
        let now = std::fs::read_to_string(&file);
        now.is_ok_and(|now| std::fs::write(&file, now.trim()).is_ok())
    })
}

/// The packets; for settings of the flow hash those to several next hops, which are chosen by each router's own hash
/// otherwise.
fn frames(path: &str) -> Vec<(Side, Vec<u8>)> {
    let from = |source: &str, to: &str| Ip4::udp(source, to, 20);
    if path.contains("multipath_hash") {
        let four =
            (0..16).map(|n| Ip4::udp_ports(HOST, &format!("10.88.{n}.1"), 1000 + n, 2000, b"flow").bytes());
        let six = (0..16).map(|n| {
            Ip6::udp_ports(HOST6, &format!("2001:db8:a888:{n:x}::1"), 1000 + n, 2000, b"flow").bytes()
        });
        let is_of_both = path.ends_with("seed");
        let four = four.filter(|_| is_of_both || path.starts_with("ipv4"));
        let six = six.filter(|_| is_of_both || path.starts_with("ipv6"));
        return four.chain(six).map(|packet| (Side::Src, Side::Src.to_router(&packet))).collect();
    }
    if path.ends_with("send_redirects") {
        let source = fresh_source();
        let packet = |(side, to): (Side, &str)| {
            (side, side.to_router(&Ip4::new(&side.v4(source), to, 253, vec![7; 20]).bytes()))
        };
        return [(Side::Src, "172.16.3.4"), (Side::Snk, "10.9.9.9")].map(packet).into();
    }
    let options = [&[0][..], &[0x1e, 0].repeat(2), &[1, 0]].concat();
    let proxied = PROXIED.parse().expect("an address");
    let four = [
        from(HOST, "10.9.9.9"),
        from(HOST, "10.9.9.9").ttl(1),
        from(HOST, "10.2.0.1").ttl(3),
        Ip4::udp(HOST, "10.2.0.1", 1400).flags(Ip4::DF),
        from(HOST, "10.9.9.9").options(&[0x83, 7, 4, 10, 9, 9, 8, 0]),
        from(HOST, "127.0.0.5"),
        from("127.0.0.9", "10.9.9.9"),
        from("198.51.100.1", "10.9.9.9"),
        from("198.51.100.255", "10.9.9.9"),
        from("11.1.1.1", "10.9.9.9"),
        from(HOST, "198.51.100.255"),
        from("192.0.2.3", "172.16.3.4"),
    ];
    let six = [
        Ip6::udp(HOST6, FAR6, 20),
        Ip6::udp(HOST6, FAR6, 20).hop_limit(1),
        Ip6::udp(HOST6, FAR6, 1450),
        Ip6::udp(HOST6, "2001:db8:b000::9", 1400),
        Ip6::udp(HOST6, FAR6, 20).extension(HOP_BY_HOP, &options),
        neighbor_solicitation(HOST6, PROXIED, proxied, &[]),
    ];
    // Without routes Linux sends five errors to each source of IPv4, and then one a second.
    let four = four.into_iter().filter(|_| !path.ends_with("skip_notify_on_dev_down"));
    let packets = four.map(|packet| packet.bytes()).chain(six.map(|packet| packet.bytes()));
    packets.map(|packet| (Side::Src, Side::Src.to_router(&packet))).collect()
}

/// One of the neighbors that have not sent anything yet.
fn fresh_source() -> u8 {
    static COUNT: AtomicU8 = AtomicU8::new(0);
    FRESH.start + COUNT.fetch_add(1, Ordering::Relaxed) % FRESH.len() as u8
}

/// What the router sends about the packets, in a form that can be compared.
fn outcome(lab: &Lab, path: &str) -> Vec<Seen> {
    let heard = lab.exchange(&frames(path), 0, false);
    let known = |frame| if path.ends_with("send_redirects") { with_known_source(frame) } else { frame };
    let comparable = |seen: Seen| Seen { frame: without_id(normalise::frame(known(seen.frame))), ..seen };
    let mut seen: Vec<_> = heard.seen.into_iter().map(comparable).collect();
    seen.sort();
    seen
}

/// The frame without the identification of an ICMP message, which the router has chosen whatever its source: none are
/// sent here.
fn without_id(mut frame: Vec<u8>) -> Vec<u8> {
    if frame[12..14] == [8, 0] && frame[14 + 9] == 1 {
        frame[14 + 4..14 + 6].fill(0);
        frame[14 + 10..14 + 12].fill(0);
    }
    frame
}

/// The frame with [`KNOWN`] instead of a fresh source, in its IPv4 header and in the one that an error quotes. A wrong
/// checksum of a header remains wrong; that of ICMP stays right, since a header and its checksum always have one sum.
fn with_known_source(mut frame: Vec<u8>) -> Vec<u8> {
    for at in [14, 14 + 28] {
        let Some(header) = frame.get_mut(at..at + 20).filter(|header| checksum(header) == 0) else {
            continue;
        };
        for last in [15, 19] {
            if FRESH.contains(&header[last]) {
                header[last] = KNOWN;
            }
        }
        put16(header, 10, 0);
        let sum = checksum(header);
        put16(header, 10, sum);
    }
    frame
}

/// The outcome, and if something is lost with the setting, also the outcome once it is back.
fn outcomes_with(lab: &Lab, change: &Changed, expected: Option<&[Vec<Seen>]>) -> Vec<Vec<Seen>> {
    let settings = change.settings();
    let before: Vec<_> = settings.iter().map(|(path, _)| (path, lab.rtr.setting(path))).collect();
    lab.rtr.set(&settings.iter().map(|(path, value)| (&**path, *value)).collect::<Vec<_>>());
    lab.rtr.ip(change.then);
    let mut found = vec![settled(lab, change, expected.map(|all| &*all[0]))];
    lab.rtr.set(&before.iter().map(|(path, value)| (&***path, &**value)).collect::<Vec<_>>());
    if change.loses {
        found.push(settled(lab, change, expected.map(|all| &*all[1])));
        lab.complete(&prepared());
    }
    found
}

/// The outcome: until it is as expected twice in a row, so that the setting has been read.
fn settled(lab: &Lab, change: &Changed, expected: Option<&[Seen]>) -> Vec<Seen> {
    let deadline = Instant::now() + UNANNOUNCED;
    let mut same = 0;
    loop {
        let outcome = outcome(lab, &change.path);
        let Some(expected) = expected else { return outcome };
        same = if outcome == expected { same + 1 } else { 0 };
        if same == 2 || Instant::now() > deadline {
            return outcome;
        }
    }
}

/// The outcome without the setting, but with the one beside it.
fn outcome_without(lab: &Lab, change: &Changed) -> Vec<Seen> {
    match &change.beside {
        Some((path, value)) => {
            outcomes_with(lab, &Changed::new(path.clone(), (*value).into()), None).swap_remove(0)
        }
        None => outcome(lab, &change.path),
    }
}

/// What Linux alone sends with each setting changed. It counts if Linux sends what it usually does before and
/// afterwards.
fn outcomes_of_linux(lab: &Lab) -> Vec<(Changed, Vec<Vec<Seen>>)> {
    let usual = outcome(lab, "");
    let mut before = usual.clone();
    let mut all = Vec::new();
    for change in changes(lab) {
        let deadline = Instant::now() + LOSING;
        let found = loop {
            let found = outcomes_with(lab, &change, None);
            let after = outcome(lab, "");
            if std::mem::replace(&mut before, after) == usual && before == usual {
                break found;
            }
            let (now, path) = (before.len(), &change.path);
            assert!(
                Instant::now() < deadline,
                "Linux alone sent {} frames, but {now} at {path}",
                usual.len()
            );
        };
        if change.loses || change.beside.is_some() || change.path.ends_with("send_redirects") {
            assert_ne!(
                found[0],
                outcome_without(lab, &change),
                "{} has no effect in Linux alone",
                change.path
            );
        }
        all.push((change, found));
    }
    all
}

fn fault(subject: &Subject, change: &Changed, expected: &[Seen], found: &[Seen]) -> String {
    format!(
        "{subject}: {} = {}: Linux sends {}, it sends {}\n  missing {:02x?}\n  not expected {:02x?}",
        change.path,
        change.value,
        expected.len(),
        found.len(),
        expected.iter().filter(|seen| !found.contains(seen)).collect::<Vec<_>>(),
        found.iter().filter(|seen| !expected.contains(seen)).collect::<Vec<_>>(),
    )
}

#[test]
fn every_setting_has_linuxs_effect() {
    let mut of_linux: Vec<(Changed, Vec<Vec<Seen>>)> = Vec::new();
    let mut faults = Vec::new();
    for subject in Subject::with_tc("settings") {
        let lab = Lab::new("settings", Ends::Silent);
        lab.rtr.ip(&prepared());
        let router = subject.start(&lab);
        router.settle();
        if subject == Subject::Linux {
            of_linux = outcomes_of_linux(&lab);
            continue;
        }
        let before = faults.len();
        for (change, expected) in &of_linux {
            let found = outcomes_with(&lab, change, Some(expected));
            let pairs = expected.iter().zip(&found).filter(|(expected, found)| expected != found);
            faults.extend(pairs.map(|(expected, found)| fault(&subject, change, expected, found)));
        }
        let wrong = faults.len() - before;
        report::say(&format!("settings: {subject}: {} settings, {wrong} wrong", of_linux.len()));
    }
    assert!(of_linux.len() > 20, "docs/settings.md lists {} settings that can be changed", of_linux.len());
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n"));
}
