//! Each table has as many cells in a row as it has columns, and the figures that its source gives.

use std::time::Duration;

use super::*;
use bm_api::{
    Account, Cluster, FabricLink, FlowsState, Hook, Hooks, Sa, Sas, Status, Switch, SwitchPort, Switches,
};

fn sample(factor: u64) -> Sample {
    let account = Account { received: 10 * factor, dropped: factor, ..Account::default() };
    let port = SwitchPort {
        name: "veth1".into(),
        up: true,
        account: account.clone(),
        sent: 3 * factor,
        sent_bytes: 300 * factor,
        ..SwitchPort::default()
    };
    let link = FabricLink {
        device: "fab1".into(),
        peer: "b".into(),
        state: "no-daemon".into(),
        account,
        sent: 7 * factor,
        round_trip_us: Some(12),
        ..FabricLink::default()
    };
    let hook = Hook {
        name: "acl".into(),
        state: "failed".into(),
        frames: 100 * factor,
        drops: [("x".into(), factor)].into(),
        last_error: Some("acl.lua:3: no\ntraceback".into()),
        ..Hook::default()
    };
    let sa = Sa {
        name: "to-b".into(),
        spi: 256,
        state: "valid".into(),
        packets: 9 * factor,
        bytes: 900 * factor,
        ..Sa::default()
    };
    // A second SA of the same name, as during a rekey, whose counters are its own.
    let other_sa = Sa { spi: 257, packets: 50 * factor, ..sa.clone() };
    let flows = FlowsState {
        families: vec!["ipv4".into(), "ipv6".into()],
        flows: 5,
        max: 100,
        learned: 10 * factor,
        ended: [("idle".into(), factor)].into(),
        ..FlowsState::default()
    };
    Sample {
        status: Status { flows, ..Status::default() },
        hooks: Hooks { hooks: vec![hook] },
        switches: Switches {
            switches: vec![Switch { name: "lan".into(), ports: vec![port], ..Switch::default() }],
        },
        sas: Sas { sas: vec![sa, other_sa] },
        cluster: Cluster { members: 2, links: vec![link], ..Cluster::default() },
        ..Sample::default()
    }
}

fn row(panel: &Panel) -> String {
    panel.json()[0].to_string()
}

#[test]
fn other_tables_show_their_rates() {
    let mut model = Model::default();
    model.add(Duration::from_secs(1), Ok(sample(1)));
    model.add(Duration::from_secs(2), Ok(sample(3)));
    let sample = sample(3);
    let expected = [
        (flow_table(&model, &sample), r#""ended_s":2.0,"flows":5,"learned_s":20.0,"max":100"#),
        (flow_table(&model, &sample), r#""use":"in use for ipv4 and ipv6""#),
        (flow_ends(&model, &sample), r#""event":"ended","flows":3"#),
        (flow_ends(&model, &sample), r#""_s":2.0"#),
        (hooks(&model, &sample), r#""dropped_s":2.0,"ejected":0,"errors":0,"frames_s":200.0"#),
        (hooks(&model, &sample), r#""last_error":"acl.lua:3: no""#),
        (
            switches(&model, &sample),
            r#""dropped_s":2.0,"port":"veth1","received_s":20.0,"sent_bit_s":4800.0,"sent_s":6.0"#,
        ),
        (sas(&model, &sample), r#""packets":27,"packets_s":18.0,"sa":"to-b","spi":"0x100""#),
        (
            fabric(&model, &sample),
            r#""received_s":20.0,"round_trip_us":12.0,"sent_bit_s":0.0,"sent_s":14.0,"state":"no-daemon""#,
        ),
    ];
    for (panel, part) in expected {
        let row = row(&panel);
        assert!(row.contains(part), "{part} is not in {row}");
        let lines = panel.lines();
        assert!(lines.len() >= 3);
        assert_eq!(lines[1].spans.len(), lines[2].spans.len(), "{}: a cell for each column", panel.title);
    }
}
