//! The names of devices: `net_ring0`, `net_pcap0,rx_pcap=in.pcap`, `0000:01:00.0`.

/// Longest interface name: `IFNAMSIZ` less the terminating zero.
const NAME_MAX: usize = 15;
/// Prefix of the name of a host TAP interface.
const PREFIX: &str = "bm-";

/// Drivers whose frames must be in DPDK's own memory, with the reason.
const COPIED: [(&str, &str); 2] = [
    (
        "net_af_xdp",
        "net_af_xdp can only use memory of its own for its UMEM, so every frame is copied; xdp: ports avoid the copy",
    ),
    (
        "net_virtio_user",
        "the other end of net_virtio_user can only see DPDK's own memory, so every frame is copied",
    ),
];

/// A device string as DPDK expects it: name, then comma-separated arguments of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec(String);

impl Spec {
    /// A device string, without the prefix `dpdk:`.
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// The whole string.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The device's name, without arguments.
    pub fn name(&self) -> &str {
        self.0.split(',').next().unwrap_or_default()
    }

    /// Whether it is a PCI address, with or without the domain.
    pub fn is_pci(&self) -> bool {
        let parts: Vec<_> = self.name().split([':', '.']).collect();
        (3..=4).contains(&parts.len())
            && self.name().contains(':')
            && parts.iter().all(|part| !part.is_empty() && part.chars().all(|c| c.is_ascii_hexdigit()))
    }

    /// The PCI address with the domain, if it is one.
    pub fn place(&self) -> String {
        let name = self.name();
        if name.matches(':').count() == 1 { format!("0000:{name}") } else { name.into() }
    }

    /// Why frames are copied between the driver's memory and brickmoon's, if they are.
    pub fn copied(&self) -> Option<&'static str> {
        COPIED.iter().find(|(driver, _)| self.name().starts_with(driver)).map(|(_, why)| *why)
    }

    /// Name of the interface in Linux that represents the device: `bm-` and the device's name, without the driver's
    /// `net_` and without a PCI domain of zeros, with `-` for `:` and `.` (which separate app and link in link
    /// names), truncated to the longest valid name.
    pub fn host_tap(&self) -> String {
        let name = self.name();
        let name = name.strip_prefix("net_").or_else(|| name.strip_prefix("0000:")).unwrap_or(name);
        let name = name.replace(|c: char| matches!(c, ':' | '.' | '/') || c.is_whitespace(), "-");
        PREFIX.chars().chain(name.chars()).take(NAME_MAX).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_names_from_arguments() {
        let pcap = Spec::new("net_pcap0,rx_pcap=a.pcap,tx_pcap=b.pcap");
        assert_eq!((pcap.name(), pcap.is_pci(), pcap.host_tap().as_str()), ("net_pcap0", false, "bm-pcap0"));
        assert!(Spec::new("net_af_xdp0,iface=eth0").copied().is_some() && pcap.copied().is_none());
        for (text, host_tap) in [
            ("0000:01:00.0", "bm-01-00-0"),
            ("01:00.1,arg=1", "bm-01-00-1"),
            ("0001:af:00.0", "bm-0001-af-00-0"),
        ] {
            assert!(Spec::new(text).is_pci(), "{text}");
            assert_eq!(Spec::new(text).host_tap(), host_tap);
            assert_eq!(Spec::new(text).place().len(), "0000:01:00.0".len());
        }
        assert_eq!(Spec::new("net_virtio_user_long0").host_tap(), "bm-virtio_user_");
        assert!(["net_tap0", "", "a:b", "1.2.3"].iter().all(|text| !Spec::new(text).is_pci()));
    }
}
