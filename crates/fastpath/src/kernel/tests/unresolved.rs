//! Packets to next hops without a MAC address: they go to Linux, and are reported where that is wanted.

use super::tagged::{tagged, trunk};
use super::*;
use crate::unresolved::{Unresolved, UnresolvedReader};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Instant;

/// Reports on a CPU in a window of 67 ms: REPORTS_MAX.
const REPORTS_MAX: usize = 64;
const WINDOW: Duration = Duration::from_millis(67);

fn cpus() -> usize {
    std::thread::available_parallelism().unwrap().get()
}

/// A lab that reports what is for `hop`, which has no MAC, and what it reports.
fn reporting((mut lab, hop): (Lab, NextHop)) -> (Lab, UnresolvedReader) {
    lab.set4("198.51.100.0/24", hop);
    lab.set6("2001:db8:2::/48", hop);
    lab.configuration.interfaces.iter_mut().for_each(|interface| interface.report_unresolved = true);
    lab.publish();
    let reader = lab.kernel.unresolved().unwrap();
    (lab, reader)
}

fn without_mac(lab: &mut Lab) -> NextHop {
    lab.hops.add(Action::Resolve, Gateway { address: None, interface: 1 }, 0).unwrap()
}

/// The reports so far; each CPU may have sent one.
fn reports(reader: &UnresolvedReader) -> BTreeSet<(u32, IpAddr)> {
    let all = reader.take().unwrap();
    let different: BTreeSet<_> =
        all.iter().map(|Unresolved { hop, destination }| (hop.0, *destination)).collect();
    assert!(all.len() <= different.len() * cpus(), "{all:?}");
    different
}

fn once(hop: NextHop, destination: &str) -> BTreeSet<(u32, IpAddr)> {
    BTreeSet::from([(hop.0, destination.parse().unwrap())])
}

#[test]
fn each_destination_is_reported_once_a_second() {
    let Some(mut lab) = lab() else { return };
    let hop = without_mac(&mut lab);
    let (mut lab, reader) = reporting((lab, hop));
    for (frame, destination) in [(&IPV4[..], "198.51.100.7"), (&IPV6, "2001:db8:2::7")] {
        for _ in 0..50 {
            lab.check_linux(frame, "linux_unresolved");
        }
        assert_eq!(reports(&reader), once(hop, destination));
        for _ in 0..50 {
            assert_eq!(lab.at_tc(frame, 0), (Verdict::Linux, frame.to_vec()));
        }
        assert_eq!(reports(&reader), once(hop, destination), "at tc");
    }
    lab.check_linux(&with(&IPV4, 33, &[8]), "linux_unresolved");
    assert_eq!(reports(&reader), once(hop, "198.51.100.8"), "another one at once");
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(reports(&reader), BTreeSet::new(), "nothing without packets");
    lab.check_linux(&IPV4, "linux_unresolved");
    assert_eq!(reports(&reader), once(hop, "198.51.100.7"), "again after a second");
}

#[test]
fn members_of_groups_and_tagged_frames_are_reported() {
    let Some((mut lab, _, _)) = trunk() else { return };
    let hop = without_mac(&mut lab);
    let group = lab.hops.add_group(&[(hop, 1)]).unwrap();
    let (mut lab, reader) = reporting((lab, group));
    for (frame, destination) in [(&IPV4[..], "198.51.100.7"), (&IPV6, "2001:db8:2::7")] {
        let in_seven = tagged(frame, &[(0x8100, 7)]);
        assert_eq!(lab.pass(&in_seven), (XDP_PASS, in_seven));
        assert_eq!(reports(&reader), once(hop, destination));
    }
}

#[test]
fn nothing_is_reported_unasked_or_for_other_next_hops() {
    let Some(mut lab) = lab() else { return };
    let hop = without_mac(&mut lab);
    let (mut lab, reader) = reporting((lab, hop));
    lab.configuration.interfaces[0].report_unresolved = false;
    lab.publish();
    lab.check_linux(&IPV4, "linux_unresolved");
    lab.check_linux(&IPV6, "linux_unresolved");
    lab.configuration.interfaces[0].report_unresolved = true;
    lab.publish();
    lab.check_linux(&with(&IPV4, 30, &[10]), "linux_no_route");
    for action in [Action::Host, Action::Unreachable, Action::LinuxOnly] {
        lab.hops.set(hop, action).unwrap();
        assert_eq!((lab.pass(&IPV4).0, lab.pass(&IPV6).0), (XDP_PASS, XDP_PASS));
    }
    assert_eq!(reports(&reader), BTreeSet::new());
}

#[test]
fn of_a_flood_of_destinations_only_some_are_reported() {
    let Some(mut lab) = lab() else { return };
    let hop = without_mac(&mut lab);
    let (mut lab, reader) = reporting((lab, hop));
    lab.set4("0.0.0.0/0", hop);
    let begin = Instant::now();
    for number in 0..20_000u32 {
        lab.pass(&with(&IPV4, 30, &(0x0a00_0000 + number).to_be_bytes()));
    }
    let windows = begin.elapsed().as_nanos().div_ceil(WINDOW.as_nanos()) as usize + 1;
    let found = reader.take().unwrap();
    let most = windows * REPORTS_MAX * cpus();
    assert!((REPORTS_MAX..=most).contains(&found.len()), "{} of {most}", found.len());
    // A full ring loses reports, and takes new ones once it is read.
    std::thread::sleep(WINDOW * 2);
    lab.pass(&IPV4);
    assert_eq!(reports(&reader), once(hop, "198.51.100.7"));
}
