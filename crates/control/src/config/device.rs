//! DEVICE: the syntax of devices in the configuration and on the command line.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Maximum length of an interface name: `IFNAMSIZ` without the terminating zero.
pub(super) const NAME_MAX: usize = 15;
/// The kinds of devices, before the colon.
const KINDS: [&str; 4] = ["xdp", "tap", "pcap", "dpdk"];

/// What the key `device` of a `[[port]]`, or `--port`, names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Device {
    /// A Linux interface: `xdp:eth0`, or just `eth0`.
    Xdp(String),
    /// A TAP device, created if it does not exist: `tap:tap0`.
    Tap(String),
    /// Capture files: `pcap:in.pcap,out.pcap`; either may be omitted.
    Pcap {
        /// Received frames are read from this file.
        input: Option<PathBuf>,
        /// Sent frames are written to this file.
        output: Option<PathBuf>,
    },
    /// A DPDK device: `dpdk:0000:01:00.0`, `dpdk:net_ring0`, with the driver's arguments after a comma.
    Dpdk(String),
}

impl Default for Device {
    /// An interface without a name, which no port has in the end.
    fn default() -> Self {
        Self::Xdp(String::new())
    }
}

impl Device {
    /// Name of the interface, for Linux interfaces and TAPs.
    pub fn interface(&self) -> Option<&str> {
        match self {
            Self::Xdp(name) | Self::Tap(name) => Some(name),
            Self::Pcap { .. } | Self::Dpdk(_) => None,
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Xdp(name) => write!(f, "xdp:{name}"),
            Self::Tap(name) => write!(f, "tap:{name}"),
            Self::Dpdk(device) => write!(f, "dpdk:{device}"),
            Self::Pcap { input, output } => {
                f.write_str("pcap:")?;
                if let Some(input) = input {
                    write!(f, "{}", input.display())?;
                }
                match output {
                    Some(output) => write!(f, ",{}", output.display()),
                    None => Ok(()),
                }
            }
        }
    }
}

/// Why a text is not a valid device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceError {
    /// The kind before the colon is unknown.
    Kind(String),
    /// Not a valid DPDK device.
    Dpdk(String),
    /// Not a valid interface name.
    Name(String),
    /// Neither file is given.
    NoFile,
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind(kind) => {
                write!(f, "unknown kind of device `{kind}`: ")?;
                match super::closest::closest(kind, &KINDS) {
                    Some(close) => write!(f, "did you mean `{close}:`?"),
                    None => f.write_str("write xdp:NAME, tap:NAME, pcap:IN,OUT or dpdk:DEVICE"),
                }
            }
            Self::Dpdk(device) => write!(
                f,
                "invalid DPDK device `{device}`: write dpdk:0000:01:00.0 for a PCI device, or a virtual \
                 device as in dpdk:net_ring0 or dpdk:net_pcap0,rx_pcap=FILE"
            ),
            Self::Name(name) if name.is_empty() => {
                f.write_str("missing interface name: write it as in xdp:eth0")
            }
            Self::Name(name) => {
                write!(f, "invalid interface name `{name}`: use 1 to {NAME_MAX} bytes without slash or space")
            }
            Self::NoFile => f.write_str("missing file name: write pcap:IN, pcap:IN,OUT or pcap:,OUT"),
        }
    }
}

impl std::error::Error for DeviceError {}

impl FromStr for Device {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, DeviceError> {
        match text.split_once(':') {
            None => name(text).map(Self::Xdp),
            Some(("xdp", rest)) => name(rest).map(Self::Xdp),
            Some(("tap", rest)) => name(rest).map(Self::Tap),
            Some(("pcap", rest)) => files(rest),
            Some(("dpdk", rest)) => dpdk(rest),
            Some((kind, _)) => Err(DeviceError::Kind(kind.into())),
        }
    }
}

/// Checks a name as the kernel does (`dev_valid_name`). It looks at bytes, of which it takes 0xa0 for a space.
fn name(text: &str) -> Result<String, DeviceError> {
    let is_odd = text.bytes().any(|byte| matches!(byte, b'/' | b':' | b' ' | b'\t'..=b'\r' | 0xa0 | 0));
    let fits = (1..=NAME_MAX).contains(&text.len()) && text != "." && text != ".." && !is_odd;
    if fits { Ok(text.into()) } else { Err(DeviceError::Name(text.into())) }
}

/// Checks only the syntax; DPDK reports other errors when the device is opened.
fn dpdk(text: &str) -> Result<Device, DeviceError> {
    let named = text.split(',').next().is_some_and(|name| !name.is_empty());
    let fits = named && !text.contains(|c: char| c.is_whitespace() || c == '\0');
    if fits { Ok(Device::Dpdk(text.into())) } else { Err(DeviceError::Dpdk(text.into())) }
}

fn files(text: &str) -> Result<Device, DeviceError> {
    let (input, output) = text.split_once(',').unwrap_or((text, ""));
    let [input, output] = [input, output].map(|name| (!name.is_empty()).then(|| PathBuf::from(name)));
    if input.is_none() && output.is_none() {
        return Err(DeviceError::NoFile);
    }
    Ok(Device::Pcap { input, output })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        text.parse::<Device>().unwrap_err().to_string()
    }

    #[test]
    fn reads_what_it_writes() {
        let dpdk = ["dpdk:0000:01:00.0", "dpdk:net_ring0", "dpdk:net_pcap0,rx_pcap=a.pcap,infinite_rx=1"];
        let others = ["xdp:eth0", "tap:tap0", "pcap:in.pcap", "pcap:/a/in.pcap,out.pcap", "pcap:,out.pcap"];
        for text in others.into_iter().chain(dpdk) {
            assert_eq!(text.parse::<Device>().unwrap().to_string(), text);
        }
        assert_eq!("eth0.100".parse(), Ok(Device::Xdp("eth0.100".into())));
        assert_eq!("eth0".parse::<Device>().unwrap().interface(), Some("eth0"));
    }

    #[test]
    fn errors_have_hints() {
        assert_eq!(refused("xpd:eth0"), "unknown kind of device `xpd`: did you mean `xdp:`?");
        assert_eq!(
            refused("vhost:a"),
            "unknown kind of device `vhost`: write xdp:NAME, tap:NAME, pcap:IN,OUT or dpdk:DEVICE"
        );
        for text in ["dpdk:", "dpdk:,a=1", "dpdk:net_ring0 a"] {
            assert!(refused(text).contains("as in dpdk:net_ring0"), "{text}");
        }
        assert_eq!(refused("xdp:"), "missing interface name: write it as in xdp:eth0");
        assert_eq!(
            refused("tap:a/b"),
            "invalid interface name `a/b`: use 1 to 15 bytes without slash or space"
        );
        assert_eq!(refused("pcap:,"), "missing file name: write pcap:IN, pcap:IN,OUT or pcap:,OUT");
        // Each of these can be the name of an interface.
        for text in ["router", "eth0.100", "a->b", "a@b", "#1", "\"", "é", "\u{3000}", "a=b"] {
            assert_eq!(text.parse(), Ok(Device::Xdp(text.into())));
        }
        for text in ["", "..", "sixteen-letters-", "a b", "a\u{a0}", "à"] {
            assert!(text.parse::<Device>().is_err(), "{text}");
        }
    }
}
