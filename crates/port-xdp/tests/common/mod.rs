//! Network namespaces for the tests: host a -- r0 router r1 -- host b, connected by veth pairs.
//!
//! The test runs on a new thread in the router's namespace. All namespaces are deleted when it ends, even if it fails.
//! Without root the test prints that it is skipped, and passes.

#![allow(dead_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

pub const MAC_A: [u8; 6] = [2, 0, 0, 0, 1, 2];
pub const MAC_R0: [u8; 6] = [2, 0, 0, 0, 1, 1];
pub const MAC_R1: [u8; 6] = [2, 0, 0, 0, 2, 1];
pub const MAC_B: [u8; 6] = [2, 0, 0, 0, 2, 2];

/// The namespaces of one test.
pub struct Net {
    name: String,
}

impl Drop for Net {
    fn drop(&mut self) {
        for part in ["a", "r", "b"] {
            let _gone = Command::new("ip").args(["netns", "del", &self.namespace(part)]).output();
        }
    }
}

impl Net {
    /// The full name of namespace `part`: "a", "r" or "b".
    pub fn namespace(&self, part: &str) -> String {
        // The process id separates namespaces of concurrent tests, and tells which of them may be removed.
        format!("bm-ports-{}-p{}-{part}", self.name, std::process::id())
    }

    /// Runs `ip` with these arguments in a namespace.
    pub fn ip(&self, part: &str, arguments: &str) {
        let namespace = self.namespace(part);
        run("ip", &[&["-n", &namespace], &*arguments.split(' ').collect::<Vec<_>>()].concat());
    }

    /// Runs a command in a namespace; returns whether it succeeded.
    pub fn succeeds(&self, part: &str, command: &str) -> bool {
        let namespace = self.namespace(part);
        let words = [&["netns", "exec", &namespace], &*command.split(' ').collect::<Vec<_>>()].concat();
        Command::new("ip").args(words).output().expect("ip runs").status.success()
    }

    /// Waits until IPv6 works between the hosts: on a new interface Linux takes a second or two.
    pub fn settle(&self) {
        let ready = (0..10).any(|_| self.succeeds("a", "ping -c 1 -W 1 fd00:2::2"));
        assert!(ready, "Linux must forward by itself");
    }

    /// Runs a job, such as opening a socket, in another namespace.
    pub fn inside<T: Send + 'static>(&self, part: &str, job: impl FnOnce() -> T + Send + 'static) -> T {
        let namespace = self.namespace(part);
        std::thread::spawn(move || {
            enter(&namespace);
            job()
        })
        .join()
        .expect("the job in the namespace does not panic")
    }

    /// A packet socket that receives all frames of an interface.
    pub fn wire(&self, part: &str, interface: &'static str) -> Wire {
        self.inside(part, move || Wire::open(interface).expect("a packet socket"))
    }
}

fn run(program: &str, words: &[&str]) {
    let output = Command::new(program).args(words).output().expect("the program runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {}: {errors}", words.join(" "));
}

/// Moves the calling thread into a namespace.
pub fn enter(namespace: &str) {
    let file = File::open(format!("/run/netns/{namespace}")).expect("the namespace is there");
    bm_sys::Namespace::Network.enter(&file).expect("the thread may enter it");
}

/// Runs `test` in the router's namespace of a new net, with `queues` queues on each interface.
pub fn in_net(name: &str, queues: u32, test: impl FnOnce(&Net) + Send + 'static) {
    if bm_sys::effective_user() != 0 {
        eprintln!("skipped: {name} needs root for network namespaces");
        return;
    }
    let net = Net { name: name.into() };
    for part in ["a", "r", "b"] {
        let _left_over = Command::new("ip").args(["netns", "del", &net.namespace(part)]).output();
        run("ip", &["netns", "add", &net.namespace(part)]);
        net.ip(part, "link set lo up");
    }
    connect(&net, queues);
    let done = std::thread::spawn(move || {
        enter(&net.namespace("r"));
        test(&net);
    });
    if let Err(panic) = done.join() {
        std::panic::resume_unwind(panic);
    }
}

