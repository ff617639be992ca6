//! Answers ARP and neighbor solicitations for hosts that do not exist, and records the requests.

use crate::lab::{Lab, Side};
use crate::packet::{arp_reply, get16, neighbor_advertisement};
use crate::sys::{self, PacketSocket};
use bm_wire::Mac;
use bm_wire::ethernet::ethertype;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A request that the router sent.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// The address that it asks for.
    pub target: IpAddr,
    /// Whether the request was unicast, which is so if an entry is only being confirmed.
    pub unicast: bool,
}

/// The MAC of an address; none for silent hosts.
pub type Answer = dyn Fn(IpAddr) -> Option<Mac> + Send;

/// A thread that answers at one end until it is dropped.
pub struct Responder {
    stop: Arc<AtomicBool>,
    asked: Arc<Mutex<Vec<Asked>>>,
    thread: Option<JoinHandle<()>>,
}

impl Responder {
    /// Answers at `side` after `delay`.
    pub fn start(lab: &Lab, side: Side, delay: Duration, answer: Box<Answer>) -> Self {
        let socket = lab.host(side).packet_socket(side.host());
        let (stop, asked) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let thread = {
            let (stop, asked) = (Arc::clone(&stop), Arc::clone(&asked));
            std::thread::spawn(move || serve(&socket, delay, &*answer, &stop, &asked))
        };
        Self { stop, asked, thread: Some(thread) }
    }

    /// Answers for every neighbor of a side with its usual MAC address.
    pub fn usual(lab: &Lab, side: Side) -> Self {
        Self::start(lab, side, Duration::ZERO, Box::new(move |address| Some(usual(side, address))))
    }

    /// All requests so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().map(|asked| asked.clone()).unwrap_or_default()
    }
}

/// MAC address of the neighbor with this address, according to its last byte.
pub fn usual(side: Side, address: IpAddr) -> Mac {
    side.mac(match address {
        IpAddr::V4(address) => address.octets()[3],
        IpAddr::V6(address) => address.octets()[15],
    })
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn serve(
    socket: &PacketSocket,
    delay: Duration,
    answer: &Answer,
    stop: &AtomicBool,
    asked: &Mutex<Vec<Asked>>,
) {
    let mut due: Vec<(Instant, Vec<u8>)> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        // An error shows as a host that does not answer.
        let _ = sys::wait_readable(&[socket], Duration::from_millis(10));
        while let Ok(Some(captured)) = socket.receive() {
            let Some(question) = read(&captured.frame) else { continue };
            if let Ok(mut asked) = asked.lock() {
                asked.push(question.asked);
            }
            let reply = answer(question.asked.target).map(|mac| question.reply(mac));
            due.extend(reply.map(|reply| (Instant::now() + delay, reply)));
        }
        due.retain(|(at, frame)| {
            let wait = *at > Instant::now();
            if !wait {
                let _ = socket.send(frame);
            }
            wait
        });
    }
}

struct Question {
    asked: Asked,
    from: (Mac, IpAddr),
}

impl Question {
    fn reply(&self, mac: Mac) -> Vec<u8> {
        match (self.asked.target, self.from.1) {
            (IpAddr::V4(target), IpAddr::V4(from)) => {
                // A multicast MAC address may be in the answer but cannot be its sender.
                let through = if mac.is_multicast() { Mac([2, 0, 0, 0, 9, 9]) } else { mac };
                arp_reply((mac, target), (self.from.0, from), through)
            }
            (IpAddr::V6(target), IpAddr::V6(from)) => {
                neighbor_advertisement((mac, target), (self.from.0, from))
            }
            _ => Vec::new(),
        }
    }
}

/// An ARP request or a neighbor solicitation.
fn read(frame: &[u8]) -> Option<Question> {
    let unicast = frame.first()? & 1 == 0;
    let from_mac = Mac(frame.get(6..12)?.try_into().ok()?);
    let packet = frame.get(14..)?;
    let (target, from): (IpAddr, IpAddr) = match get16(frame, 12) {
        ethertype::ARP if get16(packet, 6) == 1 => {
            let address = |at: usize| -> Option<Ipv4Addr> {
                Some(<[u8; 4]>::try_from(packet.get(at..at + 4)?).ok()?.into())
            };
            (address(24)?.into(), address(14)?.into())
        }
        ethertype::IPV6 if packet.get(6) == Some(&58) && packet.get(40) == Some(&135) => {
            let address = |at: usize| -> Option<Ipv6Addr> {
                Some(<[u8; 16]>::try_from(packet.get(at..at + 16)?).ok()?.into())
            };
            (address(48)?.into(), address(8)?.into())
        }
        _ => return None,
    };
    Some(Question { asked: Asked { target, unicast }, from: (from_mac, from) })
}
