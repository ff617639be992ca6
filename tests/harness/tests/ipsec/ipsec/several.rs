//! Two workers, and policies with an SA for each: of the configuration, and of a program that adds them when asked.
//!
//! ```text
//! flows of host a ─► queues of `lan` ─► worker 0 ─ SA 0 ─┐
//!                                  └──► worker 1 ─ SA 1 ─┴► ESP of both ─► gateway 2 ─► host b, which answers
//! ```

use super::*;
use bm_tests::sys;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Write};

const QUEUES: &str = "numtxqueues 2 numrxqueues 2";
/// Flows: enough that both queues get some of them.
const FLOWS: u16 = 24;

/// SAs of each direction and gateway: SPIs are 0x1001, 0x1011, .. for the first gateway, 0x1002, .. for the second one.
struct Sas {
    /// How many each policy has.
    count: usize,
    /// More settings of an outbound SA of the first gateway, by its number.
    more: &'static dyn Fn(usize) -> &'static str,
}

const TWO: Sas = Sas { count: 2, more: &|_| "" };

fn spi(from: usize, number: usize) -> usize {
    0x1001 + from + 0x10 * number
}

fn key(from: usize, number: usize) -> String {
    KEYS[from].replacen("0x", &format!("0x{number:02x}"), 1)[..42].to_owned()
}

fn name(direction: &str, number: usize) -> String {
    format!("{direction}-{number}")
}

impl Net {
    /// Starts a gateway with two workers and these SAs.
    fn start_several(&self, gateway: usize, sas: &Sas) -> Option<Daemon<'_>> {
        let file = self.folder.join(format!("g{gateway}.toml"));
        std::fs::write(&file, self.several(gateway, sas)).expect("a folder for configurations");
        Daemon::start_with(&self.gateways[gateway], &["--config", &file.display().to_string()])
    }

    fn several(&self, gateway: usize, Sas { count, more }: &Sas) -> String {
        let state = self.folder.join(format!("g{gateway}.state"));
        let ends = ["192.0.2.1", "198.51.100.1"];
        let nets = ["10.1.0.0/24", "10.2.0.0/24"];
        let (one, other) = (gateway, 1 - gateway);
        let mut config = format!(
            "[daemon]\nworkers = 2\n[[port]]\ndevice = 'lan'\n[[port]]\ndevice = 'wan'\n[ipsec]\nstate_file = '{}'\n",
            state.display()
        );
        for (direction, from, to) in [("out", one, other), ("in", other, one)] {
            let names: Vec<_> = (0..*count).map(|number| format!("'{}'", name(direction, number))).collect();
            for number in 0..*count {
                let more = if gateway == 0 && direction == "out" { more(number) } else { "" };
                config += &format!(
                    "[[ipsec.sa]]\nname = '{}'\ndirection = '{direction}'\nspi = {}\nsource = '{}'\n\
                     destination = '{}'\nsuite = 'aes128gcm16'\nencryption_key = '{}'\n{more}\n",
                    name(direction, number),
                    spi(from, number),
                    ends[from],
                    ends[to],
                    key(from, number),
                );
            }
            config += &format!(
                "[[ipsec.policy]]\ndirection = '{direction}'\nsource = '{}'\ndestination = '{}'\n\
                 action = 'protect'\nsa = [{}]\n",
                nets[from],
                nets[to],
                names.join(", "),
            );
        }
        config
    }

    /// Sends datagrams of many flows from host a, each of which host b answers; how many came back.
    fn echo(&self, rounds: usize) -> usize {
        let bind = |address: String| {
            let socket = UdpSocket::bind(address).expect("a free port");
            socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            socket
        };
        let server = self.b.within(|| bind("10.2.0.2:7".into()));
        let clients: Vec<_> =
            self.a.within(|| (0..FLOWS).map(|flow| bind(format!("10.1.0.2:{}", 4000 + flow))).collect());
        let mut answered = 0;
        for _ in 0..rounds {
            for client in &clients {
                let mut buffer = [0; 2000];
                client.send_to(&[7; 200], "10.2.0.2:7").expect("a route");
                let Ok((length, from)) = server.recv_from(&mut buffer) else { continue };
                server.send_to(&buffer[..length], from).expect("a route");
                answered += usize::from(client.recv(&mut buffer).is_ok_and(|length| length == 200));
            }
        }
        answered
    }
}

