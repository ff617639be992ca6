//! What the program costs over one that forwards to a fixed next hop. This is a measurement, to be run by hand:
//!
//! ```sh
//! BM_RIB4=rib4.txt BM_RIB6=rib6.txt cargo test --release -p bm-fastpath cost::cost -- --ignored --nocapture
//! ```
//!
//! Files have `PREFIX/LENGTH NEXT_HOP` lines; BM_COUNTS names numbers of destinations instead of the usual ones.
//! A test program (`cost.bpf.c`) writes the next packet and calls one of the two, 8,192 times per run.

use super::*;
use bm_wire::prefix::{Address, Prefix};
use libbpf_rs::ObjectBuilder;
use std::os::fd::AsRawFd;
use std::str::FromStr;

/// As many as `cost.bpf.c` has room for.
const DESTINATIONS: usize = 1 << 20;
const ROUNDS: u64 = 600;
const PACKETS: u32 = 1 << 13;
/// The words of the IPv4 header below, as they lie in memory, without destination and sum.
const REST_OF_HEADER: [u64; 7] = [0x0045, 0x2e00, 0x0100, 0, 0x1140, 0x00c0, 0x0102];

/// The test programs. Clang is installed, since the build needs it.
fn compiled() -> Object {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/kernel/tests/cost.bpf.c");
    let object = std::env::temp_dir().join(format!("bm-cost-{}.o", std::process::id()));
    let headers = format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let done = Command::new("clang")
        .args(["-O2", "-g", "-target", "bpf", "-mcpu=v3", &headers, "-c", source, "-o"])
        .arg(&object)
        .status();
    assert!(done.unwrap().success());
    let loaded = ObjectBuilder::default().open_file(&object).unwrap().load().unwrap();
    std::fs::remove_file(object).unwrap();
    loaded
}

/// The routes of a file that the environment names, over these next hops.
fn routes<A: Address>(name: &str, hops: &[NextHop]) -> Vec<(Prefix<A>, NextHop)>
where
    Prefix<A>: FromStr<Err: std::fmt::Debug>,
{
    let Ok(file) = std::env::var(name) else { return Vec::new() };
    let route = |line: &str| {
        let (prefix, hop) = line.split_once(' ').unwrap();
        (prefix.parse().unwrap(), hops[hop.trim().parse::<usize>().unwrap() % hops.len()])
    };
    std::fs::read_to_string(&file).unwrap().lines().map(route).collect()
}

struct Rig {
    object: Object,
    ifindex: u32,
    frame: Vec<u8>,
}

impl Rig {
    fn map(&self, name: &str) -> libbpf_rs::MapImpl<'_> {
        self.object.maps().find(|map| map.name() == name).unwrap()
    }

    /// Where to begin, the number of packets minus one, and which program to call: `struct settings`.
    fn set(&self, at: u64, mask: u64, program: u32) {
        let ipv6 = u32::from(self.frame.len() == IPV6.len());
        let words = [&at.to_ne_bytes()[..], &mask.to_ne_bytes(), &program.to_ne_bytes(), &ipv6.to_ne_bytes()];
        self.map("settings").update(&[0; 4], &words.concat(), libbpf_rs::MapFlags::ANY).unwrap();
    }

    fn destinations(&self, of: impl Iterator<Item = [u64; 2]>) {
        let (bytes, map) = (DESTINATIONS * 16, self.map("addresses"));
        let map = bm_sys::Map::file(&map, 0, bytes, bm_sys::Access::ReadWrite).unwrap();
        let at = map.place::<[u64; 2]>(0, DESTINATIONS).as_ptr();
        // SAFETY: the mapping is as long, starts as zeros, and no program runs meanwhile.
        let pairs = unsafe { std::slice::from_raw_parts_mut(at, DESTINATIONS) };
        pairs.iter_mut().zip(of).for_each(|(pair, address)| *pair = address);
    }

    /// Nanoseconds per packet; the program must return `result` for each.
    fn run(&mut self, result: u32) -> f64 {
        let mut context = [0u32; 6];
        (context[1], context[3]) = (self.frame.len() as u32, self.ifindex);
        let mut context: Vec<u8> = context.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let input = ProgramInput {
            data_in: Some(&self.frame),
            context_in: Some(&mut context),
            repeat: PACKETS,
            ..ProgramInput::default()
        };
        let done = program(&mut self.object, "next_packet").test_run(input).unwrap();
        assert_eq!(done.return_value, result);
        done.duration.as_nanos() as f64
    }

    fn measure(&mut self, what: &str) {
        let counts = std::env::var("BM_COUNTS").unwrap_or("1,256,4096,32768,1048576".into());
        for count in counts.split(',').map(|count| count.parse::<u64>().unwrap()) {
            let mut took: [Vec<f64>; 2] = Default::default();
            for round in 0..ROUNDS {
                for (program, took) in (0..).zip(&mut took) {
                    self.set(round * u64::from(PACKETS), count - 1, program);
                    took.push(self.run(XDP_REDIRECT));
                }
            }
            let [ours, floor] = took.map(|mut took| {
                took.sort_by(f64::total_cmp);
                took[took.len() / 20]
            });
            println!("{what}, {count:>7} destinations: {ours} ns over {floor}, +{}", ours - floor);
        }
    }
}

fn random() -> impl FnMut() -> u64 {
    let mut state = 7u64;
    move || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let x = state ^ state >> 33;
        x.wrapping_mul(0xff51_afd7_ed55_8ccd) ^ x >> 29
    }
}

