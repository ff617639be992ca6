//! `brickmoon show switch` and `brickmoon show macs`.

use std::fmt::Write as _;

use bm_api::{Macs, Switch, SwitchPort, Switches};

use crate::number::{count, counted};
use crate::table::{
    Align::{Left, Right},
    Table,
};

/// Each switch with one line per port, then remarks.
pub fn switches(reply: &Switches) -> String {
    if reply.switches.is_empty() {
        return "no switches\n".into();
    }
    reply.switches.iter().map(switch).collect::<Vec<_>>().join("\n")
}

fn switch(switch: &Switch) -> String {
    let columns = [
        ("PORT", Left),
        ("STATE", Left),
        ("VLANS", Left),
        ("RECEIVED", Right),
        ("FORWARDED", Right),
        ("FLOODED", Right),
        ("HOST", Right),
        ("DROPPED", Right),
        ("SENT", Right),
    ];
    let mut table = Table::new(&columns, "no ports");
    for port in &switch.ports {
        let counter = |name| count(port.counters.get(name).copied().unwrap_or(0));
        table.row([
            port.name.clone(),
            state(port).into(),
            port.vlans.clone(),
            count(port.account.received),
            counter("forwarded"),
            counter("flooded"),
            count(port.account.host),
            count(port.account.dropped),
            count(port.sent),
        ]);
    }
    let ageing = if switch.ageing_s == 0 {
        "addresses do not age".into()
    } else {
        format!("ageing {} s", switch.ageing_s)
    };
    let own =
        switch.interface.as_ref().map(|name| format!(", interface {name} in Linux")).unwrap_or_default();
    let mut text = format!(
        "switch {}: {}, {} of {} MAC addresses, {ageing}{own}\n{table}",
        switch.name,
        counted(switch.ports.len() as u64, "port"),
        count(switch.macs as u64),
        count(u64::from(switch.macs_max)),
    );
    for port in switch.ports.iter().filter(|port| !port.takes_frames) {
        let _written = writeln!(
            text,
            "  {}: its device does not accept frames from XDP: run `ethtool -K PEER gro on` for the other end of the veth",
            port.name
        );
    }
    for (port, remark) in switch.ports.iter().filter_map(|port| Some((port, remarks(port)?))) {
        let _written = writeln!(text, "  {}: {remark}", port.name);
    }
    for (name, why) in &switch.refused {
        let _written = writeln!(text, "  {name} is not a port: {why}");
    }
    text
}

/// Flags that differ from the defaults, and counters of refused moves and full tables; `None` without any.
fn remarks(port: &SwitchPort) -> Option<String> {
    let counted = [
        ("move_refused", "moves refused"),
        ("evicted", "addresses evicted"),
        ("table_full", "not learned, table full"),
    ];
    let counted = counted.iter().filter_map(|(name, remark)| {
        let number = port.counters.get(*name).filter(|number| **number > 0)?;
        Some(format!("{} {remark}", count(*number)))
    });
    let all: Vec<_> = port.flags.iter().cloned().chain(counted).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

fn state(port: &SwitchPort) -> &'static str {
    match (port.up, port.takes_frames, port.generic) {
        (false, ..) => "down",
        (true, false, _) => "up, cannot send",
        (true, true, true) => "up, generic",
        (true, true, false) => "up",
    }
}

/// One line per MAC address.
pub fn macs(reply: &Macs) -> String {
    let columns = [("MAC", Left), ("VLAN", Right), ("PORT", Left), ("AGE", Right), ("SWITCH", Left)];
    let mut table = Table::new(&columns, "no MAC addresses");
    for entry in &reply.macs {
        table.row([
            entry.mac.to_string(),
            entry.vlan.map_or("-".into(), |vlan| vlan.to_string()),
            entry.port.clone(),
            entry.age_ms.map_or("static".into(), |age| format!("{}.{} s", age / 1000, age % 1000 / 100)),
            entry.switch.clone(),
        ]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_api::{Account, Mac, MacEntry};

    #[test]
    fn shows_ports_and_their_problems() {
        let account = Account { received: 1234, passed: 1234, ..Account::default() };
        let counters = [("forwarded".to_string(), 1200), ("flooded".to_string(), 34)].into();
        let port = SwitchPort {
            name: "veth1".into(),
            up: true,
            vlans: "10".into(),
            account,
            counters,
            ..SwitchPort::default()
        };
        let fine =
            SwitchPort { name: "tap0".into(), takes_frames: true, generic: true, sent: 7, ..port.clone() };
        let fine = SwitchPort {
            flags: vec!["isolated on".into(), "flood off".into()],
            counters: [("forwarded", 1200), ("flooded", 34), ("move_refused", 4321)]
                .map(|(name, count)| (name.to_string(), count))
                .into(),
            ..fine
        };
        let refused = [("eth0".to_string(), "taken".to_string())].into();
        let switch = Switch {
            name: "lan".into(),
            ports: vec![port, fine],
            macs_max: 1024,
            refused,
            ..Switch::default()
        };
        let text = switches(&Switches { switches: vec![switch] });
        let expected = "\
switch lan: 2 ports, 0 of 1,024 MAC addresses, addresses do not age
PORT   STATE            VLANS  RECEIVED  FORWARDED  FLOODED  HOST  DROPPED  SENT
veth1  up, cannot send  10        1,234      1,200       34     0        0     0
tap0   up, generic      10        1,234      1,200       34     0        0     7
  veth1: its device does not accept frames from XDP: run `ethtool -K PEER gro on` for the other end of the veth
  tap0: isolated on, flood off, 4,321 moves refused
  eth0 is not a port: taken
";
        assert_eq!(text, expected);
        assert_eq!(switches(&Switches::default()), "no switches\n");
    }

    #[test]
    fn shows_macs() {
        let entry = |vlan, age_ms| MacEntry {
            switch: "lan".into(),
            vlan,
            mac: Mac([2, 0, 0, 0, 0, 1]),
            port: "veth1".into(),
            age_ms,
        };
        let text = macs(&Macs { macs: vec![entry(Some(10), Some(1250)), entry(None, None)] });
        let expected = "\
MAC                VLAN  PORT      AGE  SWITCH
02:00:00:00:00:01    10  veth1   1.2 s  lan
02:00:00:00:00:01     -  veth1  static  lan
";
        assert_eq!(text, expected);
    }
}
