//! A node of a cluster.

use super::*;
use bm_vlb::quota::Mode;

const CLUSTER: &str = "\
[[port]]
device = 'ext0'
[cluster]
name = 'a'
epoch = 3
key_file = '/etc/key'
[[cluster.member]]
name = 'a'
node = 0
[[cluster.member]]
name = 'b'
node = 1
[[cluster.fabric]]
device = 'fab1'
peer = 'b'
[[cluster.port]]
device = 'ext0'
number = 2
";

#[test]
fn reads_a_cluster() {
    let config = read(CLUSTER);
    let cluster = config.cluster.as_ref().unwrap();
    assert_eq!((cluster.name.as_str(), cluster.epoch.number()), ("a", 3));
    assert_eq!(cluster.key_file.to_str(), Some("/etc/key"));
    assert_eq!((cluster.members[1].name.as_str(), cluster.members[1].node.number()), ("b", 1));
    assert_eq!((cluster.links[0].device.as_str(), cluster.links[0].peer.as_str()), ("fab1", "b"));
    assert_eq!((cluster.ports[0].device.as_str(), cluster.ports[0].number.number()), ("ext0", 2));
    assert_eq!((cluster.balancing, cluster.flowlet_gap_us), (Mode::DirectOnly, None));
    assert_eq!(
        (cluster.links[0].speed, cluster.ports[0].speed, cluster.input_bps()),
        (10_000, 10_000, 10_000_000_000)
    );
    let balanced = CLUSTER.replace("epoch = 3", "epoch = 3\nbalancing = 'vlb'\nflowlet_gap_us = 500");
    let balanced = read(&(balanced + "speed = 20\n")).cluster.unwrap();
    assert_eq!((balanced.balancing, balanced.flowlet_gap_us), (Mode::default(), Some(500)));
    assert_eq!((balanced.input_bps(), balanced.nodes()), (20_000_000, 2));
    let limited = read(&format!("{CLUSTER}neighbors = 'static'\nneighbors_max = 9\naddresses_per_mac = 2\n"));
    let limits = limited.cluster.unwrap().ports[0].limits;
    assert_eq!(limits, bm_cluster::Limits { learns: false, neighbors: 9, addresses_per_mac: 2 });
    let changed = Config { cluster: None, ..config.clone() }.diff(&config);
    assert_eq!(changed, [Change { key: "cluster".into(), effect: Effect::Live }]);
    assert_eq!(read("").cluster, None);
}

