use std::time::Duration;

use libbpf_rs::libbpf_sys::{self, bpf_test_run_opts};

use super::layout::{GeneratorState, SinkState};
use super::*;
use crate::addresses::{Pattern, destinations};
use crate::random::Seed;
use crate::tables::{Table, TableOptions, generate};
use crate::testbed::kernel::Change;
use crate::testbed::{ROUTER_OUT_IPV4, Testbed, TestbedOptions, require_root};

fn is_skipped(name: &str) -> bool {
    let skipped = require_root().is_err();
    if skipped {
        eprintln!("skipped {name}: needs root");
    }
    skipped
}

fn testbed(name: &str, tag: &str) -> Testbed {
    let options =
        TestbedOptions { prefix: format!("bm-testbed-{name}"), tag: tag.into(), ..TestbedOptions::default() };
    Testbed::up(&options).unwrap()
}

/// Runs a program once over a frame, without sending it; returns the verdict and the frame.
fn run_once(program: &std::os::fd::OwnedFd, frame: &[u8]) -> (u32, Vec<u8>) {
    use std::os::fd::AsRawFd;
    let mut out = vec![0; 4096];
    let mut options = bpf_test_run_opts {
        sz: size_of::<bpf_test_run_opts>() as libbpf_sys::size_t,
        data_in: frame.as_ptr().cast(),
        data_size_in: frame.len() as u32,
        data_out: out.as_mut_ptr().cast(),
        data_size_out: out.len() as u32,
        repeat: 1,
        ..bpf_test_run_opts::default()
    };
    // SAFETY: the options and both buffers are whole and outlive the call.
    let result = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut options) };
    assert_eq!(result, 0);
    out.truncate(options.data_size_out as usize);
    (options.retval, out)
}

/// UDP from 10.0.1.2, port 1024, to 198.51.100.7, port 9: sequence number 0 towards next hop 3, sent at
/// 0x0807060504030201 ns. Sums were done by hand.
const IPV4_FRAME: [u8; 60] = [
    2, 0, 0, 0, 1, 1, 2, 0, 0, 0, 1, 2, 8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0x45, 0x83, 10, 0, 1, 2,
    198, 51, 100, 7, 4, 0, 0, 9, 0, 26, 0xb6, 0x5d, 0, 0, 0, 0, 0, 3, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0,
];

fn ipv4_stream(sizes: Sizes) -> Stream {
    let mut stream = Stream::ipv4(&[0xc633_6407, 0xc633_6408], sizes);
    stream.destinations[0].expect(3);
    stream
}

fn ipv6_stream(sizes: Sizes) -> Stream {
    Stream::ipv6(&[0x2001_0db8 << 96 | 7, 0x2001_0db8 << 96 | 9, u128::MAX >> 3], sizes)
}

#[test]
#[cfg(target_endian = "little")]
fn frames_match_the_documented_bytes() {
    let frame = layout::frame(&ipv4_stream(Sizes::Fixed(64)), 0, 0x0807_0605_0403_0201);
    assert_eq!(frame, IPV4_FRAME);
    let frame = layout::frame(&ipv6_stream(Sizes::Fixed(64)), 1, 0);
    assert_eq!(frame.len(), 78);
    assert_eq!(frame[14..22], [0x60, 0, 0, 0, 0, 24, 17, 64]);
    assert_eq!(frame[38..54], (0x2001_0db8_u128 << 96 | 9).to_be_bytes());
}

/// UDP from 198.51.100.7, port 9, to 10.0.16.1, port 1024, from the MAC address of next hop 1 to the router's.
#[test]
fn an_answer_goes_back_to_the_router() {
    let answer: [u8; 60] = [
        2, 0, 0, 0, 2, 1, 2, 0, 0, 1, 0, 1, 8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0x36, 0x84, 198, 51,
        100, 7, 10, 0, 16, 1, 0, 9, 4, 0, 0, 26, 0xb7, 0x75, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0,
    ];
    let stream = ipv4_stream(Sizes::Imix);
    assert_eq!(layout::answer(&stream, 0, ROUTER_OUT_IPV4), answer);
    assert_eq!(layout::answer(&stream, 2, ROUTER_OUT_IPV4), answer);
}

