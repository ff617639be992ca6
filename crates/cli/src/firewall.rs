//! Packets that only Linux may handle, and those for which the configuration bypasses it.

use std::fmt::Write as _;

use bm_api::{Firewall, LinuxOnly};

/// One line for each, with what to do about it.
pub(crate) fn firewall(reply: &Firewall) -> String {
    let mut text = String::new();
    for left in &reply.linux_only {
        let _written = writeln!(text, "left to Linux: {}", entry(left));
    }
    let each_packet = reply.linux_only.iter().filter(|left| !left.first_packets);
    let mut settings: Vec<_> = each_packet.map(|left| left.setting.as_str()).collect();
    settings.sort_unstable();
    settings.dedup();
    // What has none cannot be bypassed.
    settings.retain(|setting| !setting.is_empty());
    for setting in settings {
        let _written = writeln!(
            text,
            "  to forward these in brickmoon: remove the rules from Linux, or set {setting} = \"bypass\" in [firewall]"
        );
    }
    for bypassed in &reply.bypassed {
        let setting = &bypassed.setting;
        if bypassed.packets.is_empty() {
            let _written = writeln!(text, "bypassed by [firewall] {setting}: nothing at present");
        }
        for packets in &bypassed.packets {
            let _written = writeln!(text, "bypassed by [firewall] {setting}: {}", entry(packets));
        }
    }
    text
}

/// Which packets, and why.
pub(crate) fn entry(left: &LinuxOnly) -> String {
    let first = if left.first_packets { " (first packets of each flow)" } else { "" };
    format!("{}{first}: {}: {}", left.packets, left.feature, left.why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_api::Bypassed;

    #[test]
    fn shows_packets_left_to_linux_and_bypasses() {
        let left = |feature: &str, setting: &str| LinuxOnly {
            feature: feature.into(),
            packets: "all IPv4 packets".into(),
            why: "chain FORWARD has policy drop".into(),
            setting: setting.into(),
            ..LinuxOnly::default()
        };
        let bypassed = |setting: &str, packets| Bypassed { setting: setting.into(), packets };
        let reply = Firewall {
            linux_only: vec![left("nftables", "nftables"), left("iptables", "nftables")],
            bypassed: vec![bypassed("xfrm", vec![left("xfrm", "xfrm")]), bypassed("shaping", Vec::new())],
        };
        let lines = [
            "left to Linux: all IPv4 packets: nftables: chain FORWARD has policy drop",
            "left to Linux: all IPv4 packets: iptables: chain FORWARD has policy drop",
            "  to forward these in brickmoon: remove the rules from Linux, or set nftables = \"bypass\" in [firewall]",
            "bypassed by [firewall] xfrm: all IPv4 packets: xfrm: chain FORWARD has policy drop",
            "bypassed by [firewall] shaping: nothing at present",
        ];
        assert_eq!(firewall(&reply).lines().collect::<Vec<_>>(), lines);
        assert_eq!(firewall(&Firewall::default()), "");
        let by_flow = LinuxOnly { first_packets: true, ..left("nftables", "nftables") };
        assert_eq!(
            firewall(&Firewall { linux_only: vec![by_flow], ..Firewall::default() }),
            "left to Linux: all IPv4 packets (first packets of each flow): nftables: chain FORWARD has policy drop\n"
        );
    }
}