#[test]
fn reports_errors_in_cluster() {
    let error_of = |from: &str, to: &str| {
        assert!(CLUSTER.contains(from), "{from}");
        refused(&CLUSTER.replace(from, to))
    };
    for (from, to, expected) in [
        ("name = 'a'\nepoch", "epoch", "`name` in [cluster] is missing: write name = \"a\""),
        ("epoch = 3", "epoch = 256", "5: `epoch` in [cluster] is 256: must be from 0 to 255"),
        ("node = 1", "node = 2047", "12: `node` in [[cluster.member]] is 2047: must be from 0 to 2046"),
        ("node = 1\n", "", "`node` in [[cluster.member]] is missing: write node = 1"),
        ("epoch = 3", "balancing = 'VLB'", "`balancing` in [cluster] is \"VLB\""),
        (
            "number = 2",
            "number = 2\nspeed = 0",
            "`speed` in [[cluster.port]] is 0: must be from 1 to 1000000",
        ),
        ("number = 2", "number = 32", "18: `number` in [[cluster.port]] is 32: must be from 0 to 31"),
        ("'fab1'", "'ext0'", "14: `device` in [[cluster.fabric]] is \"ext0\": it is also a [[port]]"),
        ("peer = 'b'", "peers = 'b'", "unknown key `peers` in [[cluster.fabric]]: did you mean `peer`?"),
        ("peer = 'b'", "peer = 'c'", "4: `peer` of the fabric link fab1 is \"c\", which is not a member"),
        ("node = 1", "node = 0", "4: the members \"a\" and \"b\" have the same number 0"),
        ("name = 'b'", "name = 'b b'", "11: `name` in [[cluster.member]] is \"b b\": use 1 to 63 letters"),
    ] {
        let text = error_of(from, to);
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn the_example_cluster_is_valid() {
    let tables = ["[cluster]", "[[cluster.member]]", "[[cluster.fabric]]", "[[cluster.port]]"];
    let config = read(&format!("[[port]]\ndevice = 'eth0'\n{}", example_of(&tables)));
    let cluster = config.cluster.unwrap();
    assert_eq!((cluster.members.len(), cluster.links.len(), cluster.ports.len()), (2, 1, 1));
    let (members, links, ports) = (cluster.members.clone(), cluster.links.clone(), cluster.ports.clone());
    let defaults = bm_cluster::Settings::new("a".into());
    assert_eq!(cluster, bm_cluster::Settings { members, links, ports, ..defaults });
    assert_eq!(cluster.links[0].speed, bm_cluster::SPEED);
    assert_eq!(cluster.ports[0].limits, bm_cluster::Limits::default());
}

#[test]
fn the_example_store_is_valid() {
    let config = read(&format!(
        "[[port]]\ndevice = 'eth0'\n[cluster]\nname = 'a'\n{}\n\
         [[cluster.fabric]]\ndevice = 'fab1'\npeer = 'b'\n[[cluster.port]]\ndevice = 'eth0'\nnumber = 0\n",
        example_of(&["[cluster.store]"])
    ));
    let store = config.cluster.unwrap().store.unwrap();
    assert_eq!(
        (store.etcd.endpoints.len(), store.prefix.as_str(), store.node),
        (2, bm_cluster::PREFIX, None)
    );
    assert_eq!(store.copy, Path::new(bm_cluster::COPY));
    assert!(store.etcd.ca.is_some() && store.etcd.cert.is_some() && store.etcd.user.is_some());
}

#[test]
fn members_can_come_from_a_store() {
    let store = "\
[cluster.store]
etcd = ['https://192.0.2.1:2379', 'https://[2001:db8::1]:2379']
ca = '/etc/ca.pem'
user = 'node'
password_file = '/etc/password'
";
    let (begin, rest) = CLUSTER.split_once("epoch = 3\n").unwrap();
    let (key, rest) = rest.split_once("[[cluster.member]]").unwrap();
    let (_, links) = rest.split_once("[[cluster.fabric]]").unwrap();
    let text = format!("{begin}{key}{store}[[cluster.fabric]]{links}");
    let cluster = read(&text).cluster.unwrap();
    let store = cluster.store.as_ref().unwrap();
    assert_eq!(store.etcd.endpoints[1].to_string(), "https://[2001:db8::1]:2379");
    assert_eq!(
        (store.etcd.user.as_deref(), store.prefix.as_str(), store.node),
        (Some("node"), "/brickmoon/", None)
    );
    assert_eq!(store.copy.to_str(), Some("/var/lib/brickmoon/members"));
    assert!(cluster.members.is_empty() && cluster.links.len() == 1);
    let epoch = format!("{begin}epoch = 1\n{key}");
    for (from, to, expected) in [
        ("ca = '/etc/ca.pem'\n", "", "`ca` in [cluster.store] is missing"),
        ("user = 'node'\n", "", "`user` in [cluster.store] is missing: write user = \"brickmoon\""),
        (
            "https://192.0.2.1:2379",
            "192.0.2.1",
            "`etcd` in [cluster.store] is \"192.0.2.1\": write https://HOST:PORT",
        ),
        ("user", "prefix = 'x'\nuser", "`prefix` in [cluster.store] is \"x\": write a name that ends in /"),
        ("user", "node = 256\nuser", "`node` in [cluster.store] is 256: must be from 0 to 255"),
        (&format!("{begin}{key}"), &epoch, "`epoch` in [cluster] cannot be used with [cluster.store]"),
    ] {
        assert!(text.contains(from), "{from}");
        let error = refused(&text.replacen(from, to, 1));
        assert!(error.contains(expected), "{error}");
    }
}
