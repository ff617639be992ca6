//! The daemon's accounts, read from `show --json`: frames received and created here must equal what happened to them.

use serde_json::Value;

/// Entries of an account for frames that came in, and for where they went.
const IN: [&str; 2] = ["received", "originated"];
const OUT: [&str; 6] = ["sent", "host", "passed", "held", "consumed", "dropped"];

/// All accounts in a JSON value: every object that counts received and dropped frames.
fn accounts<'a>(value: &'a Value, found: &mut Vec<&'a Value>) {
    match value {
        Value::Object(object) => {
            if object.contains_key(IN[0]) && object.contains_key(OUT[5]) {
                found.push(value);
            }
            object.values().for_each(|value| accounts(value, found));
        }
        Value::Array(list) => list.iter().for_each(|value| accounts(value, found)),
        _ => {}
    }
}

fn sum(account: &Value, names: &[&str]) -> u64 {
    names.iter().filter_map(|name| account[*name].as_u64()).sum()
}

/// Accounts that do not add up, or whose drops have no reason.
pub fn open(value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    accounts(value, &mut found);
    let named = |account: &Value| -> u64 {
        let reasons = account["drops"].as_object();
        reasons.map_or(0, |reasons| reasons.values().filter_map(Value::as_u64).sum())
    };
    let closed = |account: &&&Value| {
        sum(account, &IN) == sum(account, &OUT) && named(account) == sum(account, &["dropped"])
    };
    found.iter().filter(|account| !closed(account)).map(|account| account.to_string()).collect()
}

/// Frames received, sent, handed to Linux and dropped, over the ports of `show ports`.
pub fn totals(ports: &Value) -> [u64; 4] {
    let accounts = || ports["ports"].as_array().into_iter().flatten().map(|port| &port["account"]);
    ["received", "sent", "host", "dropped"].map(|name| accounts().map(|account| sum(account, &[name])).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_does_not_add_up() {
        let account = |sent: u64, named: u64| {
            serde_json::json!({ "ports": [{ "account": {
                "received": 9, "originated": 1, "sent": sent, "host": 2, "dropped": 1, "drops": { "ttl": named },
            } }] })
        };
        assert!(open(&account(7, 1)).is_empty());
        assert_eq!((open(&account(6, 1)).len(), open(&account(7, 0)).len()), (1, 1));
        assert_eq!(totals(&account(7, 1)), [9, 7, 2, 1]);
        assert_eq!(totals(&Value::Null), [0; 4]);
    }
}
