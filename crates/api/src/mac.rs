//! A MAC address; in JSON a string such as `"02:00:5e:10:00:01"`.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A MAC address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The text is not a MAC address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAMac(String);

impl fmt::Display for NotAMac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a MAC address such as 02:00:5e:10:00:01", self.0)
    }
}

impl std::error::Error for NotAMac {}

impl FromStr for Mac {
    type Err = NotAMac;
    fn from_str(text: &str) -> Result<Self, NotAMac> {
        let parts = text.split(':');
        let bytes: Option<Vec<u8>> = parts
            .map(|part| if part.len() == 2 { u8::from_str_radix(part, 16).ok() } else { None })
            .collect();
        let six = bytes.and_then(|bytes| bytes.try_into().ok());
        six.map(Self).ok_or_else(|| NotAMac(text.into()))
    }
}

impl TryFrom<String> for Mac {
    type Error = NotAMac;
    fn try_from(text: String) -> Result<Self, NotAMac> {
        text.parse()
    }
}

impl From<Mac> for String {
    fn from(mac: Mac) -> Self {
        mac.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        let mac = Mac([2, 0, 0x5e, 0x10, 0, 0xff]);
        assert_eq!(serde_json::to_string(&mac).unwrap(), "\"02:00:5e:10:00:ff\"");
        assert_eq!("02:00:5e:10:00:ff".parse(), Ok(mac));
        for wrong in ["", "02:00:5e:10:00", "02:00:5e:10:00:ff:00", "2:0:5e:10:0:ff", "0+:00:5e:10:00:ff"] {
            assert!(wrong.parse::<Mac>().is_err(), "{wrong}");
        }
    }
}
