//! Messages to programs: answers, dumps, events.

use std::net::IpAddr;

use bm_ipsec::{Direction, Mark};

use crate::entry::{Entry, PolicyEntry, id_of};
use crate::layout::{attribute, flag, kind, policy as policy_at, sa as at, sa_id, selector, template};
use crate::mark;
use crate::message::{Bytes, Raw, put, put_message};
use crate::sa::Algorithm;
use crate::usage::{Usage, UsageReading};

/// `NLM_F_CAPPED`: the request is not repeated in the error, since it may have keys.
const CAPPED: u16 = 0x100;
/// Attribute of an error with its text.
const TEXT: u16 = 1;
/// The header of an event, which is no reply to a message.
const EVENT: Raw<'static> = Raw { kind: 0, flags: 0, sequence: 0, port: 0, body: &[] };

fn message(raw: &Raw<'_>, write: impl FnOnce(&mut Bytes)) -> Bytes {
    let mut to = Bytes::default();
    put_message(&mut to, &Raw { body: &[], ..*raw }, write);
    to
}

/// The answer to `raw` that it was carried out, or why not.
pub(crate) fn error(raw: &Raw<'_>, port: u32, refused: Option<(i32, &str)>) -> Bytes {
    let (number, text) = refused.unwrap_or_default();
    let texts = if text.is_empty() { 0 } else { flag::ACK_TLVS };
    let header = Raw { kind: kind::ERROR, flags: CAPPED | texts, port, ..*raw };
    message(&header, |to| {
        to.extend_from_slice(&(-number).to_ne_bytes());
        to.extend_from_slice(&((raw.body.len() + 16) as u32).to_ne_bytes());
        to.extend_from_slice(&raw.kind.to_ne_bytes());
        to.extend_from_slice(&raw.flags.to_ne_bytes());
        to.extend_from_slice(&raw.sequence.to_ne_bytes());
        to.extend_from_slice(&raw.port.to_ne_bytes());
        if !text.is_empty() {
            put(to, TEXT, &[text.as_bytes(), &[0]]);
        }
    })
}

pub(crate) fn done(raw: &Raw<'_>) -> Bytes {
    let raw = Raw { flags: flag::MULTI, ..*raw };
    message(&raw, |to| to.extend_from_slice(&[0; 4]))
}

/// The SA whose SPI was reserved.
pub(crate) fn spi(raw: &Raw<'_>, port: u32, info: &[u8; at::LENGTH], spi: u32) -> Bytes {
    let mut info = *info;
    info[at::SPI..][..4].copy_from_slice(&spi.to_be_bytes());
    let header = Raw { kind: kind::NEW_SA, flags: 0, port, ..*raw };
    message(&header, |to| to.extend_from_slice(&info))
}

/// An SA; its keys only if `reveal`, otherwise zeros in their place, as a kernel in lockdown shows them.
pub(crate) fn sa(raw: &Raw<'_>, entry: &Entry, usage: UsageReading, reveal: bool) -> Bytes {
    message(raw, |to| put_sa(to, entry, usage, reveal))
}

fn put_sa(to: &mut Bytes, entry: &Entry, reading: UsageReading, reveal: bool) {
    let mut info = used_info(entry, reading);
    info[at::FAILURES + 8..][..4].copy_from_slice(&(reading.usage.failures as u32).to_ne_bytes());
    to.extend_from_slice(&info);
    for algorithm in &entry.about.algorithms {
        put_algorithm(to, entry, algorithm, reveal);
    }
    for (kind, value) in &entry.about.attributes {
        if *kind == attribute::REPLAY_ESN {
            put_replay_esn(to, entry, reading.usage, value);
        } else {
            put(to, *kind, &[value]);
        }
    }
    put_replay(to, entry, reading.usage);
    put_direction(to, entry);
}

/// The direction, so that an SA that is added again has the same one, whatever the addresses of this machine are then.
fn put_direction(to: &mut Bytes, entry: &Entry) {
    let has_one = entry.about.attributes.iter().any(|(kind, _)| *kind == attribute::DIRECTION);
    if let Some(sa) = entry.sa.as_ref().filter(|_| !has_one) {
        let direction = match sa.direction {
            Direction::In => 1,
            Direction::Out => 2,
        };
        put(to, attribute::DIRECTION, &[&[direction]]);
    }
}

fn put_algorithm(to: &mut Bytes, entry: &Entry, algorithm: &Algorithm, reveal: bool) {
    let Some(sa) = &entry.sa else { return };
    let key = if algorithm.is_for_integrity() { &sa.integrity_key } else { &sa.encryption_key };
    let zeros = [0; 64];
    let shown = if reveal { key.bytes() } else { zeros.get(..key.len()).unwrap_or(&zeros) };
    put(to, algorithm.kind, &[&algorithm.header, shown]);
}

/// Last number sent, highest received.
fn numbers(entry: &Entry, usage: Usage) -> (u64, u64) {
    match entry.sa.as_ref().map(|sa| sa.direction) {
        Some(Direction::Out) => (usage.number.saturating_sub(1), 0),
        _ => (0, usage.number),
    }
}