/// The kernel's program creates the same bytes as the sender here, with all checksums, for every size.
#[test]
fn generator_and_sender_agree() {
    if is_skipped("generator_and_sender_agree") {
        return;
    }
    let programs = Programs::load().unwrap();
    for stream in
        [Sizes::Fixed(64), Sizes::Imix].into_iter().flat_map(|sizes| [ipv4_stream(sizes), ipv6_stream(sizes)])
    {
        for (place, to) in stream.destinations.iter().enumerate() {
            programs.destinations.set(place, *to);
        }
        programs.generator.set(0, GeneratorState::for_stream(&stream, 1));
        let longest = stream.sizes.iter().copied().max().unwrap();
        for sequence in 0..30 {
            let (verdict, frame) = run_once(&programs.generate, &vec![0; longest.into()]);
            assert_eq!(verdict, 4, "XDP_REDIRECT");
            let time = if stream.family == Family::V6 { 70..78 } else { 50..58 };
            let sent_ns = u64::from_ne_bytes(frame[time].try_into().unwrap());
            assert_eq!(frame, layout::frame(&stream, sequence, sent_ns), "packet {sequence}");
        }
        assert_eq!(programs.generator.get(0).sent, 30);
    }
}

/// A frame as a correct router forwards it: to a next hop's MAC address, TTL decremented, checksum updated.
fn forwarded(stream: &Stream, sequence: u32, next_hop: u16) -> Vec<u8> {
    let mut frame = layout::frame(stream, sequence, 0);
    frame[..6].copy_from_slice(&crate::testbed::mac::next_hop(next_hop));
    if stream.family == Family::V6 {
        frame[21] -= 1;
        return frame;
    }
    frame[22] -= 1;
    let sum = u32::from(u16::from_be_bytes([frame[24], frame[25]])) + 0x100;
    frame[24..26].copy_from_slice(&((sum + u32::from(sum >= 0xffff)) as u16).to_be_bytes());
    frame
}

fn verdicts(programs: &Programs, frame: &[u8]) -> (u32, Arrived) {
    use libbpf_rs::{MapCore, MapFlags};
    let map = &programs.arrivals;
    let sum = |words: Vec<Vec<u8>>| {
        let of = |index: usize| {
            words.iter().map(|core| u64::from_ne_bytes(core.as_chunks::<8>().0[index])).sum::<u64>()
        };
        Arrived {
            good: of(0),
            bytes: of(1),
            bad_hops: of(2),
            bad_checksum: of(3),
            bad_next_hop: of(4),
            bad_shape: of(5),
        }
    };
    let read = || sum(map.lookup_percpu(&[0; 4], MapFlags::ANY).unwrap().unwrap());
    let before = read();
    let (verdict, _) = run_once(&programs.sink_frames, frame);
    (verdict, read().since(&before))
}

#[test]
fn sink_finds_every_fault() {
    if is_skipped("sink_finds_every_fault") {
        return;
    }
    let programs = Programs::load().unwrap();
    let (ipv4, ipv6) = (ipv4_stream(Sizes::Fixed(64)), ipv6_stream(Sizes::Fixed(64)));
    let (dropped, passed) = (1, 2);
    let check = |what: &str, frame: &[u8], verdict, want: Arrived| {
        assert_eq!(verdicts(&programs, frame), (verdict, want), "{what}");
    };
    let none = Arrived::default();
    let right = forwarded(&ipv4, 0, 3);
    check("right", &right, dropped, Arrived { good: 1, bytes: 60, ..none });
    check("right, any next hop", &forwarded(&ipv4, 1, 9), dropped, Arrived { good: 1, bytes: 60, ..none });
    check("right IPv6", &forwarded(&ipv6, 0, 1), dropped, Arrived { good: 1, bytes: 78, ..none });
    check("wrong next hop", &forwarded(&ipv4, 0, 4), dropped, Arrived { bad_next_hop: 1, ..none });

    let changed = |at: usize, value: u8| {
        let mut frame = right.clone();
        frame[at] = value;
        frame
    };
    check("to some other MAC", &changed(0, 4), dropped, Arrived { bad_next_hop: 1, ..none });
    check("a hop too many", &changed(22, 62), dropped, Arrived { bad_hops: 1, ..none });
    check("checksum not updated", &changed(24, right[24] - 1), dropped, Arrived { bad_checksum: 1, ..none });
    check("another source port", &changed(34, 9), dropped, Arrived { bad_shape: 1, ..none });
    check("padding forwarded", &[&right[..], &[0; 4]].concat(), dropped, Arrived { bad_shape: 1, ..none });
    check("another destination port", &changed(37, 10), passed, none);
    check("TCP", &changed(23, 6), passed, none);
    check("ARP", &changed(13, 6), passed, none);
    check("cut short", &right[..57], passed, none);
    let mut unrouted = forwarded(&ipv6, 0, 1);
    unrouted[21] = 64;
    check("no hop less", &unrouted, dropped, Arrived { bad_hops: 1, ..none });
}

