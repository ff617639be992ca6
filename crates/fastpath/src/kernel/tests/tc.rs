//! The program at tc: it decides and rewrites as XDP does, and supports packets that are segmented on sending.

use super::*;
use bm_bpf::AttachType;
use bm_wire::checksum;

const TCP: u8 = 6;
const UDP: u8 = 17;

impl Lab {
    pub(super) fn at_tc(&mut self, frame: &[u8], gso_size: u32) -> (Verdict, Vec<u8>) {
        self.kernel.trial_at_tc(self.ifindex, frame, gso_size).unwrap()
    }

    /// The frame goes to Linux as it was, for this reason.
    fn check_left(&mut self, frame: &[u8], gso_size: u32, reason: &str) {
        let before = self.count(reason);
        assert_eq!(self.at_tc(frame, gso_size), (Verdict::Linux, frame.to_vec()), "{reason}");
        assert_eq!(self.count(reason) - before, 1, "{reason}: {:?}", self.kernel.counters(0));
    }
}

/// `IPV4` with another protocol and `payload` bytes after its header, which begin with a TCP header of 20 bytes.
fn long4(protocol: u8, payload: usize) -> Vec<u8> {
    let mut frame = IPV4[..34].to_vec();
    frame[16..18].copy_from_slice(&u16::to_be_bytes(20 + payload as u16));
    frame[23] = protocol;
    frame[24..26].fill(0);
    let sum = checksum::checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame.resize(34 + payload, 0);
    frame[46] = 5 << 4;
    frame
}

/// The same of `IPV6`.
fn long6(protocol: u8, payload: usize) -> Vec<u8> {
    let mut frame = IPV6[..54].to_vec();
    frame[18..20].copy_from_slice(&u16::to_be_bytes(payload as u16));
    frame[20] = protocol;
    frame.resize(54 + payload, 0);
    frame[66] = 5 << 4;
    frame
}

#[test]
fn tc_forwards_like_xdp() {
    let Some(mut lab) = lab() else { return };
    let hop = lab.hop(1);
    lab.set4("198.51.100.0/24", hop);
    lab.set6("2001:db8:2::/48", hop);
    let mut frames = vec![IPV4.to_vec(), IPV6.to_vec(), long4(TCP, 1480), long6(TCP, 1460), long4(UDP, 1481)];
    // Padding, other MACs, TTL used up, options, a fragment, a wrong checksum, no route, too short, no IP.
    frames.push([&IPV4[..], &[0xaa; 14]].concat());
    for (at, value) in [(5, 9), (22, 1), (14, 0x46), (20, 0x20), (25, 0), (33, 8), (30, 10), (12, 7)] {
        let mut frame = IPV4.to_vec();
        frame[at] = value;
        frames.push(frame);
    }
    for (at, value) in [(21, 1), (20, 0), (14, 0x45), (22, 0xff), (38, 0xfe), (41, 9), (19, 200)] {
        let mut frame = IPV6.to_vec();
        frame[at] = value;
        frames.push(frame);
    }
    let mut forwarded = 0;
    for frame in frames {
        let counted = |lab: &Lab| lab.kernel.counters(0).unwrap().named().collect::<Vec<_>>();
        let begin = counted(&lab);
        let xdp = lab.kernel.trial(lab.ifindex, &frame).unwrap();
        let between = counted(&lab);
        let tc = lab.at_tc(&frame, 0);
        let end = counted(&lab);
        assert_eq!(tc, xdp, "{frame:02x?}");
        for ((first, second), third) in begin.iter().zip(&between).zip(&end) {
            assert_eq!(third.1 - second.1, second.1 - first.1, "{}: {frame:02x?}", first.0);
        }
        forwarded += u32::from(tc.0 == Verdict::Redirect);
    }
    assert_eq!(forwarded, 5, "both of the literals, padded, and as large as fits");
}

#[test]
fn segments_of_large_packets_must_fit_the_mtu() {
    let Some(mut lab) = lab() else { return };
    let hop = lab.hop(1);
    lab.set4("0.0.0.0/0", hop);
    lab.set6("::/0", hop);
    for (frame, most) in [(long4(TCP, 3_400), 1460), (long6(TCP, 3_400), 1440)] {
        let forwarded = |lab: &Lab| lab.kernel.counters(0).unwrap().named().next().unwrap();
        let before = forwarded(&lab);
        let (verdict, out) = lab.at_tc(&frame, most);
        assert_eq!((verdict, out.len()), (Verdict::Redirect, frame.len()));
        assert_eq!(forwarded(&lab), ("forwarded", before.1 + 1));
        lab.check_left(&frame, most + 1, "linux_mtu");
        // More than that is one packet, which does not fit.
        lab.check_left(&frame, 0, "linux_mtu");
    }
    // Lengths of others, such as of tunnels, are not known.
    lab.check_left(&long4(UDP, 3_400), 1200, "linux_header");
    lab.check_left(&long6(UDP, 3_400), 1200, "linux_header");
    // More than 64 KiB: the header has no length.
    let mut jumbo = long6(TCP, 3_400);
    jumbo[18..20].fill(0);
    lab.check_left(&jumbo, 1400, "linux_header");
}

