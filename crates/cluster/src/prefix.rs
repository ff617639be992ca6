//! Prefixes of addresses of both families.

use std::net::IpAddr;

/// The first address of a prefix; `None` if the prefix has only one address.
pub fn first(address: IpAddr, length: u8) -> Option<IpAddr> {
    match address {
        IpAddr::V4(address) if length < 32 => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            Some(IpAddr::V4((u32::from(address) & mask).into()))
        }
        IpAddr::V6(address) if length < 128 => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
            Some(IpAddr::V6((u128::from(address) & mask).into()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn computes_the_first_address_of_a_prefix() {
        let at = |text: &str, length| first(text.parse().unwrap(), length).map(|first| first.to_string());
        assert_eq!(at("192.0.2.77", 24).as_deref(), Some("192.0.2.0"));
        assert_eq!(at("192.0.2.77", 0).as_deref(), Some("0.0.0.0"));
        assert_eq!(at("2001:db8::77", 64).as_deref(), Some("2001:db8::"));
        assert_eq!((at("192.0.2.77", 32), at("2001:db8::77", 128)), (None, None));
    }
}
