//! Messages as programs send them, for tests.

use std::cell::Cell;
use std::net::IpAddr;

use bm_ipsec::SaId;

use crate::layout::{INET, INET6, attribute, kind, policy, sa, selector, template};
use crate::{Answer, Client, Context, Database, Messages, Now, Usage};

pub const GCM: &str = "rfc4106(gcm(aes))";
pub const KEY: [u8; 20] = [7; 20];
/// The SPI of SAs in the configuration.
pub const CONFIGURED: u32 = 0x7777;
/// How many policies workers can use.
pub const POLICIES: usize = 40;

/// The bytes of a message.
pub fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let mut to = ((16 + body.len()) as u32).to_ne_bytes().to_vec();
    to.extend([kind.to_ne_bytes(), flags.to_ne_bytes()].concat());
    to.extend([77u32.to_ne_bytes(), 0u32.to_ne_bytes()].concat());
    to.extend(body);
    to
}

pub fn with(mut body: Vec<u8>, kind: u16, value: &[u8]) -> Vec<u8> {
    body.extend(((4 + value.len()) as u16).to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
    body
}

fn address(text: &str) -> ([u8; 16], u16) {
    let mut to = [0; 16];
    match text.parse().unwrap() {
        IpAddr::V4(four) => {
            to[..4].copy_from_slice(&four.octets());
            (to, INET)
        }
        IpAddr::V6(six) => (six.octets(), INET6),
    }
}

/// `struct xfrm_usersa_info` of a tunnel without lifetimes.
pub fn sa_info(source: &str, destination: &str, spi: u32, reqid: u32) -> Vec<u8> {
    let mut info = vec![0; sa::LENGTH];
    let (to, family) = address(destination);
    info[sa::DESTINATION..][..16].copy_from_slice(&to);
    info[sa::SPI..][..4].copy_from_slice(&spi.to_be_bytes());
    info[sa::PROTOCOL] = 50;
    info[sa::SOURCE..][..16].copy_from_slice(&address(source).0);
    info[sa::LIMITS..][..32].fill(0xff);
    info[sa::REQID..][..4].copy_from_slice(&reqid.to_ne_bytes());
    info[sa::FAMILY..][..2].copy_from_slice(&family.to_ne_bytes());
    (info[sa::MODE], info[sa::WINDOW]) = (1, 32);
    info
}

pub fn algorithm(name: &str, icv: Option<u32>, key: &[u8]) -> Vec<u8> {
    let mut to = name.as_bytes().to_vec();
    to.resize(64, 0);
    to.extend((key.len() as u32 * 8).to_ne_bytes());
    to.extend(icv.map(u32::to_ne_bytes).into_iter().flatten());
    to.extend(key);
    to
}

/// The body of NEWSA for an SA with AES-GCM.
pub fn new_sa(source: &str, destination: &str, spi: u32, reqid: u32, key: &[u8]) -> Vec<u8> {
    with(sa_info(source, destination, spi, reqid), attribute::AEAD, &algorithm(GCM, Some(128), key))
}

/// `struct xfrm_usersa_id`.
pub fn sa_id(destination: &str, spi: u32) -> Vec<u8> {
    let (to, family) = address(destination);
    [&to[..], &spi.to_be_bytes(), &family.to_ne_bytes(), &[50, 0]].concat()
}

/// `struct xfrm_selector` of two prefixes of 24 bits.
pub fn selector_of(source: &str, destination: &str) -> Vec<u8> {
    let mut to = vec![0; selector::LENGTH];
    to[..16].copy_from_slice(&address(destination).0);
    to[16..32].copy_from_slice(&address(source).0);
    to[selector::FAMILY..][..2].copy_from_slice(&INET.to_ne_bytes());
    (to[selector::DESTINATION_LENGTH], to[selector::SOURCE_LENGTH]) = (24, 24);
    to
}

/// The body of NEWPOLICY, with a template between these ends, or none.
pub fn new_policy(direction: u8, priority: u32, ends: Option<[&str; 2]>) -> Vec<u8> {
    let mut info = selector_of("10.1.0.0", "10.2.0.0");
    info.resize(policy::LENGTH, 0);
    info[policy::LIMITS..][..32].fill(0xff);
    info[policy::PRIORITY..][..4].copy_from_slice(&priority.to_ne_bytes());
    info[policy::DIRECTION] = direction;
    let Some([source, destination]) = ends else { return info };
    let mut value = vec![0; template::LENGTH];
    value[..16].copy_from_slice(&address(destination).0);
    value[template::PROTOCOL] = 50;
    value[template::FAMILY..][..2].copy_from_slice(&INET.to_ne_bytes());
    value[template::SOURCE..][..16].copy_from_slice(&address(source).0);
    value[template::REQID..][..4].copy_from_slice(&1u32.to_ne_bytes());
    value[template::MODE] = 1;
    with(info, attribute::TEMPLATES, &value)
}

/// A database, with a program and the outside of it.
#[derive(Default)]
pub struct Lab {
    pub database: Database,
    pub client: Client,
    pub now: Now,
    pub usage: Usage,
}

/// The address of this machine.
pub const OWN: &str = "192.0.2.1";
pub const PEER: &str = "198.51.100.1";

impl Lab {
    pub fn with<T>(&mut self, act: impl FnOnce(&mut Database, &mut Client, &Context<'_>) -> T) -> T {
        let Self { database, client, now, usage } = self;
        let (now, usage, next) = (*now, *usage, Cell::new(0x1234_5678u32));
        let policies = database.policies.all().count();
        let context = Context {
            now,
            usage: &move |_: SaId| usage,
            is_configured: &|id| id.spi == CONFIGURED,
            has_room: &|_, gone| gone.is_some() || policies < POLICIES,
            is_local: &|address| address == OWN.parse::<IpAddr>().unwrap(),
            random: &|| {
                next.set(next.get().wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
                next.get()
            },
        };
        act(database, client, &context)
    }

    /// Sends one message.
    pub fn ask(&mut self, kind: u16, flags: u16, body: &[u8]) -> Answer {
        let bytes = message(kind, flags, body);
        let raw = Messages(&bytes).next().unwrap();
        self.with(|database, client, context| database.handle(client, &raw, context))
    }

    /// The error number of the answer.
    pub fn errno(&mut self, kind: u16, body: &[u8]) -> i32 {
        errno(&self.ask(kind, 5, body))
    }
}

/// The error number of an answer; 0 for none.
pub fn errno(answer: &Answer) -> i32 {
    answer
        .replies
        .iter()
        .flat_map(|reply| Messages(reply))
        .find_map(|raw| {
            (raw.kind == kind::ERROR).then(|| i32::from_ne_bytes(*raw.body.first_chunk().unwrap()))
        })
        .map_or(0, |number| -number)
}