/// The bitmap marks all numbers in the window as received, so that an SA that continues from there accepts no replay.
fn put_replay(to: &mut Bytes, entry: &Entry, usage: Usage) {
    if entry.sa.is_none() || entry.about.attributes.iter().any(|(kind, _)| *kind == attribute::REPLAY_ESN) {
        return;
    }
    let (sent, received) = numbers(entry, usage);
    put(
        to,
        attribute::REPLAY,
        &[&(sent as u32).to_ne_bytes(), &(received as u32).to_ne_bytes(), &u32::MAX.to_ne_bytes()],
    );
}

fn put_replay_esn(to: &mut Bytes, entry: &Entry, usage: Usage, value: &[u8]) {
    let (sent, received) = numbers(entry, usage);
    let words = [sent as u32, received as u32, (sent >> 32) as u32, (received >> 32) as u32];
    let mut value = value.to_vec();
    for (word, at) in words.iter().zip((4..20).step_by(4)) {
        if let Some(place) = value.get_mut(at..at + 4) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
    }
    value.iter_mut().skip(24).for_each(|byte| *byte = 0xff);
    put(to, attribute::REPLAY_ESN, &[&value]);
}

/// `struct xfrm_lifetime_cur` of an SA.
fn used(entry: &Entry, UsageReading { usage, now }: UsageReading) -> [u8; 32] {
    lifetime([usage.bytes, usage.packets, entry.added.epoch_s, now.epoch_s_of(usage.first_ns)])
}

/// `struct xfrm_usersa_info` with what the SA was used for.
fn used_info(entry: &Entry, usage: UsageReading) -> [u8; at::LENGTH] {
    let mut info = entry.about.info;
    info[at::USED..][..32].copy_from_slice(&used(entry, usage));
    info
}

/// `struct xfrm_lifetime_cur`: bytes, packets, when it was added, and used first.
fn lifetime(values: [u64; 4]) -> [u8; 32] {
    let mut to = [0; 32];
    for (value, place) in values.iter().zip(to.as_chunks_mut::<8>().0) {
        *place = value.to_ne_bytes();
    }
    to
}

/// `struct xfrm_usersa_id`.
fn id(entry: &Entry) -> [u8; sa_id::LENGTH] {
    let info = &entry.about.info;
    let mut id = [0; sa_id::LENGTH];
    id[..20].copy_from_slice(&info[at::DESTINATION..][..20]);
    id[sa_id::FAMILY..][..2].copy_from_slice(&info[at::FAMILY..][..2]);
    id[sa_id::PROTOCOL] = info[at::PROTOCOL];
    id
}

/// Which packets an SA is for: mark, CPU and interface.
fn put_which(to: &mut Bytes, entry: &Entry) {
    let attributes = entry.about.attributes.iter();
    let which =
        attributes.filter(|(kind, _)| [attribute::MARK, attribute::CPU, attribute::INTERFACE].contains(kind));
    which.for_each(|(kind, value)| put(to, *kind, &[value]));
}

/// Event: an SA was deleted.
pub(crate) fn sa_gone(entry: &Entry, usage: UsageReading) -> Bytes {
    message(&Raw { kind: kind::DELETE_SA, ..EVENT }, |to| {
        to.extend_from_slice(&id(entry));
        put(to, attribute::SA, &[&used_info(entry, usage)]);
        put_which(to, entry);
    })
}

/// Event: a lifetime has ended.
pub(crate) fn expire(entry: &Entry, usage: UsageReading, is_hard: bool) -> Bytes {
    message(&Raw { kind: kind::EXPIRE, ..EVENT }, |to| {
        to.extend_from_slice(&used_info(entry, usage));
        to.extend_from_slice(&[u8::from(is_hard), 0, 0, 0, 0, 0, 0, 0]);
        put_which(to, entry);
    })
}

/// Event: packets of an inbound SA come from another address or UDP port: `struct xfrm_user_mapping`.
pub(crate) fn mapping(entry: &Entry, source: IpAddr, port: u16) -> Bytes {
    message(&Raw { kind: kind::MAPPING, ..EVENT }, |to| {
        let info = &entry.about.info;
        to.extend_from_slice(&id(entry));
        to.extend_from_slice(&info[at::REQID..][..4]);
        to.extend_from_slice(&info[at::SOURCE..][..16]);
        let mut new = [0; 16];
        match source {
            IpAddr::V4(source) => new[..4].copy_from_slice(&source.octets()),
            IpAddr::V6(source) => new = source.octets(),
        }
        to.extend_from_slice(&new);
        let old = entry.sa.as_ref().and_then(|sa| sa.udp).map_or(0, |udp| udp.source);
        to.extend_from_slice(&old.to_be_bytes());
        to.extend_from_slice(&port.to_be_bytes());
    })
}

