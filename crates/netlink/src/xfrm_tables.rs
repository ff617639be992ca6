//! The kernel's IPsec SAs and policies: read whole after each change; and what another sender than the kernel needs of
//! an SA: its sequence numbers, what it was used for, and that it expires.
//!
//! ```text
//! events ──► has_changed ──► read: SAs, then policies, as the kernel's messages have them       XfrmTables
//! sent, set_sent, add_usage, expire: one SA                                                     XfrmSas
//! ```
//!
//! Events only say that something has changed, so lost ones do no harm. Messages contain keys: what this module has read
//! is overwritten with zeros afterwards.

use crate::attribute::{Attributes, aligned};
use crate::dump::{self, Dumped, is_absent};
use crate::error::{Error, Malformed};
use crate::message::Raw;
use crate::socket::{Socket, flag};
use crate::xfrm::{self, message};
use netlink_sys::protocols::NETLINK_XFRM;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

/// Groups of the events: lifetimes, SAs, policies.
const GROUPS: [u32; 3] = [2, 3, 4];
/// Receive buffer for events.
const EVENTS: usize = 1 << 20;
/// How often tables are read again because they changed meanwhile.
const PASSES: u32 = 5;
const NEW_SA: u16 = 0x10;
const GET_SA: u16 = 0x12;
const ACQUIRE: u16 = 0x17;
const EXPIRE: u16 = 0x18;
const NEW_AE: u16 = 0x1e;
const GET_AE: u16 = 0x1f;
/// Attributes.
const LIFETIME: u16 = 9;
const REPLAY: u16 = 10;
const REPLAY_ESN: u16 = 23;
/// `struct xfrm_aevent_id`.
const AE_ID: usize = 48;
/// `struct xfrm_user_expire`: the SA, of which the kernel reads the addresses and the SPI, and whether it ends now.
const EXPIRE_LENGTH: usize = 232;
const EXPIRE_HARD: usize = 224;
const ESP: u8 = 50;
/// Bytes of `struct xfrm_lifetime_cur`: bytes, packets, when the SA was added and first used.
const USAGE: usize = 32;

/// What a message is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `struct xfrm_usersa_info` and attributes.
    Sa,
    /// `struct xfrm_userpolicy_info` and attributes.
    Policy,
}

/// The tables of the network namespace of the thread that has opened them.
#[derive(Debug)]
pub struct XfrmTables {
    events: Socket,
    requests: Socket,
}

impl XfrmTables {
    /// Subscribes to changes. `None` if the kernel has no IPsec.
    ///
    /// # Errors
    /// If the kernel refuses sockets.
    pub fn open() -> Result<Option<Self>, Error> {
        let Some(events) = dump::subscribe(NETLINK_XFRM, &GROUPS, EVENTS)? else { return Ok(None) };
        Ok(dump::open(NETLINK_XFRM)?.map(|requests| Self { events, requests }))
    }

    /// Whether anything has changed since the last call, or events were lost.
    ///
    /// # Errors
    /// If the socket fails.
    pub fn has_changed(&mut self) -> Result<bool, Error> {
        let mut changed = false;
        loop {
            match self.events.receive(false) {
                Ok(0) => break,
                Ok(_) | Err(Error::Overrun) => changed = true,
                Err(error) => return Err(error),
            }
        }
        if changed {
            self.events.wipe();
        }
        Ok(changed)
    }

    /// Reads all SAs and policies; `start` is called before the first one, and again if they have changed meanwhile, so
    /// that all have to be read again. Policies that brickmoon has added are left out.
    ///
    /// # Errors
    /// The kernel's, and [`Error::Silent`] if the tables keep changing.
    pub fn read<T>(
        &mut self,
        mut start: impl FnMut() -> T,
        each: impl Fn(&mut T, Kind, &[u8]),
    ) -> Result<T, Error> {
        for _ in 0..PASSES {
            let mut found = start();
            let whole =
                [(Kind::Sa, GET_SA, NEW_SA), (Kind::Policy, message::GET_POLICY, message::NEW_POLICY)]
                    .into_iter()
                    .try_fold(true, |whole, (kind, get, new)| {
                        let dumped = dump_one(&mut self.requests, get, |raw| {
                            if raw.kind == new && !(kind == Kind::Policy && xfrm::is_own(raw.body)) {
                                each(&mut found, kind, raw.body);
                            }
                        });
                        self.requests.wipe();
                        dumped.map(|dumped| whole && dumped == Dumped::Whole)
                    })?;
            if whole {
                return Ok(found);
            }
        }
        Err(Error::Silent { request: "list IPsec SAs and policies (they keep changing)" })
    }
}

