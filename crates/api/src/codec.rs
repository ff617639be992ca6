//! Encodes and decodes the bodies of replies.

use crate::Error;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// For fields that are written only if they are true.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
pub(crate) fn is_false(value: &bool) -> bool {
    !value
}

/// Encodes a reply as JSON.
///
/// # Errors
/// If the type cannot be represented in JSON; all types of this crate can.
pub fn encode<T: Serialize>(reply: &T) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(reply).map_err(|error| Error::new(format_args!("cannot encode the reply: {error}")))
}

/// Decodes the body of a reply with this HTTP status.
///
/// # Errors
/// The error in the body, or that the reply does not fit this version.
pub fn decode<T: DeserializeOwned>(status: u16, body: &[u8]) -> Result<T, Error> {
    if status == 200 {
        return serde_json::from_slice(body).map_err(|error| {
            Error::new(format_args!("cannot decode the reply of the daemon: {error}"))
                .hint("use the same version of brickmoon for the command and the daemon")
        });
    }
    Err(serde_json::from_slice(body)
        .unwrap_or_else(|_| Error::new(format_args!("the daemon answered with HTTP status {status}"))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reloaded;

    #[test]
    fn carries_replies_and_errors() {
        let reply = Reloaded { changed: vec!["slow_path.queue".into()], ..Default::default() };
        assert_eq!(decode::<Reloaded>(200, &encode(&reply).unwrap()), Ok(reply));
        let error = Error::new("unknown VRF \"blue\"").hint("`ip vrf` lists VRFs");
        assert_eq!(decode::<Reloaded>(404, &encode(&error).unwrap()), Err(error.clone()));
        assert_eq!(error.to_string(), "unknown VRF \"blue\": `ip vrf` lists VRFs");
    }

    #[test]
    fn a_mac_address_is_a_string() {
        let mac = crate::Mac([2, 0, 0x5e, 0x10, 0, 0xff]);
        assert_eq!(encode(&mac).unwrap(), b"\"02:00:5e:10:00:ff\"");
        assert_eq!(decode(200, b"\"02:00:5e:10:00:ff\""), Ok(mac));
        for wrong in ["", "02:00:5e:10:00", "02:00:5e:10:00:ff:00", "0+:00:5e:10:00:ff"] {
            assert!(decode::<crate::Mac>(200, format!("\"{wrong}\"").as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn errors_say_that_the_body_is_unknown() {
        let error = decode::<Reloaded>(502, b"<html>").unwrap_err();
        assert_eq!(error.message, "the daemon answered with HTTP status 502");
        let error = decode::<Reloaded>(200, b"[]x").unwrap_err();
        assert!(error.message.starts_with("cannot decode the reply of the daemon"), "{error}");
        assert!(error.hint.is_some());
    }
}