fn connect(net: &Net, queues: u32) {
    let queues = format!("numrxqueues {queues} numtxqueues {queues}");
    let (a, b) = (net.namespace("a"), net.namespace("b"));
    let address = |[a, b, c, d, e, f]: [u8; 6]| format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
    let (a0, r0, r1, b0) = (address(MAC_A), address(MAC_R0), address(MAC_R1), address(MAC_B));
    net.ip(
        "r",
        &format!("link add r0 address {r0} {queues} type veth peer name a0 address {a0} netns {a} {queues}"),
    );
    net.ip(
        "r",
        &format!("link add r1 address {r1} {queues} type veth peer name b0 address {b0} netns {b} {queues}"),
    );
    for (part, interface, number) in
        [("a", "a0", "1.2"), ("r", "r0", "1.1"), ("r", "r1", "2.1"), ("b", "b0", "2.2")]
    {
        let v6 = number.replace('.', "::");
        net.succeeds(part, &format!("sysctl -qw net.ipv6.conf.{interface}.accept_dad=0 net.ipv6.conf.{interface}.router_solicitations=0"));
        net.ip(part, &format!("addr add 10.0.{number}/24 dev {interface}"));
        net.ip(part, &format!("addr add fd00:{v6}/64 dev {interface} nodad"));
        net.ip(part, &format!("link set {interface} up"));
    }
    net.ip("a", "route add default via 10.0.1.1");
    net.ip("a", "-6 route add default via fd00:1::1");
    net.ip("b", "route add default via 10.0.2.1");
    net.ip("b", "-6 route add default via fd00:2::1");
    net.succeeds("r", "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
}

/// A packet socket: sends and receives whole frames.
pub struct Wire(OwnedFd);

impl Wire {
    fn open(interface: &str) -> io::Result<Self> {
        let all = (libc::ETH_P_ALL as u16).to_be();
        // SAFETY: no pointers are passed.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, all.into()) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and has no other owner.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let name = std::ffi::CString::new(interface)?;
        // SAFETY: a C string that outlives the call; then a zeroed struct of numbers.
        let (index, mut address) =
            unsafe { (libc::if_nametoindex(name.as_ptr()), std::mem::zeroed::<libc::sockaddr_ll>()) };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = all;
        address.sll_ifindex = index as i32;
        // SAFETY: the address is of that size and outlives the call.
        let bound =
            unsafe { libc::bind(fd, std::ptr::from_ref(&address).cast(), size_of_val(&address) as u32) };
        if bound == 0 { Ok(Self(socket)) } else { Err(io::Error::last_os_error()) }
    }

    pub fn send(&self, frame: &[u8]) {
        // SAFETY: the frame is of that length and outlives the call.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        assert_eq!(sent, frame.len() as isize, "{}", io::Error::last_os_error());
    }

    /// The next received frame that `wanted` accepts.
    pub fn receive(&self, within: Duration, wanted: impl Fn(&[u8]) -> bool) -> Option<Vec<u8>> {
        let end = Instant::now() + within;
        let mut frame = vec![0; 65_536];
        while Instant::now() < end {
            let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one `pollfd` that outlives the call.
            unsafe { libc::poll(&mut poll, 1, 10) };
            // SAFETY: zeroed structs of numbers; buffers are of the sizes given and outlive the call.
            let (length, from) = unsafe {
                let mut from = std::mem::zeroed::<libc::sockaddr_ll>();
                let mut size = size_of_val(&from) as u32;
                let (buffer, flags) = (frame.as_mut_ptr().cast(), libc::MSG_DONTWAIT);
                let address = std::ptr::from_mut(&mut from).cast();
                (libc::recvfrom(self.0.as_raw_fd(), buffer, frame.len(), flags, address, &mut size), from)
            };
            // Frames that were sent from here are received, too.
            if length > 0 && from.sll_pkttype != 4 && wanted(&frame[..length as usize]) {
                frame.truncate(length as usize);
                return Some(frame);
            }
        }
        None
    }
}

/// A UDP packet over IPv4 in an Ethernet frame of `length` bytes, with correct checksums.
pub fn udp4(to: [u8; 6], source: [u8; 4], destination: [u8; 4], ports: (u16, u16), length: usize) -> Vec<u8> {
    assert!(length >= 42);
    let mut frame = vec![0; length];
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&MAC_A);
    frame[12..14].copy_from_slice(&[8, 0]);
    let ip_length = (length - 14) as u16;
    frame[14..26].copy_from_slice(&[0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 17, 0, 0]);
    frame[16..18].copy_from_slice(&ip_length.to_be_bytes());
    frame[26..30].copy_from_slice(&source);
    frame[30..34].copy_from_slice(&destination);
    frame[34..36].copy_from_slice(&ports.0.to_be_bytes());
    frame[36..38].copy_from_slice(&ports.1.to_be_bytes());
    frame[38..40].copy_from_slice(&(ip_length - 20).to_be_bytes());
    for (index, byte) in frame[42..].iter_mut().enumerate() {
        *byte = (index * 7 + length) as u8;
    }
    let header = bm_wire::checksum::ipv4_header(&frame[14..34]);
    frame[24..26].copy_from_slice(&header.to_be_bytes());
    let pseudo = bm_wire::checksum::Pseudo::V4 {
        source: u32::from_be_bytes(source),
        destination: u32::from_be_bytes(destination),
    };
    let sum = bm_wire::checksum::udp_field(pseudo.checksum(17, &frame[34..]));
    frame[40..42].copy_from_slice(&sum.to_be_bytes());
    frame
}