impl AsFd for XfrmTables {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

fn dump_one(socket: &mut Socket, kind: u16, mut each: impl FnMut(&Raw<'_>)) -> Result<Dumped, Error> {
    // The header of such a request has no field that selects: a selector with an id for policies, none for SAs.
    let body: &[u8] = if kind == message::GET_POLICY { &[0; 64] } else { &[] };
    let dumped = dump::dump(socket, "list IPsec SAs and policies", kind, body, |raw| {
        each(raw);
        Ok(())
    });
    match dumped {
        Err(error) if is_absent(&error) => Ok(Dumped::Whole),
        dumped => dumped,
    }
}

/// An SA in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SaKey {
    pub spi: u32,
    pub source: IpAddr,
    pub destination: IpAddr,
}

/// The state of an SA that changes with packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaState {
    /// The last sequence number that was sent.
    pub sent: u64,
    /// Bytes and packets, also those that were added by [`XfrmSas::add_usage`].
    pub bytes: u64,
    pub packets: u64,
    /// `struct xfrm_replay_state`, or `struct xfrm_replay_state_esn` with its bitmap.
    replay: (u16, Vec<u8>),
    usage: [u8; USAGE],
}

/// Requests about single SAs.
#[derive(Debug)]
pub struct XfrmSas(Socket);

impl XfrmSas {
    /// `None` if the kernel has no IPsec.
    ///
    /// # Errors
    /// If the kernel refuses a socket.
    pub fn open() -> Result<Option<Self>, Error> {
        Ok(dump::open(NETLINK_XFRM)?.map(Self))
    }

    /// Has the kernel ask IKE daemons for an SA; `acquire` is `struct xfrm_user_acquire` with attributes.
    ///
    /// # Errors
    /// The kernel's: for a CPU that it does not have, or cannot know before Linux 6.13.
    pub fn ask(&mut self, acquire: &[u8]) -> Result<(), Error> {
        dump::change(&mut self.0, "ask for an SA", ACQUIRE, 0, acquire)
    }

    /// The state of an SA.
    ///
    /// # Errors
    /// The kernel's: `ESRCH` if there is no such SA.
    pub fn state(&mut self, sa: &SaKey) -> Result<SaState, Error> {
        let mut state = None;
        dump::request(&mut self.0, "read the state of an SA", GET_AE, &ae_id(sa), |raw| {
            if raw.kind == NEW_AE {
                state = Some(read_state(raw.body)?);
            }
            Ok(())
        })?;
        state.ok_or(Error::Silent { request: "read the state of an SA" })
    }

    /// Makes `sent` the last sequence number that was sent; the rest of the state is as it was read.
    ///
    /// # Errors
    /// The kernel's: `ESRCH` if there is no such SA.
    pub fn set_sent(&mut self, sa: &SaKey, state: &SaState, sent: u64) -> Result<(), Error> {
        let (kind, mut replay) = state.replay.clone();
        let (low, high) = sent_at(kind);
        replay[low..low + 4].copy_from_slice(&(sent as u32).to_ne_bytes());
        if let Some(high) = high {
            replay[high..high + 4].copy_from_slice(&((sent >> 32) as u32).to_ne_bytes());
        }
        self.set(sa, kind, &replay)
    }

    /// Counts bytes and packets that were sent or received elsewhere. When the SA was added and first used stays.
    ///
    /// # Errors
    /// The kernel's: `ESRCH` if there is no such SA.
    pub fn add_usage(
        &mut self,
        sa: &SaKey,
        state: &SaState,
        bytes: u64,
        packets: u64,
        now_s: u64,
    ) -> Result<(), Error> {
        let mut usage = state.usage;
        usage[..8].copy_from_slice(&state.bytes.saturating_add(bytes).to_ne_bytes());
        usage[8..16].copy_from_slice(&state.packets.saturating_add(packets).to_ne_bytes());
        if usage[24..].iter().all(|byte| *byte == 0) {
            usage[24..].copy_from_slice(&now_s.to_ne_bytes());
        }
        self.set(sa, LIFETIME, &usage)
    }

    /// Tells the kernel that an SA has reached its soft lifetime, so that it tells IKE daemons; or its hard one, so that
    /// it removes it.
    ///
    /// # Errors
    /// The kernel's: `ENOENT` if there is no such SA.
    pub fn expire(&mut self, sa: &SaKey, is_hard: bool) -> Result<(), Error> {
        let mut body = [0; EXPIRE_LENGTH];
        put_address(&mut body[56..72], sa.destination);
        body[72..76].copy_from_slice(&sa.spi.to_be_bytes());
        body[76] = ESP;
        put_address(&mut body[80..96], sa.source);
        body[212..214].copy_from_slice(&family(sa.destination).to_ne_bytes());
        body[EXPIRE_HARD] = is_hard.into();
        dump::change(&mut self.0, "expire an SA", EXPIRE, 0, &body)
    }

