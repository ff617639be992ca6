//! `brickmoon show filters`.

use bm_api::Filters;

use crate::number::count;
use crate::table::{
    Align::{Left, Right},
    Table,
};

/// One line a name, in the order of the rules, and one for what none matches.
pub fn filters(reply: &Filters) -> String {
    let mut table =
        Table::new(&[("RULE", Left), ("ACTION", Left), ("PACKETS", Right), ("MATCHES", Left)], "no rules");
    for filter in &reply.filters {
        let more = match filter.rules {
            0 | 1 => String::new(),
            rules => format!(", and {} more", count(u64::from(rules) - 1)),
        };
        let asks = format!("{}{more}", filter.asks);
        table.row([filter.name.clone(), filter.action.clone(), count(filter.packets), asks]);
    }
    if !reply.unmatched.is_empty() {
        let packets = count(reply.unmatched_packets);
        table.row(["(none)".into(), reply.unmatched.clone(), packets, "what no rule matches".into()]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_api::Filter;

    #[test]
    fn shows_what_each_name_has_matched() {
        let filter = |name: &str, rules, packets| Filter {
            name: name.into(),
            action: "drop".into(),
            asks: "tcp to any port 23".into(),
            rules,
            packets,
        };
        let filters = vec![filter("telnet", 1, 12_345), filter("list", 3, 0)];
        let text = super::filters(&Filters { filters, unmatched: "accept".into(), unmatched_packets: 7 });
        let expected = "\
RULE    ACTION  PACKETS  MATCHES
telnet  drop     12,345  tcp to any port 23
list    drop          0  tcp to any port 23, and 2 more
(none)  accept        7  what no rule matches
";
        assert_eq!(text, expected);
    }
}