/// An address within a route, as `cost.bpf.c` wants it.
fn within4(prefix: Prefix<u32>, random: u64) -> Option<[u64; 2]> {
    let address = prefix.first() | (random as u32).checked_shr(u32::from(prefix.length())).unwrap_or(0);
    let is_plain = !matches!(address >> 24, 0 | 127 | 224..);
    is_plain.then(|| [u64::from(address.to_be()), REST_OF_HEADER.iter().sum()])
}

fn within6(prefix: Prefix<u128>, random: u64) -> Option<[u64; 2]> {
    let random = u128::from(random) << 64 | u128::from(random);
    let address = prefix.first() | random.checked_shr(u32::from(prefix.length())).unwrap_or(0);
    let [high, low] = [(address >> 64) as u64, address as u64].map(u64::to_be);
    (address >> 125 == 1).then_some([high, low])
}

/// The test programs with ours (0) and the floor (1) to call; keep the link while they are used.
fn rig(lab: &mut Lab) -> (Rig, libbpf_rs::Link) {
    let object = compiled();
    // What is attached somewhere is in the kernel's dispatcher: otherwise each run waits until it is put there.
    let first = object.progs_mut().find(|program| program.name() == "next_packet").unwrap();
    let there = first.attach_xdp(attach::ifindex("far").unwrap() as i32).unwrap();
    let floor = object.progs().find(|program| program.name() == "fixed_next_hop").unwrap();
    let ours = program(&mut lab.kernel.object, forwards(bm_bpf::AttachType::Xdp)).as_fd().as_raw_fd();
    // No padding: cutting it off is not asked for here.
    let mut frame = with(&IPV4, 16, &[0, 46]);
    frame.resize(60, 0);
    let floor = floor.as_fd().as_raw_fd();
    let rig = Rig { object, ifindex: lab.ifindex, frame };
    for (at, fd) in (0u32..).zip([ours, floor]) {
        rig.map("programs").update(&at.to_ne_bytes(), &fd.to_ne_bytes(), libbpf_rs::MapFlags::ANY).unwrap();
    }
    (rig, there)
}

/// A packet to a blackhole route beside one that is forwarded. What happens after the program is not measured: a dropped
/// frame goes back to its device, a redirected one is sent by another.
#[test]
#[ignore = "measures, some seconds: cargo test --release -p bm-fastpath cost::blackholed -- --ignored --nocapture"]
fn blackholed() {
    let Some(mut lab) = lab() else { return };
    let forwarded = lab.hop(1);
    let nowhere = lab.hops.add(Action::Blackhole, Gateway::default(), 0).unwrap();
    lab.set4("198.51.100.0/24", forwarded);
    lab.set4("203.0.113.0/24", nowhere);
    lab.configuration.interfaces[0].partial_sums = true;
    lab.publish();
    let (mut rig, _there) = rig(&mut lab);
    let cases = [("198.51.100.9", XDP_REDIRECT), ("203.0.113.9", XDP_DROP)];
    let mut took: [Vec<f64>; 2] = Default::default();
    for _ in 0..ROUNDS {
        for ((address, result), took) in cases.iter().zip(&mut took) {
            let address: std::net::Ipv4Addr = address.parse().unwrap();
            rig.destinations(within4(Prefix::host(u32::from(address)), 0).into_iter());
            rig.set(0, 0, 0);
            took.push(rig.run(*result));
        }
    }
    let [forwarded, blackholed] = took.map(|mut took| {
        took.sort_by(f64::total_cmp);
        [took[0], took[took.len() / 2], took[took.len() - 1]]
    });
    let ratio = blackholed[1] / forwarded[1];
    println!("min, median, max in ns: forwarded {forwarded:?}, blackholed {blackholed:?}; ratio {ratio:.2}");
}

#[test]
#[ignore = "measures, a minute or less: see the module"]
fn cost() {
    let Some(mut lab) = lab() else { return };
    let hops: Vec<NextHop> = (0..1024).map(|number| lab.hop(number)).collect();
    let (ipv4, ipv6) = (routes::<u32>("BM_RIB4", &hops), routes::<u128>("BM_RIB6", &hops));
    let source = lab.kernel.source(Part::Ipv4).unwrap();
    lab.ipv4 = Chunk17::build_in(ipv4.iter().copied(), &lab.readers, &source).unwrap();
    let source = lab.kernel.source(Part::Ipv6).unwrap();
    lab.ipv6 = Range6::build_in(ipv6.iter().copied(), &lab.readers, &source).unwrap();
    let mib = [lab.ipv4.memory_bytes(), lab.ipv6.memory_bytes()].map(|bytes| bytes as f64 / 1_048_576.0);
    println!("IPv4 {:.3} MiB, IPv6 {:.3} MiB", mib[0], mib[1]);
    lab.configuration.interfaces[0].partial_sums = true;
    lab.publish();
    let (mut rig, _there) = rig(&mut lab);
    let mut next = random();
    if !ipv4.is_empty() {
        let any = std::iter::repeat_with(|| within4(ipv4[next() as usize % ipv4.len()].0, next()));
        rig.destinations(any.flatten().take(DESTINATIONS));
        rig.measure("ipv4");
    }
    if !ipv6.is_empty() {
        rig.frame = IPV6.to_vec();
        let any = std::iter::repeat_with(|| within6(ipv6[next() as usize % ipv6.len()].0, next()));
        rig.destinations(any.flatten().take(DESTINATIONS));
        rig.measure("ipv6");
    }
}
