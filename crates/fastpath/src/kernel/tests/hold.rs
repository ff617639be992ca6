//! Interfaces that are held until their filters are in place.

use super::*;

#[test]
fn a_held_interface_forwards_once_it_is_released() {
    let Some((load, ifindex)) = pinned() else { return };
    let mut kernel = load();
    kernel.attach_held("in", AttachChoice::Xdp).unwrap();
    assert!(
        kernel.holds_any() && kernel.attach("in", AttachChoice::Xdp).is_ok(),
        "asked again, it stays as it is"
    );
    let held = attach::program_on(ifindex);
    let pin = kernel.pins.as_ref().unwrap().path(ifindex, AttachType::Xdp);
    assert!(held.is_some() && !pin.exists(), "a crash takes it off");
    // Other tables, which other interfaces are switched to.
    kernel.source(Part::Ipv4).unwrap();
    kernel.publish(&Configuration::default()).unwrap();
    assert_eq!(kernel.release(|_| false).unwrap(), []);
    assert_eq!(attach::program_on(ifindex), held);
    let [(of, counted)] = kernel.release(|_| true).unwrap()[..] else { panic!("one interface") };
    assert_eq!((of, counted), (ifindex, Counters::default()));
    assert!(!kernel.holds_any() && attach::program_on(ifindex) != held && pin.exists());
    drop(kernel);
    assert_eq!(attach::program_on(ifindex), None);
    // Without a daemon nothing is dropped.
    let mut kernel = load();
    kernel.attach_held("in", AttachChoice::Xdp).unwrap();
    drop(kernel);
    assert_eq!(attach::program_on(ifindex), None);
}

#[test]
fn a_held_interface_drops_and_counts_routable_packets() {
    let Some(mut lab) = lab() else { return };
    let ifindex = lab.ifindex;
    let mut verdict = |frame: &[u8]| lab.kernel.trial_of("bm_hold", ifindex, frame).unwrap().0;
    let tagged = [&IPV4[..12], &[0x81, 0, 0, 5], &IPV4[12..]].concat();
    let link_local = with(&IPV6, 38, &[0xfe, 0x80]);
    let (arp, group) = (with(&IPV4, 12, &[8, 6]), with(&IPV4, 0, &[1, 0, 0x5e]));
    assert_eq!([&IPV4[..], &IPV6, &tagged].map(&mut verdict), [Verdict::Drop; 3]);
    assert_eq!([&link_local[..], &arp, &group].map(&mut verdict), [Verdict::Linux; 3]);
    let bytes = (IPV4.len() + IPV6.len() + tagged.len()) as u64;
    assert_eq!(lab.kernel.take_held(ifindex), Counters::held(3, bytes));
    assert_eq!(lab.kernel.take_held(ifindex), Counters::default(), "once");
}
