//! What elements of nftables sets and maps do with packets, tables of others, and tables that go with their owner.

use super::netns::Namespace;
use bm_firewall::{LinuxOnly, LinuxOnlyOptions, LinuxOnlyWatch, Match, Traffic};
use bm_netlink::nft::{self, Chain, Family, Hook, Nft, Rule, Verdict};
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long it may take to notice a change.
const SEEN_WITHIN: Duration = Duration::from_secs(5);
const IPV4: Traffic = Traffic::All { ipv4: true, ipv6: false };

/// A namespace without a ruleset, and a watch in it.
struct Bed {
    namespace: Namespace,
    watch: LinuxOnlyWatch,
}

impl Bed {
    fn new(tag: &str) -> Option<Self> {
        let namespace = Namespace::new(tag)?.with_links();
        namespace.enter();
        let watch = LinuxOnlyWatch::open(LinuxOnlyOptions::default()).unwrap();
        Some(Self { namespace, watch })
    }

    /// Replaces the ruleset by one of a table, or changes it by a command of nft.
    fn nft(&self, text: &str) {
        let command = format!("nft -f - <<'END'\n{text}\nEND");
        assert!(self.namespace.shell(&command), "{text}");
    }

    fn replace(&self, table: &str) {
        self.nft(&format!("flush ruleset\n{table}"));
    }

