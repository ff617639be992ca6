//! Interfaces on top of a port that take its frames before Linux routes them.

use bm_tests::case::Case;
use bm_tests::packet::{Ip4, Ip6};

const HOST: &str = "192.0.2.2";
const FAR: &str = "10.9.9.9";
const HOST6: &str = "2001:db8:1::2";
const FAR6: &str = "2001:db8:a000::9";

fn on_port(name: &'static str, kind: &str) -> Case {
    Case::new(0, name).after(&format!("link add u0 link r0 type {kind}"), "link del u0")
}

pub fn cases() -> Vec<Case> {
    let (four, six) = (Ip4::udp(HOST, FAR, 20), Ip6::udp(HOST6, FAR6, 20));
    let taken = |case: Case| case.unfenced().sends(four.clone()).sends(six.clone());
    vec![
        on_port("macvlan-by-mac", "macvlan mode bridge").passes(four.clone()).passes(six.clone()),
        taken(on_port("macvlan-passthru", "macvlan mode passthru")),
        on_port("macvlan-by-source", "macvlan mode source macaddr add 02:00:00:00:00:99")
            .passes(four.clone())
            .passes(six.clone()),
        taken(on_port("macvtap-passthru", "macvtap mode passthru")),
        taken(
            Case::new(0, "port-in-a-bridge")
                .after("link add u0 type bridge\nlink set r0 master u0", "link set r0 nomaster\nlink del u0"),
        ),
        Case::new(0, "nothing-on-the-port").passes(four).passes(six),
    ]
}
