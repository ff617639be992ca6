//! DEVICE: how the configuration and the command line name a device.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Longest name of an interface: `IFNAMSIZ` less the closing zero.
const NAME_MAX: usize = 15;
/// What stands before the colon.
const KINDS: [&str; 4] = ["xdp", "tap", "pcap", "dpdk"];

/// A device.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Device {
    /// An interface of Linux, by AF_XDP: `xdp:eth0`, or just `eth0`.
    Xdp(String),
    /// A TAP device, made if it is not there: `tap:tap0`.
    Tap(String),
    /// Capture files: `pcap:in.pcap,out.pcap`; either may be left out.
    Pcap {
        /// Frames come from here.
        input: Option<PathBuf>,
        /// Frames go there.
        output: Option<PathBuf>,
    },
}

impl Device {
    /// The interface of Linux, if it is one.
    pub fn interface(&self) -> Option<&str> {
        match self {
            Self::Xdp(name) | Self::Tap(name) => Some(name),
            Self::Pcap { .. } => None,
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Xdp(name) => write!(f, "xdp:{name}"),
            Self::Tap(name) => write!(f, "tap:{name}"),
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

/// A text names no device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceError {
    /// What stands before the colon is no kind of device.
    Kind(String),
    /// DPDK is not part of this build.
    Dpdk,
    /// No interface can have this name.
    Name(String),
    /// Neither file is named.
    NoFile,
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind(kind) => {
                write!(f, "no kind of device is called `{kind}`: ")?;
                match super::error::closest(kind, &KINDS) {
                    Some(close) => write!(f, "did you mean `{close}:`?"),
                    None => f.write_str("write xdp:NAME, tap:NAME or pcap:IN,OUT"),
                }
            }
            Self::Dpdk => f.write_str("this build has no DPDK: write xdp:NAME for an interface of Linux"),
            Self::Name(name) if name.is_empty() => f.write_str("no name is given: write it as in xdp:eth0"),
            Self::Name(name) => write!(
                f,
                "no interface can be called `{name}`: give 1 to {NAME_MAX} bytes without slash or space"
            ),
            Self::NoFile => f.write_str("no file is named: write pcap:IN, pcap:IN,OUT or pcap:,OUT"),
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
            Some(("dpdk", _)) => Err(DeviceError::Dpdk),
            Some((kind, _)) => Err(DeviceError::Kind(kind.into())),
        }
    }
}

/// What the kernel takes as the name of an interface (`dev_valid_name`).
fn name(text: &str) -> Result<String, DeviceError> {
    let odd = |c: char| c == '/' || c == ':' || c.is_whitespace();
    let fits = (1..=NAME_MAX).contains(&text.len()) && text != "." && text != ".." && !text.contains(odd);
    if fits { Ok(text.into()) } else { Err(DeviceError::Name(text.into())) }
}

fn files(text: &str) -> Result<Device, DeviceError> {
    let (input, output) = text.split_once(',').unwrap_or((text, ""));
    let file = |name: &str| (!name.is_empty()).then(|| PathBuf::from(name));
    match (file(input), file(output)) {
        (None, None) => Err(DeviceError::NoFile),
        (input, output) => Ok(Device::Pcap { input, output }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        text.parse::<Device>().unwrap_err().to_string()
    }

    #[test]
    fn reads_what_it_writes() {
        for text in ["xdp:eth0", "tap:tap0", "pcap:in.pcap", "pcap:/a/in.pcap,out.pcap", "pcap:,out.pcap"] {
            assert_eq!(text.parse::<Device>().unwrap().to_string(), text);
        }
        assert_eq!("eth0.100".parse(), Ok(Device::Xdp("eth0.100".into())));
        assert_eq!("eth0".parse::<Device>().unwrap().interface(), Some("eth0"));
    }

    #[test]
    fn says_what_to_mend() {
        assert_eq!(refused("xpd:eth0"), "no kind of device is called `xpd`: did you mean `xdp:`?");
        assert_eq!(
            refused("vhost:a"),
            "no kind of device is called `vhost`: write xdp:NAME, tap:NAME or pcap:IN,OUT"
        );
        assert_eq!(
            refused("dpdk:0000:01:00.0"),
            "this build has no DPDK: write xdp:NAME for an interface of Linux"
        );
        assert_eq!(refused("xdp:"), "no name is given: write it as in xdp:eth0");
        assert_eq!(
            refused("tap:a/b"),
            "no interface can be called `a/b`: give 1 to 15 bytes without slash or space"
        );
        assert_eq!(refused("pcap:,"), "no file is named: write pcap:IN, pcap:IN,OUT or pcap:,OUT");
        for text in ["", "..", "sixteen-letters-", "a b"] {
            assert!(text.parse::<Device>().is_err(), "{text}");
        }
    }
}