#[test]
fn sink_tracks_order_and_gaps() {
    if is_skipped("sink_tracks_order_and_gaps") {
        return;
    }
    let programs = Programs::load().unwrap();
    let stream = ipv4_stream(Sizes::Fixed(64));
    programs.sink.set(0, SinkState { is_tracking: 1, destinations: 2, ..SinkState::default() });
    for sequence in [0, 1, 2, 5, 4, 3, 7] {
        run_once(&programs.sink_frames, &forwarded(&stream, sequence, 3));
    }
    std::thread::sleep(Duration::from_millis(30));
    run_once(&programs.sink_frames, &forwarded(&stream, 6, 3));
    let state = programs.sink.get(0);
    // Flow 0 came as 0 2 4 6, flow 1 as 1 5 3 7: only 3 came after a later one.
    assert_eq!((state.tracked, state.reordered), (8, 1));
    assert!((30_000_000..3_000_000_000).contains(&state.gap_ns_max), "{state:?}");
    assert!(state.last_ns == state.gap_end_ns && state.delay_ns_max > 0);
}

fn table() -> Table {
    generate(&TableOptions { ipv4: 2_000, ipv6: 1_000, ..TableOptions::default() }).unwrap()
}

/// Waits for a while: on a busy machine everything takes longer.
fn wait_for(is_so: impl Fn() -> bool) {
    for _ in 0..1_000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("nothing came of it within ten seconds");
}

/// Sends to the addresses of a table through Linux, and returns what was sent and what arrived.
fn through_linux<A: Traffic>(tag: &str, routes: &[crate::tables::Route<A>], sizes: Sizes, mode: SinkMode) {
    let name = format!("flow-{tag}");
    let testbed = testbed(&name, tag);
    testbed.change_routes(Change::Add, &table()).unwrap();
    let programs = Programs::load().unwrap();
    let addresses = destinations(Pattern::Prefix, Seed(1), 4_096, routes);
    // Slow enough that Linux loses nothing even on a busy machine.
    let stream = A::stream(&addresses, sizes, &Oracle::new(routes)).at_rate(5_000.0);
    let sink = Sink::attach(&programs, &testbed, mode).unwrap();
    sink.track(&stream);
    let generator = Generator::start(&programs, &testbed, &stream, None).unwrap();
    wait_for(|| generator.sent().packets > 500);
    let sent = generator.stop().unwrap();
    wait_for(|| sink.tracked().packets >= sent.packets);
    let (arrived, tracked) = (sink.arrived().unwrap(), sink.tracked());
    assert_eq!((arrived.good, arrived.bad()), (sent.packets, 0), "{arrived:?}");
    assert_eq!((tracked.packets, tracked.reordered), (sent.packets, 0));
    assert!(tracked.delay_mean > Duration::ZERO && tracked.delay_mean <= tracked.delay_max);
}

#[test]
fn linux_forwards_ipv4_correctly() {
    if !is_skipped("linux_forwards_ipv4_correctly") {
        through_linux("fa", &table().ipv4, Sizes::Fixed(64), SinkMode::Skbs);
    }
}

#[test]
fn linux_forwards_ipv6_imix_correctly() {
    if !is_skipped("linux_forwards_ipv6_imix_correctly") {
        through_linux("fb", &table().ipv6, Sizes::Imix, SinkMode::Frames);
    }
}

#[test]
fn paced_sender_keeps_its_rate() {
    if is_skipped("paced_sender_keeps_its_rate") {
        return;
    }
    let testbed = testbed("paced", "fc");
    let table = table();
    testbed.change_routes(Change::Add, &table).unwrap();
    let programs = Programs::load().unwrap();
    let addresses = destinations(Pattern::Prefix, Seed(1), 64, &table.ipv4);
    let stream = u32::stream(&addresses, Sizes::Fixed(64), &Oracle::new(&table.ipv4)).at_rate(2_000.0);
    let sink = Sink::attach(&programs, &testbed, SinkMode::Skbs).unwrap();
    sink.track(&stream);
    let paced = Paced::start(&testbed, &stream).unwrap();
    wait_for(|| sink.tracked().packets > 500);
    let sent = paced.stop().unwrap();
    wait_for(|| sink.tracked().packets >= sent.packets);
    let rate = sent.packets as f64 / sent.time.as_secs_f64();
    assert!((500.0..2_100.0).contains(&rate), "{sent:?}");
    assert_eq!(sink.arrived().unwrap().good, sent.packets);
    assert!(sink.tracked().gap_max >= Duration::from_micros(400));
}