/// Checks that what has crossed the net is ESP, and no number or IV of an SPI twice. How many packets each SPI had.
fn check_esp(
    socket: &PacketSocket,
    seen: &mut BTreeSet<(u32, u32)>,
    ivs: &mut BTreeSet<(u32, u64)>,
) -> BTreeMap<u32, usize> {
    let mut counts = BTreeMap::new();
    for (protocol, frame) in Net::crossed(socket) {
        assert_eq!(protocol, ESP, "{frame:02x?}");
        let word = |at: usize| u32::from_be_bytes(*frame[at..].first_chunk().expect("ESP"));
        let iv = u64::from_be_bytes(*frame[42..].first_chunk().expect("an IV"));
        assert!(seen.insert((word(34), word(38))), "number {} of SPI {:#x} twice", word(38), word(34));
        assert!(ivs.insert((word(34), iv)), "IV {iv:#x} of SPI {:#x} twice", word(34));
        *counts.entry(word(34)).or_default() += 1;
    }
    counts
}

fn value(daemon: &Daemon<'_>, name: &str, key: &str) -> u64 {
    sa(&daemon.ask(&["show", "sas"]), name)[key].as_u64().unwrap_or_else(|| panic!("{key} of {name}"))
}

#[test]
fn each_worker_encrypts_with_its_own_sa() {
    let net = Net::with_queues("ipsec-own", QUEUES);
    let (Some(one), Some(two)) = (net.start_several(0, &TWO), net.start_several(1, &TWO)) else { return };
    let wire = net.net.packet_socket("m1");
    let (mut seen, mut ivs) = (BTreeSet::new(), BTreeSet::new());
    eventually("a datagram comes back", || net.echo(1) > 0);
    let all = 10 * usize::from(FLOWS);
    assert_eq!(net.echo(10), all);
    for (daemon, direction) in [(&one, "out"), (&two, "out")] {
        for number in 0..2 {
            let name = name(direction, number);
            assert!(value(daemon, &name, "packets") > 20, "{}", daemon.ask(&["show", "sas"]));
            assert_eq!((value(daemon, &name, "worker"), value(daemon, &name, "handed")), (number as u64, 0));
        }
    }
    let counts = check_esp(&wire, &mut seen, &mut ivs);
    assert_eq!(counts.len(), 2, "both SAs of the first gateway: {counts:x?}");
    let shown = one.ask(&["show", "policies"]);
    assert_eq!(shown["policies"][0]["sas"], serde_json::json!(["out-0", "out-1"]), "{shown}");
    // Killed in the middle, the gateway goes on above all numbers of both SAs.
    one.kill();
    let Some(one) = net.start_several(0, &TWO) else { return };
    eventually("a datagram comes back", || net.echo(1) > 0);
    assert_eq!(net.echo(5), all / 2);
    assert!(check_esp(&wire, &mut seen, &mut ivs).values().sum::<usize>() >= all / 2);
    assert_eq!(two.dropped("ipsec_replay"), 0);
    one.stop();
    two.stop();
}

#[test]
fn a_worker_whose_sa_has_ended_uses_another_one_and_loses_nothing() {
    let net = Net::with_queues("ipsec-next", QUEUES);
    let sas = Sas { count: 3, more: &|number| ["", "hard_packets = 40", ""][number] };
    let (Some(one), Some(two)) = (net.start_several(0, &sas), net.start_several(1, &sas)) else { return };
    let wire = net.net.packet_socket("m1");
    let (mut seen, mut ivs) = (BTreeSet::new(), BTreeSet::new());
    // There are two workers for three SAs.
    let shown = one.ask(&["show", "sas"]);
    assert_eq!(
        (&sa(&shown, "out-2")["state"], &sa(&shown, "out-1")["state"]),
        (&"idle".into(), &"valid".into())
    );
    eventually("a datagram comes back", || net.echo(1) > 0);
    let state = || sa(&one.ask(&["show", "sas"]), "out-1")["state"].clone();
    let mut answered = 0;
    eventually("the second SA ends", || {
        answered += net.echo(2);
        state() == "expired"
    });
    let more = net.echo(5);
    assert_eq!(answered % (2 * usize::from(FLOWS)), 0, "nothing was lost on the way");
    assert_eq!((more, value(&one, "out-1", "packets")), (5 * usize::from(FLOWS), 40));
    assert!(value(&one, "out-0", "handed") > 0, "{}", one.ask(&["show", "sas"]));
    assert_eq!(one.dropped("ipsec_lifetime"), 0);
    check_esp(&wire, &mut seen, &mut ivs);
    one.stop();
    two.stop();
}