    /// Waits for the list to be as wanted.
    fn until(&mut self, what: &str, wanted: impl Fn(&[LinuxOnly]) -> bool) {
        let start = Instant::now();
        while !wanted(self.watch.list()) {
            assert!(start.elapsed() < SEEN_WITHIN, "{what}: {:#?}", self.watch.list());
            self.watch.process(Instant::now());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until there is an entry with this traffic whose reason contains this text.
    fn has(&mut self, traffic: &Traffic, why: &str) {
        let is_it = |entry: &LinuxOnly| entry.traffic == *traffic && entry.why.contains(why);
        self.until(&format!("{traffic:?} {why}"), |list| list.iter().any(is_it));
    }

    fn has_no(&mut self, why: &str, what: &str) {
        self.until(what, |list| list.iter().all(|entry| !entry.why.contains(why)));
    }

    fn is_empty(&mut self, what: &str) {
        self.until(what, <[LinuxOnly]>::is_empty);
    }
}

fn from(prefix: &str) -> Match {
    let addresses = bm_firewall::Addresses::Ipv4(Some(prefix.parse().unwrap()), None);
    Match { addresses, ..Match::default() }
}

/// Keys of verdict maps, with an element for each.
const KEYS: [(&str, &str, &str); 5] = [
    ("type inet_service;", "tcp dport", "80"),
    ("type inet_service; flags interval;", "tcp dport", "80-90"),
    ("type ipv4_addr . inet_service;", "ip daddr . tcp dport", "10.0.0.1 . 80"),
    ("type ipv4_addr . inet_service; flags interval;", "ip daddr . tcp dport", "10.0.0.0/8 . 80-90"),
    ("type inet_service;", "tcp dport", "*"),
];

#[test]
fn verdict_maps_lead_to_chains() {
    let Some(mut bed) = Bed::new("vmaps") else { return };
    for (declared, key, element) in KEYS {
        let declared = declared.replacen("; flags", " : verdict; flags", 1);
        let declared =
            if declared.contains(": verdict") { declared } else { declared.replace(';', " : verdict;") };
        for does in ["dnat to 10.0.1.77", "ct state established accept"] {
            let chains = |lookup: &str, map: &str| {
                format!(
                    "table ip t {{ {map}\n chain web {{ {does}; }}\n chain between {{ jump web; }}\n\
                     chain pre {{ type nat hook prerouting priority dstnat; {lookup}; }}; }}"
                )
            };
            bed.replace(&chains(&format!("{key} vmap {{ {element} : jump between }}"), ""));
            bed.has(&IPV4, "of chain web of table ip t");
            bed.replace(&chains(&format!("{key} vmap @m"), &format!("map m {{ {declared} }}")));
            bed.has_no("of chain web", "a map without elements");
            bed.nft(&format!("add element ip t m {{ {element} : goto between }}"));
            bed.has(&IPV4, "of chain web of table ip t");
            bed.nft(&format!("delete element ip t m {{ {element} : goto between }}"));
            bed.has_no("of chain web", "the element is gone");
        }
    }
}

#[test]
fn verdict_maps_act_by_their_elements() {
    let Some(mut bed) = Bed::new("vmap-acts") else { return };
    let base = "chain f { type filter hook forward priority 0; ip saddr 10.0.0.0/8 tcp dport vmap";
    bed.replace(&format!("table ip t {{ {base} {{ 22 : accept, 23 : return, 24 : continue }}; }}; }}"));
    bed.is_empty("nothing happens to a packet");
    let tcp = Match { protocol: Some(6), ..from("10.0.0.0/8") };
    bed.replace(&format!("table ip t {{ {base} {{ 22 : accept, 23 : drop }}; }}; }}"));
    bed.has(&Traffic::Matching(tcp), "drop in set __map");
}

#[test]
fn elements_count_packets() {
    let Some(mut bed) = Bed::new("counts") else { return };
    let table = |set: &str, rule: &str| {
        format!(
            "table ip t {{ {set}\n chain f {{ type filter hook forward priority 0; ip saddr 10.0.0.0/8 {rule}; }}; }}"
        )
    };
    let elements = "elements = { 10.9.9.9 };";
    for what in ["counter", "limit rate 5/second", "quota 100 bytes"] {
        bed.replace(&table(
            &format!("set s {{ type ipv4_addr; {what}; {elements} }}"),
            "ip daddr @s tcp dport 22 accept",
        ));
        let word = what.split(' ').next().unwrap();
        bed.has(&Traffic::Matching(from("10.0.0.0/8")), &format!("{word} in set s"));
    }
    bed.replace(&table("set s { type ipv4_addr; flags dynamic; ct count over 5; }", "ip daddr @s accept"));
    bed.has(&IPV4, "ct count in set s");
    bed.replace(&table(&format!("set s {{ type ipv4_addr; {elements} }}"), "ip daddr @s accept"));
    bed.is_empty("a set whose elements do nothing");
    bed.nft("add element ip t s { 10.9.9.10 }");
    bed.nft("add counter ip t unused");
    bed.is_empty("neither does another element, nor a counter that nothing refers to");
}

#[test]
fn maps_of_objects() {
    let Some(mut bed) = Bed::new("objects") else { return };
    let table = |object: &str, kind: &str| {
        format!(
            "table ip t {{ {object}\n chain f {{ type filter hook forward priority 0; ip saddr 10.0.0.0/8 \
             {kind} ip daddr map {{ 10.1.1.1 : \"o\" }}; }}; }}"
        )
    };
    for (object, kind, word) in [
        ("counter o { }", "counter name", "counter"),
        ("quota o { over 100 bytes }", "quota name", "quota"),
        ("limit o { rate 5/second }", "limit name", "limit"),
    ] {
        bed.replace(&table(object, kind));
        bed.has(&Traffic::Matching(from("10.0.0.0/8")), &format!("{word} in set __objmap"));
    }
    bed.replace(&table("ct timeout o { protocol tcp; policy = { established: 9 }; }", "ct timeout set"));
    bed.has(&IPV4, "ct timeout in set __objmap");
    bed.has(&Traffic::All { ipv4: true, ipv6: false }, "of chain f of table ip t");
}

#[test]
fn flowtables_are_at_the_ingress_of_their_interfaces() {
    let Some(mut bed) = Bed::new("flowtables") else { return };
    let table = "table ip t { flowtable f { hook ingress priority 0; devices = { a }; }; }";
    if !bed.namespace.shell(&format!("nft '{table}'")) {
        return eprintln!("skipped: this kernel has no flowtables");
    }
    let a = bm_tests::sys::interface_index("a").unwrap();
    bed.has(&Traffic::In(a), "flowtable f of table ip t");
    bed.nft("delete flowtable ip t f");
    bed.is_empty("the flowtable is gone");
}

/// A table like those of the daemon, whose rule drops everything.
fn own_table(name: &str) -> nft::Table {
    let rule = Rule { comment: "all".into(), matches: Vec::new(), verdict: Verdict::Drop };
    let chain = Chain { name: "prerouting".into(), hook: Hook::Prerouting, rules: vec![rule] };
    nft::Table { family: Family::Inet, name: name.into(), owned: false, chains: vec![chain] }
}

#[test]
fn tables_of_others_count_whatever_their_name() {
    let Some(mut bed) = Bed::new("names") else { return };
    let all = Traffic::All { ipv4: true, ipv6: true };
    let mut nft = Nft::open().unwrap().unwrap();
    nft.put(&own_table(nft::OURS)).unwrap();
    bed.is_empty("the daemon's own table");
    let listed = Command::new("nft").args(["list", "ruleset"]).output().unwrap();
    assert!(String::from_utf8_lossy(&listed.stdout).contains("comment \"all\""), "{listed:?}");
    bed.nft("add rule inet brickmoon_filters prerouting drop");
    bed.has(&all, "of table inet brickmoon_filters");
    nft.put(&own_table(nft::OURS)).unwrap();
    bed.is_empty("the daemon's own table, put back");
    nft.put(&own_table("brickmoon_filters_12345678")).unwrap();
    bed.has(&all, "of table inet brickmoon_filters_12345678");
    bed.replace(
        "table inet brickmoon_filters_mine { chain f { type filter hook forward priority 0; policy drop; }; }",
    );
    bed.has(&all, "of table inet brickmoon_filters_mine has policy drop");
}

#[test]
fn tables_that_go_with_their_owner_are_missed() {
    let Some(mut bed) = Bed::new("owner") else { return };
    let mut owner =
        Command::new("nft").arg("-i").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut input = owner.stdin.take().unwrap();
    let table =
        "table ip t { flags owner; chain f { type filter hook forward priority 0; policy drop; }; }\n";
    input.write_all(table.as_bytes()).unwrap();
    input.flush().unwrap();
    bed.has(&IPV4, "of table ip t has policy drop");
    owner.kill().unwrap();
    owner.wait().unwrap();
    bed.is_empty("the kernel tells nobody that the table is gone");
}
