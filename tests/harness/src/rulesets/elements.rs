//! Rulesets for `nft -f -` whose rules do what elements of sets and maps say: verdict maps and what they lead to, maps of
//! named objects, sets that count or limit, dynamic sets; with single keys, intervals, concatenations and catch-alls.

use super::{Net, Random};

/// A table with a base chain that looks packets up, and chains to which maps lead.
pub fn elements(net: &Net, random: &mut Random) -> String {
    let nat = random.one_in(4);
    let family = if nat { "ip" } else { random.choice(&["inet", "ip", "ip6"]) };
    let four = family == "ip" || family == "inet" && random.one_in(2);
    let make = Make { net, four };
    let (mut declared, mut rules) = (String::new(), String::new());
    for number in 0..1 + random.below(3) {
        let (declaration, rule) = match if nat { 0 } else { random.below(6) } {
            0..=2 => make.verdicts(random, number),
            3 => make.counting(random, number),
            4 => make.objects(random, number),
            _ => make.dynamic(random, number),
        };
        declared += &declaration;
        rules += &format!("  {rule}\n");
    }
    let hook = if nat {
        "type nat hook prerouting priority dstnat".to_owned()
    } else {
        let hook = random.choice(&["prerouting", "forward", "postrouting"]);
        format!("type filter hook {hook} priority 0")
    };
    let chains = make.chains(random, nat);
    format!(
        "flush ruleset\ntable {family} t {{\n{chains}{declared} chain base {{\n  {hook}; policy accept;\n{rules} }}\n}}\n"
    )
}

struct Make<'a> {
    net: &'a Net,
    four: bool,
}

impl Make<'_> {
    fn word(&self) -> &'static str {
        if self.four { "ip" } else { "ip6" }
    }

    fn address_type(&self) -> &'static str {
        if self.four { "ipv4_addr" } else { "ipv6_addr" }
    }

    fn target(&self, random: &mut Random) -> &'static str {
        random.choice(if self.four { self.net.targets4 } else { self.net.targets6 })
    }

    /// Two chains to which maps lead; the second one leads to the first.
    fn chains(&self, random: &mut Random, nat: bool) -> String {
        let first = if nat {
            let target = self.net.targets4[0];
            // Beside it, so that no packet goes there by itself.
            format!("ip daddr {target} dnat to {}.77", target.rsplit_once('.').map_or(target, |(net, _)| net))
        } else {
            let does =
                ["drop", "counter", "accept", "ct state new drop", "ct state established drop", "return"];
            random.choice(&does).to_owned()
        };
        let second = random.choice(&["jump c0", "goto c0", "tcp dport vmap { 22 : jump c0, 80 : accept }"]);
        format!(" chain c0 {{\n  {first}\n }}\n chain c1 {{\n  {second}\n }}\n")
    }

    /// What a rule matches before a lookup: often one direction of connections alone.
    fn first(&self, random: &mut Random) -> String {
        match random.below(4) {
            0 => format!("iifname {} ", self.net.any_interface(random)),
            1 => format!("{} saddr {} ", self.word(), self.net.prefix(random, self.four, true)),
            2 => format!("{} saddr {} ", self.word(), self.net.prefix(random, self.four, false)),
            _ => String::new(),
        }
    }

    /// A verdict map, anonymous or named.
    fn verdicts(&self, random: &mut Random, number: usize) -> (String, String) {
        let (key_type, key, element, flags) = match random.below(5) {
            0 => ("inet_service".to_owned(), "tcp dport".to_owned(), "22".to_owned(), ""),
            1 => ("inet_service".to_owned(), "udp dport".to_owned(), "50-90".to_owned(), "flags interval; "),
            2 => {
                let interface = self.net.any_interface(random).to_owned();
                ("ifname".to_owned(), "iifname".to_owned(), interface, "")
            }
            3 => {
                let key = format!("{} daddr . tcp dport", self.word());
                let key_type = format!("{} . inet_service", self.address_type());
                (key_type, key, format!("{} . 80", self.target(random)), "")
            }
            _ => {
                let prefix = self.net.prefix(random, self.four, false);
                (self.address_type().to_owned(), format!("{} daddr", self.word()), prefix, "flags interval; ")
            }
        };
        let first = self.first(random);
        let verdict =
            |random: &mut Random| random.choice(&["jump c0", "jump c0", "goto c1", "drop", "accept"]);
        let mut elements = format!("{element} : {}", verdict(random));
        if random.one_in(3) {
            elements += &format!(", * : {}", verdict(random));
        }
        if random.one_in(2) {
            return (String::new(), format!("{first}{key} vmap {{ {elements} }}"));
        }
        let map =
            format!(" map v{number} {{ type {key_type} : verdict; {flags}elements = {{ {elements} }}; }}\n");
        (map, format!("{first}{key} vmap @v{number}"))
    }

    /// A set whose elements count packets or limit them.
    fn counting(&self, random: &mut Random, number: usize) -> (String, String) {
        let does = random.choice(&["counter", "limit rate 1/hour burst 3 packets", "quota 300 bytes", ""]);
        let statement = if does.is_empty() { String::new() } else { format!("{does}; ") };
        let (kind, target) = (self.address_type(), self.target(random));
        let set = format!(" set s{number} {{ type {kind}; {statement}elements = {{ {target} }}; }}\n");
        (
            set,
            format!(
                "{} daddr @s{number} {}",
                self.word(),
                random.choice(&["accept", "drop", "tcp dport 22 drop"])
            ),
        )
    }

    /// A map of named objects.
    fn objects(&self, random: &mut Random, number: usize) -> (String, String) {
        let (object, kind) =
            random.choice(&[("counter o", "counter"), ("quota o", "quota"), ("limit o", "limit")]);
        let body = match kind {
            "counter" => "{ }",
            "quota" => "{ over 300 bytes }",
            _ => "{ rate over 1/hour burst 3 packets }",
        };
        let target = self.target(random);
        let then = if kind == "counter" { "" } else { " drop" };
        let rule = format!("{kind} name {} daddr map {{ {target} : \"o{number}\" }}{then}", self.word());
        (format!(" {object}{number} {body}\n"), rule)
    }

    /// A set to which packets add elements.
    fn dynamic(&self, random: &mut Random, number: usize) -> (String, String) {
        let set = format!(" set d{number} {{ type {}; flags dynamic; size 100; }}\n", self.address_type());
        let does = random.choice(&["counter", "limit rate over 1/hour burst 3 packets"]);
        let then = if does == "counter" { "" } else { " drop" };
        (set, format!("update @d{number} {{ {} daddr {does} }}{then}", self.word()))
    }
}
