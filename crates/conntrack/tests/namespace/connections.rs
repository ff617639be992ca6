//! Listing connections, getting one, removing it, and the settings.

use super::bed::{Bed, Tcp, Udp, reverse};
use bm_conntrack::{Settings, Update, status};
use bm_netlink::Family;

#[test]
fn lists_connections_of_both_families() {
    let Some(mut bed) = Bed::new("ct-list") else { return };
    let (four, six) = (Tcp::open("127.0.0.1"), Tcp::open("::1"));
    let (udp4, udp6) = (Udp::open("127.0.0.1"), Udp::open("::1"));
    udp6.answer();
    let established = status::SEEN_REPLY | status::ASSURED | status::CONFIRMED;
    for (tuple, family, tcp_state, wanted) in [
        (four.tuple(), Family::V4, Some(3), established),
        (six.tuple(), Family::V6, Some(3), established),
        (udp4.tuple(), Family::V4, None, status::CONFIRMED),
        (udp6.tuple(), Family::V6, None, status::CONFIRMED | status::SEEN_REPLY),
    ] {
        for (family, is_in) in [(None, true), (Some(Family::V4), false), (Some(Family::V6), false)]
            .map(|(asked, all)| (asked, all || asked == Some(family)))
        {
            let list = bed.conntrack.list(family).unwrap();
            let found = list.iter().find(|connection| connection.original == tuple);
            assert_eq!(found.is_some(), is_in, "{tuple:?} in {family:?}");
            let Some(found) = found else { continue };
            assert_eq!((found.reply, found.tcp_state, found.status), (reverse(&tuple), tcp_state, wanted));
            assert_eq!((found.zones, found.mark, found.has_helper), ([0, 0], 0, false));
            assert_eq!(found.liberal, tcp_state.map(|_| false));
            assert!(found.timeout_s.is_some_and(|timeout| timeout > 0));
        }
    }
    assert_eq!(bed.conntrack.list(None).unwrap().len(), 4);
}

#[test]
fn gets_and_removes_one() {
    let Some(mut bed) = Bed::new("ct-get") else { return };
    let (tcp, udp) = (Tcp::open("127.0.0.1"), Udp::open("::1"));
    for tuple in [tcp.tuple(), udp.tuple()] {
        let found = bed.get(&tuple);
        assert_eq!(found.original, tuple);
        assert_eq!(bed.get(&reverse(&tuple)).id, found.id, "the other direction finds it, too");
        assert_eq!(bed.conntrack.get(&tuple, 1).unwrap(), None, "of another zone");
        assert!(!bed.conntrack.delete(&tuple, 0, Some(found.id ^ 1)).unwrap(), "another ID");
        assert!(bed.conntrack.delete(&tuple, 0, Some(found.id)).unwrap());
        assert_eq!(bed.conntrack.get(&tuple, 0).unwrap(), None);
        assert!(!bed.conntrack.delete(&tuple, 0, None).unwrap());
    }
}

#[test]
fn marks_and_zones() {
    let Some(mut bed) = Bed::new("ct-zones") else { return };
    for (rule, zones) in
        [("ct zone set 5", [5, 5]), ("ct original zone set 6", [6, 0]), ("ct reply zone set 7", [0, 7])]
    {
        let rules = format!(
            "nft 'flush chain inet t zones; flush chain inet t seen; add rule inet t zones meta l4proto udp {rule}; \
             add rule inet t seen ct mark set 0x99'"
        );
        assert!(bed.namespace.shell(&rules), "{rules}");
        let udp = Udp::open("127.0.0.1");
        let list = bed.conntrack.list(None).unwrap();
        let found = list.iter().find(|connection| connection.original == udp.tuple()).unwrap();
        assert_eq!((found.zones, found.mark), (zones, 0x99), "{rule}");
        for (tuple, zone) in [(found.original, zones[0]), (found.reply, zones[1])] {
            let got = bed.conntrack.get(&tuple, zone).unwrap();
            assert_eq!(got.map(|got| got.id), Some(found.id), "{rule}: {tuple:?}");
        }
        let (original, zone) = (found.original, zones[0]);
        let update = Update { original, zone, timeout_s: Some(5000), liberal: false, status: None };
        assert!(bed.conntrack.update(&[update]).unwrap()[0].is_ok(), "{rule}");
        let got = bed.conntrack.get(&found.original, zones[0]).unwrap().unwrap();
        assert!(got.timeout_s.is_some_and(|timeout| timeout > 4000), "{rule}: {got:?}");
        assert!(bed.conntrack.delete(&found.original, zones[0], Some(found.id)).unwrap(), "{rule}");
    }
}

#[test]
fn settings_are_those_of_the_namespace() {
    let Some(bed) = Bed::new("ct-settings") else { return };
    let before = Settings::read().unwrap();
    assert!(before.max > 0, "{before:?}");
    let set = "sysctl -qw net.netfilter.nf_conntrack_acct=1 \
        net.netfilter.nf_conntrack_tcp_timeout_established=1234 net.netfilter.nf_conntrack_udp_timeout=12 \
        net.netfilter.nf_conntrack_udp_timeout_stream=34 net.netfilter.nf_conntrack_tcp_be_liberal=1";
    assert!(bed.namespace.shell(set));
    let expected = Settings {
        acct: true,
        max: before.max,
        tcp_timeout_established_s: 1234,
        udp_timeout_s: 12,
        udp_timeout_stream_s: 34,
        tcp_be_liberal: true,
    };
    assert_eq!(Settings::read().unwrap(), expected);
    assert_eq!(Settings::tcp_timeout_s(3).unwrap(), 1234);
    assert!(Settings::tcp_timeout_s(7).unwrap() > 0 && Settings::tcp_timeout_s(0).is_err());
}
