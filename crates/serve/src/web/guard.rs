//! Checks each request: which host was asked for, which token came with it, and how many wrong ones came before.
//!
//! Without a token the page is for this machine only. But a page of another site can make a browser on this machine send
//! requests to it, with a name whose address changes to 127.0.0.1 (DNS rebinding). Such requests have that name in `Host`.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

use super::token::Token;

/// Number of wrong tokens that an address may send at once, and after how long it may send one more.
const WRONG_MAX: u32 = 5;
const WRONG_NS: u64 = 10_000_000_000;
/// Maximum number of addresses that are remembered; beyond it the one whose last wrong token is the oldest is forgotten.
const ADDRESSES: usize = 1024;

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The name in `Host` is not this machine's.
    Host,
    /// No token, or a wrong one.
    Token,
    /// Too many wrong tokens came from this address.
    TooMany,
}

/// What distinguishes wrong tokens: it cannot be told from it what they are.
type Print = u64;

/// Who may read the API.
pub struct Guard {
    token: Option<Token>,
    wrong: HashMap<IpAddr, Wrong>,
    prints: RandomState,
}

/// Wrong tokens of an address.
struct Wrong {
    count: u32,
    /// When the last one came.
    at_ns: u64,
    last: Print,
}

impl Guard {
    /// Without a token, everybody who can connect may read.
    pub fn new(token: Option<Token>) -> Self {
        Self { token, wrong: HashMap::new(), prints: RandomState::new() }
    }

    /// Checks the value of `Host`.
    ///
    /// # Errors
    /// Without a token: it is not a name of this machine. With one, a page of another site would have to know it.
    pub fn check_host(&self, host: Option<&str>) -> Result<(), Refusal> {
        if self.token.is_some() || host.is_some_and(is_loopback) { Ok(()) } else { Err(Refusal::Host) }
    }

    /// Checks the value of `Authorization` in a request from this address.
    ///
    /// # Errors
    /// There is no token in it, or a wrong one, or too many wrong ones came before. Then not even the right one is
    /// accepted, so that nobody can tell whether a guess was right.
    pub fn check_token(
        &mut self,
        peer: IpAddr,
        authorization: Option<&str>,
        now_ns: u64,
    ) -> Result<(), Refusal> {
        let Some(token) = &self.token else { return Ok(()) };
        let peer = network(peer);
        if self.wrong.get(&peer).is_some_and(|wrong| wrong.now(now_ns) >= WRONG_MAX) {
            return Err(Refusal::TooMany);
        }
        let Some(given) = authorization.and_then(|value| value.strip_prefix("Bearer ")) else {
            return Err(Refusal::Token);
        };
        if token.is(given.as_bytes()) {
            return Ok(());
        }
        // A page sends a mistyped token with each of its requests: that is one attempt.
        let print = self.prints.hash_one(given);
        if self.wrong.get(&peer).is_none_or(|wrong| wrong.last != print) {
            self.remember(peer, print, now_ns);
        }
        Err(Refusal::Token)
    }

    fn remember(&mut self, peer: IpAddr, last: Print, now_ns: u64) {
        if self.wrong.len() >= ADDRESSES && !self.wrong.contains_key(&peer) {
            let oldest = self.wrong.iter().min_by_key(|(_, wrong)| wrong.at_ns).map(|(address, _)| *address);
            oldest.and_then(|address| self.wrong.remove(&address));
        }
        let count = self.wrong.get(&peer).map_or(0, |wrong| wrong.now(now_ns));
        self.wrong.insert(peer, Wrong { count: count + 1, at_ns: now_ns, last });
    }
}

impl Wrong {
    /// How many count now: one less after each [`WRONG_NS`].
    fn now(&self, now_ns: u64) -> u32 {
        let less = now_ns.saturating_sub(self.at_ns) / WRONG_NS;
        self.count.saturating_sub(u32::try_from(less).unwrap_or(u32::MAX))
    }
}

/// An IPv6 address stands for its /64, of which a sender usually has all addresses.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((u128::from(address) >> 64 << 64).into()),
        address => address,
    }
}

/// Whether `Host` names this machine: `localhost` or a loopback address, with or without a port.
fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost")
        || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "Bearer 0123456789abcdef";

    fn guard() -> Guard {
        let path = std::env::temp_dir().join(format!("bm-guard-{:?}", std::thread::current().id()));
        std::fs::write(&path, "0123456789abcdef").unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let token = Token::read(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        Guard::new(Some(token))
    }

    fn peer(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[test]
    fn without_a_token_only_names_of_this_machine_are_answered() {
        let guard = Guard::new(None);
        for host in ["localhost", "LOCALHOST:80", "127.0.0.1:9480", "127.1.2.3", "[::1]:9480", "[::1]"] {
            assert_eq!(guard.check_host(Some(host)), Ok(()), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example:9480",
            "192.0.2.1",
            "",
            "127.0.0.1.evil.example",
            "[::2]:80",
        ] {
            assert_eq!(guard.check_host(Some(host)), Err(Refusal::Host), "{host}");
        }
        assert_eq!(guard.check_host(None), Err(Refusal::Host));
    }

    #[test]
    fn wrong_tokens_are_limited_for_each_address() {
        let mut guard = guard();
        assert_eq!(guard.check_token(peer(1), Some(SECRET), 0), Ok(()));
        assert_eq!(guard.check_token(peer(1), None, 0), Err(Refusal::Token));
        for attempt in 0..WRONG_MAX {
            let wrong = format!("Bearer wrong{attempt}");
            // Again and again, as all requests of a page do.
            let times = if attempt + 1 == WRONG_MAX { 1 } else { 20 };
            for _ in 0..times {
                assert_eq!(guard.check_token(peer(1), Some(&wrong), 0), Err(Refusal::Token));
            }
        }
        assert_eq!(guard.check_token(peer(1), Some(SECRET), 1), Err(Refusal::TooMany));
        assert_eq!(guard.check_token(peer(2), Some(SECRET), 1), Ok(()), "other addresses are not limited");
        assert_eq!(guard.check_token(peer(1), Some(SECRET), WRONG_NS), Ok(()));
        assert_eq!(guard.check_token(peer(1), Some("Bearer no"), WRONG_NS), Err(Refusal::Token));
        assert_eq!(guard.check_token(peer(1), Some(SECRET), WRONG_NS + 1), Err(Refusal::TooMany));
    }

    #[test]
    fn addresses_of_a_network_count_together_and_memory_is_limited() {
        let mut guard = guard();
        for last in 0..u16::try_from(WRONG_MAX).unwrap() {
            let peer = std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 1, last, 0, 0, last).into();
            let wrong = format!("Bearer {last}");
            assert_eq!(guard.check_token(peer, Some(&wrong), 0), Err(Refusal::Token));
        }
        let peer = std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 99, 0, 0, 0).into();
        assert_eq!(guard.check_token(peer, Some(SECRET), 0), Err(Refusal::TooMany));
        for n in 0..3000_u32 {
            let _refused = guard.check_token(IpAddr::V4(n.into()), Some("Bearer x"), u64::from(n) + 1);
        }
        assert_eq!(guard.wrong.len(), ADDRESSES);
    }
}
