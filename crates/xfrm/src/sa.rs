//! SAs as IKE daemons add them: read from messages, with what is needed to answer questions about them.

use std::net::IpAddr;

use bm_ipsec::{
    Df, Direction, Dscp, Ecn, Limit, Limits, Mark, Mode, Sa, SaId, Secret, Suite, UdpPorts, WINDOW_MAX,
    problems,
};

use crate::layout::{attribute, encapsulation, errno, sa as at, sa_flag, selector as selector_at};
use crate::mark::mark;
use crate::message::{attributes, big_u16, big_u32, number, structure};
use crate::request_error::{RequestError, if_id, only_esp, refuse_unsupported};
use crate::selector::{address, selector};
use crate::usage::{Now, Usage};

/// A limit that never ends.
const NO_LIMIT: u64 = u64::MAX;
const SECOND: u64 = 1_000_000_000;
/// The most CPUs that Linux can have.
const CPUS: u32 = 8192;
/// Bytes of an algorithm's name.
const NAME: usize = 64;

/// An SA, read from a message.
pub struct NewSa {
    /// With keys. The direction is found out later, unless `direction` has it.
    pub(crate) sa: Sa,
    pub(crate) direction: Option<Direction>,
    pub(crate) mark: Mark,
    pub(crate) about: About,
    /// Sequence numbers that have been used or received before.
    pub(crate) sent: u64,
    pub(crate) received: u64,
    /// What it was used for before.
    pub(crate) before: Option<Before>,
}

/// `struct xfrm_lifetime_cur`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Before {
    pub bytes: u64,
    pub packets: u64,
    /// Seconds since 1970; 0 for none.
    pub added_s: u64,
    pub first_s: u64,
}

impl Before {
    /// When it was added.
    pub fn added(&self, now: Now) -> Now {
        match self.added_s {
            0 => now,
            epoch_s => Now { epoch_s: epoch_s.min(now.epoch_s), ns: now.ns_of(epoch_s) },
        }
    }

    pub fn usage(&self, now: Now) -> Usage {
        let Self { bytes, packets, first_s, .. } = *self;
        Usage { bytes, packets, first_ns: now.ns_of(first_s), ..Usage::default() }
    }
}

/// The parts of an SA that only answers need, without keys.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct About {
    /// `struct xfrm_usersa_info`.
    pub info: [u8; at::LENGTH],
    pub algorithms: Vec<Algorithm>,
    /// Attributes as they came.
    pub attributes: Vec<(u16, Vec<u8>)>,
}

/// An algorithm: its attribute without the key.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Algorithm {
    pub kind: u16,
    /// Name and lengths.
    pub header: Vec<u8>,
}

impl Algorithm {
    pub(crate) fn is_for_integrity(&self) -> bool {
        [attribute::AUTH, attribute::AUTH_TRUNCATED].contains(&self.kind)
    }
}

/// The name of an algorithm, bits of the ICV (0: the usual ones) and key.
struct AlgorithmKey<'a> {
    name: &'a str,
    icv: u32,
    key: &'a [u8],
}