    fn set(&mut self, sa: &SaKey, kind: u16, value: &[u8]) -> Result<(), Error> {
        let mut body = ae_id(sa).to_vec();
        body.extend_from_slice(&(value.len() as u16 + 4).to_ne_bytes());
        body.extend_from_slice(&kind.to_ne_bytes());
        body.extend_from_slice(value);
        body.resize(aligned(body.len()), 0);
        dump::change(&mut self.0, "set the state of an SA", NEW_AE, flag::REPLACE, &body)
    }
}

fn ae_id(sa: &SaKey) -> [u8; AE_ID] {
    let mut id = [0; AE_ID];
    put_address(&mut id[..16], sa.destination);
    id[16..20].copy_from_slice(&sa.spi.to_be_bytes());
    id[20..22].copy_from_slice(&family(sa.destination).to_ne_bytes());
    id[22] = ESP;
    put_address(&mut id[24..40], sa.source);
    id
}

fn put_address(to: &mut [u8], address: IpAddr) {
    match address {
        IpAddr::V4(address) => to[..4].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => to.copy_from_slice(&address.octets()),
    }
}

fn family(address: IpAddr) -> u16 {
    (if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }) as u16
}

/// Where the last number that was sent is in `struct xfrm_replay_state` and `struct xfrm_replay_state_esn`.
fn sent_at(kind: u16) -> (usize, Option<usize>) {
    if kind == REPLAY_ESN { (4, Some(12)) } else { (0, None) }
}

fn read_state(body: &[u8]) -> Result<SaState, Malformed> {
    let (mut replay, mut usage) = (None, [0; USAGE]);
    let malformed = || Malformed::Header { kind: NEW_AE, length: body.len() };
    for attribute in Attributes::after_header(body, AE_ID) {
        let (kind, value) = attribute?;
        match kind {
            REPLAY if value.len() == 12 => replay = replay.or(Some((kind, value.to_vec()))),
            REPLAY_ESN if value.len() >= 24 => replay = Some((kind, value.to_vec())),
            LIFETIME => usage = *value.first_chunk().ok_or_else(malformed)?,
            _ => {}
        }
    }
    let (kind, bytes) = replay.ok_or_else(malformed)?;
    let word = |at: usize| bytes[at..].first_chunk().map_or(0, |word| u32::from_ne_bytes(*word));
    let (low, high) = sent_at(kind);
    let sent = u64::from(word(low)) | high.map_or(0, |at| u64::from(word(at)) << 32);
    let [sent_bytes, packets] =
        [0, 8].map(|at| usage[at..].first_chunk().map_or(0, |word| u64::from_ne_bytes(*word)));
    Ok(SaState { sent, bytes: sent_bytes, packets, replay: (kind, bytes), usage })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SA: SaKey = SaKey {
        spi: 0x1001,
        source: IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)),
        destination: IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2)),
    };

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        [&(value.len() as u16 + 4).to_ne_bytes(), &kind.to_ne_bytes(), value].concat()
    }

    #[test]
    fn names_an_sa_as_the_kernel_does() {
        let id = ae_id(&SA);
        let mut expected = [0; AE_ID];
        expected[..4].copy_from_slice(&[192, 0, 2, 2]);
        expected[16..20].copy_from_slice(&[0, 0, 0x10, 1]);
        expected[20..23].copy_from_slice(&[2, 0, 50]);
        expected[24..28].copy_from_slice(&[192, 0, 2, 1]);
        assert_eq!(id, expected);
    }

    #[test]
    fn reads_both_forms_of_sequence_numbers() {
        let usage = attribute(LIFETIME, &[[7u64, 3, 100, 0].map(u64::to_ne_bytes).concat()].concat());
        let replay = attribute(REPLAY, &[9u32, 5, 1].map(u32::to_ne_bytes).concat());
        let state = read_state(&[&ae_id(&SA)[..], &replay, &usage].concat()).unwrap();
        assert_eq!((state.sent, state.bytes, state.packets), (9, 7, 3));
        // Length of the bitmap in words, low halves of sent and received, high halves, window, bitmap.
        let esn = attribute(REPLAY_ESN, &[1u32, 9, 5, 2, 0, 32, 0].map(u32::to_ne_bytes).concat());
        let state = read_state(&[&ae_id(&SA)[..], &esn, &usage].concat()).unwrap();
        assert_eq!(state.sent, 2 << 32 | 9);
        assert!(read_state(&ae_id(&SA)).is_err(), "an SA without sequence numbers");
    }
}