#[test]
fn workers_without_an_sa_hand_packets_to_the_one_that_has_it() {
    let net = Net::with_queues("ipsec-hand", QUEUES);
    let sas = Sas { count: 1, ..TWO };
    let (Some(one), Some(two)) = (net.start_several(0, &sas), net.start_several(1, &sas)) else { return };
    eventually("a datagram comes back", || net.echo(1) > 0);
    assert_eq!(net.echo(5), 5 * usize::from(FLOWS));
    let (handed, packets) = (value(&one, "out-0", "handed"), value(&one, "out-0", "packets"));
    assert!(0 < handed && handed < packets, "{handed} of {packets}");
    one.stop();
    two.stop();
}

/// A program that adds SAs through `xfrm_socket`, as strongSwan's `per_cpu_sas` does.
struct Program {
    socket: File,
    last: u32,
}

/// Types of messages, and attributes.
const NEW_SA: u16 = 0x10;
const NEW_POLICY: u16 = 0x13;
const ACQUIRE: u16 = 0x17;
const TEMPLATES: u16 = 5;
const AEAD: u16 = 18;
const CPU: u16 = 35;

/// The ends of the tunnel.
const ENDS: [[u8; 4]; 2] = [[192, 0, 2, 1], [198, 51, 100, 1]];

impl Program {
    fn new(net: &Net) -> Self {
        let socket = sys::connect_messages(&net.folder.join("xfrm.sock")).expect("xfrm_socket");
        let mut program = Self { socket, last: 0 };
        // Group 1 is that of ACQUIRE.
        program.send(0x0f, 0, &[1u32, 77, 0].map(u32::to_ne_bytes).concat());
        program
    }

    fn send(&mut self, kind: u16, flags: u16, body: &[u8]) {
        self.last += 1;
        let mut message = (16 + body.len() as u32).to_ne_bytes().to_vec();
        message.extend([kind.to_ne_bytes(), flags.to_ne_bytes()].concat());
        message.extend([self.last.to_ne_bytes(), [0; 4]].concat());
        message.extend(body);
        self.socket.write_all(&message).expect("the daemon listens");
    }

    /// The next message, as its type and body.
    fn receive(&mut self) -> Option<(u16, Vec<u8>)> {
        let mut buffer = [0; 65_536];
        let length = self.socket.read(&mut buffer).ok()?;
        Some((u16::from_ne_bytes([buffer[4], buffer[5]]), buffer[16..length].to_vec()))
    }

    /// Sends a request, which must be carried out.
    fn ask(&mut self, kind: u16, body: &[u8]) {
        self.send(kind, 5, body);
        let mut answer = None;
        eventually("an answer", || {
            // Events may come in between.
            answer = self.receive().filter(|(kind, _)| *kind == 2);
            answer.is_some()
        });
        let (_, body) = answer.expect("an answer");
        assert_eq!(body[..4], [0; 4], "{}", String::from_utf8_lossy(&body));
    }

    /// The CPUs that ACQUIREs have asked for since the last call; `None` for an SA for all.
    fn acquired(&mut self) -> BTreeSet<Option<u32>> {
        let mut cpus = BTreeSet::new();
        while let Some((kind, body)) = self.receive() {
            if kind == ACQUIRE {
                let cpu = body.windows(8).rev().find(|part| part[..4] == [8, 0, CPU as u8, 0]);
                cpus.insert(cpu.map(|part| u32::from_ne_bytes([part[4], part[5], part[6], part[7]])));
            }
        }
        cpus
    }

    /// Adds an SA with the SPI and key that the other gateway has for it.
    fn add_sa(&mut self, from: usize, number: usize, cpu: Option<u32>) {
        let mut info = vec![0; 224];
        info[56..60].copy_from_slice(&ENDS[1 - from]);
        info[72..76].copy_from_slice(&(spi(from, number) as u32).to_be_bytes());
        info[76] = ESP;
        info[80..84].copy_from_slice(&ENDS[from]);
        info[96..128].fill(0xff);
        info[208] = 1;
        (info[212], info[214], info[215]) = (2, 1, 32);
        let mut algorithm = b"rfc4106(gcm(aes))".to_vec();
        algorithm.resize(64, 0);
        algorithm.extend([160u32, 128].map(u32::to_ne_bytes).concat());
        let key = key(from, number);
        algorithm
            .extend((2..42).step_by(2).map(|at| u8::from_str_radix(&key[at..at + 2], 16).expect("a key")));
        attribute(&mut info, AEAD, &algorithm);
        cpu.into_iter().for_each(|cpu| attribute(&mut info, CPU, &cpu.to_ne_bytes()));
        self.ask(NEW_SA, &info);
    }