impl NewSa {
    /// Reads `struct xfrm_usersa_info` and its attributes.
    pub(crate) fn read(body: &[u8]) -> Result<Self, RequestError> {
        let info: &[u8; at::LENGTH] = structure(body)?;
        let attributes = attributes(body, at::LENGTH)?;
        refuse_unsupported(&attributes)?;
        only_esp(info[at::PROTOCOL])?;
        // charon repeats what it has read, with newer values behind it: as in Linux, the last one counts.
        let find = |kind| attributes.iter().rev().find(|(found, _)| *found == kind).map(|(_, value)| *value);
        let family = number(info, at::FAMILY);
        let destination = address(info, at::DESTINATION, family)?;
        let source: IpAddr = address(info, at::SOURCE, family)?;
        let (suite, keys, algorithms) = suite(&attributes)?;
        let id = SaId { spi: big_u32(info, at::SPI), destination };
        let mut sa = Sa::new(Direction::Out, id, source, suite);
        [sa.encryption_key, sa.integrity_key] = keys;
        sa.reqid = number(info, at::REQID);
        sa.if_id = if_id(&attributes)?;
        sa.mode = mode(info[at::MODE])?;
        sa.limits = limits(&info[at::LIMITS..at::USED]);
        sa.udp = find(attribute::ENCAPSULATION).map(udp).transpose()?;
        sa.cpu = find(attribute::CPU).map(cpu).transpose()?;
        let any = info[..selector_at::LENGTH].iter().all(|byte| *byte == 0);
        sa.selectors = if any || is_everything(info) { Vec::new() } else { Vec::from_iter(selector(info)?) };
        options(&mut sa, info[at::FLAGS], find(attribute::EXTRA_FLAGS))?;
        let (sent, received) = replay(&mut sa, info, find)?;
        // Only an inbound SA can have any source port; an outbound one is refused when its direction is known.
        let any_port = sa.udp.is_some_and(|udp| udp.source == 0);
        sa.direction = if any_port { Direction::In } else { Direction::Out };
        if let Some(problem) = problems(std::slice::from_ref(&sa), &[], &[]).first() {
            return Err(RequestError::new(errno::INVALID, problem.to_string()));
        }
        let direction = find(attribute::DIRECTION).and_then(|value| match value {
            [1] => Some(Direction::In),
            [2] => Some(Direction::Out),
            _ => None,
        });
        let kept = [
            attribute::ENCAPSULATION,
            attribute::EXTRA_FLAGS,
            attribute::REPLAY_ESN,
            attribute::DIRECTION,
            attribute::MARK,
            attribute::CPU,
            attribute::INTERFACE,
        ];
        let kept = kept.iter().filter_map(|kind| Some((*kind, find(*kind)?.to_vec()))).collect();
        let about = About { info: *info, algorithms, attributes: kept };
        let before = find(attribute::LIFETIME).map(before).transpose()?;
        Ok(Self { sa, direction, mark: mark(&attributes), about, sent, received, before })
    }
}

/// Whether a selector matches all packets of its family.
fn is_everything(info: &[u8]) -> bool {
    let rest = selector_at::DESTINATION_PORT..selector_at::FAMILY;
    info[rest].iter().all(|byte| *byte == 0)
        && [selector_at::DESTINATION_LENGTH, selector_at::SOURCE_LENGTH, selector_at::PROTOCOL]
            .iter()
            .all(|at| info[*at] == 0)
        && number::<u32>(info, selector_at::INTERFACE) == 0
}

pub(crate) fn mode(mode: u8) -> Result<Mode, RequestError> {
    match mode {
        0 => Ok(Mode::Transport),
        1 => Ok(Mode::Tunnel),
        other => {
            Err(RequestError::new(errno::NOT_SUPPORTED, format!("mode {other}: only tunnel and transport")))
        }
    }
}

/// Reads `struct xfrm_lifetime_cfg`.
fn limits(from: &[u8]) -> Limits {
    let value = |index: usize| number::<u64>(from, index * 8);
    Limits {
        bytes: limit([value(0), value(1)], NO_LIMIT, 1),
        packets: limit([value(2), value(3)], NO_LIMIT, 1),
        time_ns: limit([value(4), value(5)], 0, SECOND),
        use_ns: limit([value(6), value(7)], 0, SECOND),
    }
}

/// A soft and a hard limit in this unit; `none` stands for no limit.
fn limit(soft_and_hard: [u64; 2], none: u64, unit: u64) -> Limit {
    let [soft, hard] = soft_and_hard.map(|value| (value != none).then(|| value.saturating_mul(unit)));
    // A soft limit that the hard one precedes is never reached.
    Limit { soft: soft.filter(|soft| hard.is_none_or(|hard| *soft < hard)), hard }
}