/// Numbers of an SA: `struct xfrm_aevent_id`.
pub(crate) fn replay(raw: &Raw<'_>, entry: &Entry, reading: UsageReading) -> Bytes {
    message(raw, |to| {
        to.extend_from_slice(&id(entry));
        to.extend_from_slice(&entry.about.info[at::SOURCE..][..16]);
        to.extend_from_slice(&[0; 4]);
        to.extend_from_slice(&entry.about.info[at::REQID..][..4]);
        let esn = entry.about.attributes.iter().find(|(kind, _)| *kind == attribute::REPLAY_ESN);
        match esn {
            Some((_, value)) => put_replay_esn(to, entry, reading.usage, value),
            None => put_replay(to, entry, reading.usage),
        }
        put(to, attribute::LIFETIME, &[&used(entry, reading)]);
        put_which(to, entry);
    })
}

pub(crate) fn policy(raw: &Raw<'_>, stored: &PolicyEntry) -> Bytes {
    message(raw, |to| {
        to.extend_from_slice(&info(stored));
        put_templates(to, stored);
    })
}

/// Event: a policy was deleted.
pub(crate) fn policy_gone(stored: &PolicyEntry) -> Bytes {
    message(&Raw { kind: kind::DELETE_POLICY, ..EVENT }, |to| {
        to.extend_from_slice(&id_of(&stored.new));
        put(to, attribute::POLICY, &[&info(stored)]);
        put_templates(to, stored);
    })
}

fn info(stored: &PolicyEntry) -> [u8; policy_at::LENGTH] {
    let mut info = stored.new.info;
    let used = lifetime([0, 0, stored.added_s, 0]);
    info[policy_at::USED..][..32].copy_from_slice(&used);
    info
}

/// Templates and interface.
fn put_templates(to: &mut Bytes, stored: &PolicyEntry) {
    if !stored.new.templates.is_empty() {
        put(to, attribute::TEMPLATES, &[&stored.new.templates]);
    }
    put_mark(to, stored.new.mark());
    put_interface(to, stored.new.policy.if_id);
}

fn put_interface(to: &mut Bytes, if_id: u32) {
    if if_id != 0 {
        put(to, attribute::INTERFACE, &[&if_id.to_ne_bytes()]);
    }
}

/// Event: a packet with this selector needs an SA, of this CPU if it has another one.
pub(crate) fn acquire(stored: &PolicyEntry, packet: &[u8; selector::LENGTH], cpu: Option<u32>) -> Bytes {
    let policy = RawPolicy {
        info: &info(stored),
        templates: &stored.new.templates,
        mark: stored.new.policy.selector.mark,
        if_id: stored.new.policy.if_id,
    };
    message(&Raw { kind: kind::ACQUIRE, ..EVENT }, |to| put_acquire(to, &policy, packet, cpu))
}

/// What a message about a packet without an SA contains of its policy.
pub(crate) struct RawPolicy<'a> {
    /// `struct xfrm_userpolicy_info`.
    pub info: &'a [u8; policy_at::LENGTH],
    /// One `struct xfrm_user_tmpl` after the other.
    pub templates: &'a [u8],
    pub mark: Mark,
    pub if_id: u32,
}

/// `struct xfrm_user_acquire` and attributes.
pub(crate) fn put_acquire(
    to: &mut Bytes,
    policy: &RawPolicy<'_>,
    packet: &[u8; selector::LENGTH],
    cpu: Option<u32>,
) {
    let template = policy.templates.get(..template::LENGTH).unwrap_or(&[0; template::LENGTH]);
    // The id has destination, SPI and protocol, as the template has them; then the source.
    to.extend_from_slice(&template[template::DESTINATION..template::PROTOCOL + 4]);
    to.extend_from_slice(&template[template::SOURCE..template::REQID]);
    to.extend_from_slice(packet);
    to.extend_from_slice(policy.info);
    // Any algorithm.
    to.extend_from_slice(&[0xff; 12]);
    to.extend_from_slice(&[0; 4]);
    put(to, attribute::TEMPLATES, &[policy.templates]);
    put_mark(to, policy.mark);
    put_interface(to, policy.if_id);
    if let Some(cpu) = cpu {
        put(to, attribute::CPU, &[&cpu.to_ne_bytes()]);
    }
}

fn put_mark(to: &mut Bytes, mark: Mark) {
    if let Some(mark) = mark::bytes(mark) {
        put(to, attribute::MARK, &[&mark]);
    }
}

/// How many SAs there are.
pub(crate) fn sa_info(raw: &Raw<'_>, count: usize) -> Bytes {
    message(raw, |to| {
        to.extend_from_slice(&[0; 4]);
        put(to, 1, &[&(count as u32).to_ne_bytes()]);
    })
}

/// How many policies there are for in, out and fwd.
pub(crate) fn policy_info(raw: &Raw<'_>, counts: [usize; 3]) -> Bytes {
    message(raw, |to| {
        to.extend_from_slice(&[0; 4]);
        let [inbound, out, forward] = counts.map(|count| (count as u32).to_ne_bytes());
        put(to, 1, &[&inbound, &out, &forward, &[0; 12]]);
        put(to, 3, &[&[32, 32]]);
        put(to, 4, &[&[128, 128]]);
    })
}

/// What happens to packets without a policy: they pass.
pub(crate) fn default(raw: &Raw<'_>) -> Bytes {
    const ACCEPT: u8 = 2;
    message(raw, |to| to.extend_from_slice(&[ACCEPT; 3]))
}