    fn add_policy(&mut self, direction: u8, from: usize, asks: bool) {
        let nets = [[10, 1, 0, 0], [10, 2, 0, 0]];
        let mut info = vec![0; 168];
        info[..4].copy_from_slice(&nets[1 - from]);
        info[16..20].copy_from_slice(&nets[from]);
        (info[40], info[42], info[43]) = (2, 24, 24);
        info[56..88].fill(0xff);
        (info[152], info[160], info[162]) = (7, direction, if asks { 4 } else { 0 });
        let mut template = vec![0; 64];
        template[..4].copy_from_slice(&ENDS[1 - from]);
        template[20] = ESP;
        template[24] = 2;
        template[28..32].copy_from_slice(&ENDS[from]);
        (template[44], template[48]) = (1, 1);
        attribute(&mut info, TEMPLATES, &template);
        self.ask(NEW_POLICY, &info);
    }
}

fn attribute(to: &mut Vec<u8>, kind: u16, value: &[u8]) {
    to.extend([(4 + value.len() as u16).to_ne_bytes(), kind.to_ne_bytes()].concat());
    to.extend(value);
    to.resize(to.len().next_multiple_of(4), 0);
}

#[test]
fn workers_ask_a_program_for_sas_of_their_own() {
    let net = Net::with_queues("ipsec-cpu", QUEUES);
    let three = Sas { count: 3, ..TWO };
    let Some(two) = net.start_several(1, &three) else { return };
    let file = net.folder.join("g0.toml");
    let socket = net.folder.join("xfrm.sock");
    let config = format!(
        "[daemon]\nworkers = 2\n[[port]]\ndevice = 'lan'\n[[port]]\ndevice = 'wan'\n[ipsec]\nxfrm_socket = '{}'\n",
        socket.display()
    );
    std::fs::write(&file, config).expect("a folder for configurations");
    let Some(one) = Daemon::start_with(&net.gateways[0], &["--config", &file.display().to_string()]) else {
        return;
    };
    let wire = net.net.packet_socket("m1");
    let mut program = Program::new(&net);
    program.add_policy(1, 0, true);
    program.add_policy(2, 1, false);
    let nobody = || {
        let _dropped = net.a.try_run("ping -c 3 -i 0.1 -W 1 10.2.0.2");
    };
    // First one for all CPUs.
    eventually("an SA is asked for", || {
        nobody();
        program.acquired() == BTreeSet::from([None])
    });
    (0..3).for_each(|number| program.add_sa(1, number, None));
    program.add_sa(0, 0, None);
    // Then one for each worker, which uses that one meanwhile.
    let mut cpus = BTreeSet::new();
    eventually("both workers ask", || {
        assert_eq!(net.echo(1), usize::from(FLOWS), "nothing is lost meanwhile");
        cpus.extend(program.acquired());
        cpus == BTreeSet::from([Some(0), Some(1)])
    });
    let of = |spi: usize, key: &str| {
        let shown = one.ask(&["show", "sas"]);
        let sas = shown["sas"].as_array().expect("a list");
        let found = sas.iter().find(|sa| sa["spi"] == spi).unwrap_or_else(|| panic!("{spi:#x}: {shown}"));
        found[key].as_u64().unwrap_or_else(|| panic!("{key}: {found}"))
    };
    assert!(of(spi(0, 0), "handed") > 0, "the worker without it hands packets over");
    // The number of an SA modulo the number of workers is its worker's: 7 is that of worker 1.
    program.add_sa(0, 1, Some(0));
    program.add_sa(0, 2, Some(7));
    let before = of(spi(0, 0), "packets");
    assert_eq!(net.echo(10), 10 * usize::from(FLOWS));
    assert_eq!(of(spi(0, 0), "packets"), before, "nobody needs it now");
    for (number, cpu) in [(1, 0), (2, 7)] {
        let spi = spi(0, number);
        assert!(of(spi, "packets") > 20, "{}", one.ask(&["show", "sas"]));
        assert_eq!((of(spi, "worker"), of(spi, "cpu"), of(spi, "handed")), (cpu % 2, cpu, 0));
    }
    assert!(program.acquired().is_empty());
    let (mut seen, mut ivs) = (BTreeSet::new(), BTreeSet::new());
    check_esp(&wire, &mut seen, &mut ivs);
    one.stop();
    two.stop();
}