/// Reads `struct xfrm_lifetime_cur`.
fn before(value: &[u8]) -> Result<Before, RequestError> {
    let value: &[u8; 32] = structure(value)?;
    let [bytes, packets, added_s, first_s] = [0, 8, 16, 24].map(|at| number(value, at));
    Ok(Before { bytes, packets, added_s, first_s })
}

fn udp(value: &[u8]) -> Result<UdpPorts, RequestError> {
    let value: &[u8; encapsulation::LENGTH] = structure(value)?;
    let kind: u16 = number(value, encapsulation::TYPE);
    if kind != encapsulation::IN_UDP {
        return Err(RequestError::new(
            errno::NOT_SUPPORTED,
            format!("encapsulation {kind}: only ESP in UDP (2, RFC 3948)"),
        ));
    }
    Ok(UdpPorts {
        source: big_u16(value, encapsulation::SOURCE_PORT),
        destination: big_u16(value, encapsulation::DESTINATION_PORT),
    })
}

/// Reads the number of a CPU.
fn cpu(value: &[u8]) -> Result<u32, RequestError> {
    let number = u32::from_ne_bytes(*structure(value)?);
    if number >= CPUS {
        return Err(RequestError::new(
            errno::INVALID,
            format!("CPU {number}: the highest number is {}", CPUS - 1),
        ));
    }
    Ok(number)
}

fn options(sa: &mut Sa, flags: u8, extra: Option<&[u8]>) -> Result<(), RequestError> {
    let known = sa_flag::NO_ECN | sa_flag::NO_PATH_MTU | sa_flag::ANY_FAMILY | sa_flag::ESN;
    let extra: u32 = extra.map_or(0, |value| number(value, 0));
    if flags & !known != 0 || extra & !sa_flag::NO_DSCP != 0 {
        let why = format!(
            "flags {flags:#x}, extra flags {extra:#x}: only noecn, nopmtudisc, af-unspec, esn and dont-encap-dscp are supported"
        );
        return Err(RequestError::new(errno::NOT_SUPPORTED, why));
    }
    sa.esn = flags & sa_flag::ESN != 0;
    sa.ecn = if flags & sa_flag::NO_ECN != 0 { Ecn::Compatibility } else { Ecn::Normal };
    sa.df = if flags & sa_flag::NO_PATH_MTU != 0 { Df::Clear } else { Df::Copy };
    sa.dscp = if extra & sa_flag::NO_DSCP != 0 { Dscp::Set(0) } else { Dscp::Copy };
    Ok(())
}

/// Sets the window; returns the last number sent, and the highest received.
fn replay<'a>(
    sa: &mut Sa,
    info: &[u8],
    find: impl Fn(u16) -> Option<&'a [u8]>,
) -> Result<(u64, u64), RequestError> {
    sa.replay_window = info[at::WINDOW].into();
    if let Some(state) = find(attribute::REPLAY_ESN) {
        let state: &[u8; 24] = structure(state)?;
        let word = |index: usize| number::<u32>(state, index * 4);
        sa.replay_window = word(5);
        let [sent_high, received_high] = if sa.esn { [word(3), word(4)] } else { [0, 0] };
        let (sent, received) = (word(1), word(2));
        return Ok((
            u64::from(sent_high) << 32 | u64::from(sent),
            u64::from(received_high) << 32 | u64::from(received),
        ));
    }
    if sa.replay_window > WINDOW_MAX {
        return Err(RequestError::new(errno::INVALID, "the replay window is too large"));
    }
    let Some(state) = find(attribute::REPLAY) else { return Ok((0, 0)) };
    let state: &[u8; 12] = structure(state)?;
    Ok((number::<u32>(state, 0).into(), number::<u32>(state, 4).into()))
}