#[test]
fn tc_sends_where_xdp_cannot() {
    let Some(mut lab) = lab() else { return };
    let hop = lab.hop(1);
    lab.set4("0.0.0.0/0", hop);
    lab.configuration.interfaces[1].sends = false;
    lab.publish();
    lab.check_linux(&IPV4, "linux_egress");
    assert_eq!(lab.at_tc(&IPV4, 0).0, Verdict::Redirect);
    lab.configuration.interfaces[1].up = false;
    lab.publish();
    lab.check_left(&IPV4, 0, "linux_egress");
}

/// Whether Linux can attach a program to tc by a link: since 6.6.
fn has_tcx() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse::<u32>().unwrap());
    (numbers.next(), numbers.next()) >= (Some(6), Some(6))
}

/// As [`pinned`]. Where Linux has no links at tc, the test is skipped once the error has said so.
fn pinned_with_tcx() -> Option<(impl Fn() -> Kernel, u32)> {
    let (load, ifindex) = pinned()?;
    if !has_tcx() {
        let refused = load().attach("in", AttachChoice::Tc).unwrap_err().to_string();
        assert!(refused.contains("that needs Linux 6.6 or newer"), "{refused}");
        eprintln!("skipped: programs at tc need Linux 6.6 or newer");
        return None;
    }
    Some((load, ifindex))
}

#[test]
fn an_interface_moves_between_xdp_and_tc() {
    let Some((load, ifindex)) = pinned_with_tcx() else { return };
    let mut kernel = load();
    let at = |kernel: &Kernel| kernel.attached(ifindex).unwrap().0;
    for choice in [AttachChoice::Tc, AttachChoice::Xdp, AttachChoice::Tc] {
        kernel.attach("in", choice).unwrap();
        let is_xdp = choice == AttachChoice::Xdp;
        assert_eq!(at(&kernel), if is_xdp { AttachType::Xdp } else { AttachType::Tc });
        assert_eq!(attach::program_on(ifindex).is_some(), is_xdp);
        assert_eq!(kernel.attached.len(), 1);
        assert!(kernel.attached.iter().all(AttachedInterface::is_live));
        // Other tables, which it is switched to.
        kernel.source(Part::Ipv4).unwrap();
        kernel.publish(&Configuration::default()).unwrap();
    }
    kernel.keep().unwrap();
    drop(kernel);

    let mut second = load();
    assert_eq!(second.attach("in", AttachChoice::Tc).unwrap().adopted, Some(7));
    assert_eq!(second.take_over().unwrap().switched, 1);
    second.keep().unwrap();
    drop(second);

    // What is left at tc is detached once XDP has its tables.
    let mut third = load();
    assert_eq!(third.attach("in", AttachChoice::Xdp).unwrap().adopted, None);
    let done = third.take_over().unwrap();
    assert_eq!((done.switched, done.removed), (1, Vec::new()));
    drop(third);
    assert!(load().left.is_empty());
}

#[test]
fn tc_also_holds_packets_until_filters_are_ready() {
    let Some((load, ifindex)) = pinned_with_tcx() else { return };
    let mut kernel = load();
    kernel.attach_held("in", AttachChoice::Tc).unwrap();
    assert!(kernel.holds_any());
    let [(of, _)] = kernel.release(|_| true).unwrap()[..] else { panic!("one interface") };
    assert_eq!(of, ifindex);
    assert!(!kernel.holds_any() && kernel.attached(ifindex).unwrap().0 == AttachType::Tc);
}

#[test]
fn another_program_in_front_at_tc_is_noticed() {
    let Some((load, ifindex)) = pinned_with_tcx() else { return };
    let mut kernel = load();
    kernel.attach("in", AttachChoice::Tc).unwrap();
    assert_eq!(kernel.uncovered(), BTreeMap::new());
    let mut other = Kernel::load(Duration::ZERO).unwrap();
    other.attach("in", AttachChoice::Tc).unwrap();
    assert_eq!(other.uncovered(), BTreeMap::new(), "a program goes in front of those that are there");
    let why = kernel.uncovered().remove(&ifindex).unwrap();
    assert!(
        why.starts_with("another BPF program at tc ingress runs before brickmoon's (bm_forward_"),
        "{why}"
    );
    drop(other);
    assert_eq!(kernel.uncovered(), BTreeMap::new());
    bm_bpf::xdp::detach(&kernel.attached[0].link);
    let why = kernel.uncovered().remove(&ifindex).unwrap();
    assert!(why.starts_with("its program has been detached"), "{why}");
}

#[test]
fn interfaces_without_room_are_noticed() {
    let Some((load, ifindex)) = pinned() else { return };
    let mut kernel = load();
    kernel.attach("in", AttachChoice::Xdp).unwrap();
    let interface = |index, ifindex| Interface { index, ifindex, looked_at: true, ..Interface::default() };
    let twin = ifindex + crate::layout::INGRESSES as u32;
    let interfaces = vec![interface(0, twin), interface(1, ifindex)];
    kernel.publish(&Configuration { interfaces, ..Configuration::default() }).unwrap();
    let why = kernel.uncovered().remove(&ifindex).unwrap();
    assert!(why.starts_with("the kernel path has no room for it"), "{why}");
    let interfaces = vec![interface(1, ifindex)];
    kernel.publish(&Configuration { interfaces, ..Configuration::default() }).unwrap();
    assert_eq!(kernel.uncovered(), BTreeMap::new());
}
