//! `brickmoon show filters`.

use bm_api::Filters;

use crate::number::count;
use crate::table::{
    Align::{Left, Right},
    Table,
};

/// One line per rule name, in the order of the rules, and one for packets that no rule matches.
pub fn filters(reply: &Filters) -> String {
    let mut table =
        Table::new(&[("RULE", Left), ("ACTION", Left), ("PACKETS", Right), ("MATCHES", Left)], "no rules");
    for filter in &reply.filters {
        let more = match filter.rules {
            0 | 1 => String::new(),
            rules => format!(", and {} more", count(u64::from(rules) - 1)),
        };
        let expression = format!("{}{more}", filter.expression);
        table.row([filter.name.clone(), filter.action.clone(), count(filter.packets), expression]);
    }
    if !reply.unmatched.is_empty() {
        let packets = count(reply.unmatched_packets);
        table.row(["(none)".into(), reply.unmatched.clone(), packets, "packets that no rule matches".into()]);
    }
    for claim in &reply.claims {
        table.row([claim.name.clone(), claim.action.clone(), count(claim.packets), claim.expression.clone()]);
    }
    let mut text = table.to_string();
    let mut checks: Vec<&str> = Vec::new();
    for source in &reply.sources {
        if !checks.contains(&source.check.as_str()) {
            checks.push(&source.check);
        }
    }
    for check in checks {
        let ports = reply.sources.iter().filter(|source| source.check == check);
        let ports: Vec<_> = ports.map(|source| source.port.as_str()).collect();
        text += &format!("source check {check} on {}\n", ports.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_api::{Filter, SourceCheck};

    #[test]
    fn shows_matches_by_name() {
        let filter = |name: &str, rules, packets| Filter {
            name: name.into(),
            action: "drop".into(),
            expression: "tcp to any port 23".into(),
            rules,
            packets,
        };
        let filters = vec![filter("telnet", 1, 12_345), filter("list", 3, 0)];
        let source = |port: &str, check: &str| SourceCheck { port: port.into(), check: check.into() };
        let sources = vec![source("eth0", "strict"), source("eth1", "feasible"), source("eth2", "strict")];
        let reply = Filters {
            filters,
            unmatched: "accept".into(),
            unmatched_packets: 7,
            sources,
            ..Filters::default()
        };
        let text = super::filters(&reply);
        let expected = "\
RULE    ACTION  PACKETS  MATCHES
telnet  drop     12,345  tcp to any port 23
list    drop          0  tcp to any port 23, and 2 more
(none)  accept        7  packets that no rule matches
source check strict on eth0, eth2
source check feasible on eth1
";
        assert_eq!(text, expected);
    }
}