/// The suite that the algorithms are, with the keys for encryption and integrity.
fn suite(attributes: &[(u16, &[u8])]) -> Result<(Suite, [Secret; 2], Vec<Algorithm>), RequestError> {
    let (mut aead, mut crypt, mut auth, mut algorithms) = (None, None, None, Vec::new());
    for (kind, value) in attributes {
        // Bytes in front of the key, and the place for what was found.
        let (header, place) = match *kind {
            attribute::AEAD => (NAME + 8, &mut aead),
            attribute::CRYPT => (NAME + 4, &mut crypt),
            attribute::AUTH_TRUNCATED => (NAME + 8, &mut auth),
            // The same as the truncated one, if there are both.
            attribute::AUTH if auth.is_none() => (NAME + 4, &mut auth),
            attribute::COMPRESSION => {
                return Err(RequestError::new(errno::NOT_SUPPORTED, "compression is not supported"));
            }
            _ => continue,
        };
        *place = Some(algorithm(value, header)?);
        let header = value.get(..header).unwrap_or_default().to_vec();
        algorithms.push(Algorithm { kind: *kind, header });
    }
    let (suite, encryption, integrity) = match (&aead, &crypt, &auth) {
        (Some(aead), None, None) => (of_aead(aead), aead.key, &[][..]),
        (None, Some(crypt), Some(auth)) => (of_cbc(crypt, auth), crypt.key, auth.key),
        _ => (None, &[][..], &[][..]),
    };
    let Some(suite) = suite else {
        let found = [&aead, &crypt, &auth].into_iter().flatten();
        let named: Vec<_> = found
            .map(|found| format!("{} with {} bits, ICV {}", found.name, found.key.len() * 8, found.icv))
            .collect();
        let known = Suite::ALL.map(Suite::name).join(", ");
        let why = format!(
            "algorithms [{}]: in terms of strongSwan's proposals, {known} are supported",
            named.join("; ")
        );
        return Err(RequestError::new(errno::NOT_IMPLEMENTED, why));
    };
    Ok((suite, [Secret::new(encryption), Secret::new(integrity)], algorithms))
}

/// Reads `struct xfrm_algo`, or one of its variants with the length of the ICV.
fn algorithm(value: &[u8], header: usize) -> Result<AlgorithmKey<'_>, RequestError> {
    let cut = || RequestError::new(errno::INVALID, "algorithm that is cut off");
    let (front, key) = value.split_at_checked(header).ok_or_else(cut)?;
    let bits: u32 = number(front, NAME);
    let key = key.get(..bits.div_ceil(8) as usize).ok_or_else(cut)?;
    let name = front[..NAME].split(|byte| *byte == 0).next().unwrap_or_default();
    let name = std::str::from_utf8(name).map_err(|_| cut())?;
    let icv = if header > NAME + 4 { number(front, NAME + 4) } else { 0 };
    Ok(AlgorithmKey { name, icv, key })
}

fn of_aead(aead: &AlgorithmKey<'_>) -> Option<Suite> {
    match (aead.name, aead.icv, aead.key.len()) {
        ("rfc4106(gcm(aes))", 128, 20) => Some(Suite::Aes128Gcm),
        ("rfc4106(gcm(aes))", 128, 36) => Some(Suite::Aes256Gcm),
        ("rfc7539esp(chacha20,poly1305)", 128, 36) => Some(Suite::ChaCha20Poly1305),
        _ => None,
    }
}

fn of_cbc(crypt: &AlgorithmKey<'_>, auth: &AlgorithmKey<'_>) -> Option<Suite> {
    if !["cbc(aes)", "aes"].contains(&crypt.name) {
        return None;
    }
    match (auth.name, auth.icv, auth.key.len(), crypt.key.len()) {
        // Without a length of its own, Linux truncates SHA-256 to 96 bits, against RFC 4868.
        ("hmac(sha256)" | "sha256", 128, 32, 16) => Some(Suite::Aes128Sha256),
        ("hmac(sha256)" | "sha256", 128, 32, 32) => Some(Suite::Aes256Sha256),
        ("hmac(sha1)" | "sha1", 0 | 96, 20, 16) => Some(Suite::Aes128Sha1),
        ("hmac(sha1)" | "sha1", 0 | 96, 20, 32) => Some(Suite::Aes256Sha1),
        _ => None,
    }
}
