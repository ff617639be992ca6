//! `brickmoon show sas` and `brickmoon show policies`.

use bm_api::{IpsecPolicies, IpsecPolicy, Sa, Sas};

use crate::number::count;
use crate::table::{
    Align::{Left, Right},
    Table,
};

/// One line per SA, in the order of the configuration.
pub fn sas(reply: &Sas) -> String {
    let mut table = Table::new(
        &[
            ("SA", Left),
            ("DIR", Left),
            ("SPI", Left),
            ("SOURCE", Left),
            ("DESTINATION", Left),
            ("MODE", Left),
            ("INTERFACE", Left),
            ("SUITE", Left),
            ("WORKER", Right),
            ("HANDED", Right),
            ("PACKETS", Right),
            ("BYTES", Right),
            ("FAILURES", Right),
            ("SEQUENCE", Right),
            ("STATE", Left),
            ("LIBRARY", Left),
        ],
        "no SAs",
    );
    for sa in &reply.sas {
        table.row([
            sa.name.clone(),
            sa.direction.clone(),
            format!("{:#010x}", sa.spi),
            sa.source.clone(),
            sa.destination.clone(),
            sa.mode.clone(),
            or_none(&sa.interface),
            sa.suite.clone(),
            worker(sa),
            count(sa.handed),
            count(sa.packets),
            count(sa.bytes),
            count(sa.failures),
            count(sa.sequence),
            sa.state.clone(),
            sa.library.clone(),
        ]);
    }
    table.to_string()
}

/// Number of the worker, and of the CPU that the SA is for.
fn worker(sa: &Sa) -> String {
    let cpu = sa.cpu.map_or(String::new(), |cpu| format!(" (CPU {cpu})"));
    format!("{}{cpu}", sa.worker)
}

/// One line per policy, by direction and priority.
pub fn policies(reply: &IpsecPolicies) -> String {
    let columns = [
        ("DIR", Left),
        ("PRIORITY", Right),
        ("INTERFACE", Left),
        ("ACTION", Left),
        ("SA", Left),
        ("SELECTOR", Left),
    ];
    let mut table = Table::new(&columns, "no policies");
    for policy in &reply.policies {
        let sa = match &policy.sas[..] {
            [] => or_none(&policy.sa),
            sas => sas.join(", "),
        };
        table.row([
            policy.direction.clone(),
            policy.priority.to_string(),
            or_none(&policy.interface),
            policy.action.clone(),
            sa,
            selector(policy),
        ]);
    }
    table.to_string()
}

fn or_none(name: &str) -> String {
    if name.is_empty() { "-".into() } else { name.into() }
}

fn selector(policy: &IpsecPolicy) -> String {
    let protocol = policy.protocol.map_or(String::new(), |protocol| format!("protocol {protocol} "));
    let mark = policy.mark.as_ref().map_or(String::new(), |mark| format!(" mark {mark}"));
    format!(
        "{protocol}{} to {}{mark}",
        with_ports(&policy.source, &policy.source_ports),
        with_ports(&policy.destination, &policy.destination_ports)
    )
}

fn with_ports(prefix: &str, ports: &str) -> String {
    if ports.is_empty() { prefix.into() } else { format!("{prefix} ports {ports}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_sas() {
        let sa = Sa {
            name: "to-b".into(),
            direction: "out".into(),
            spi: 0x1001,
            source: "192.0.2.1".into(),
            destination: "198.51.100.1".into(),
            mode: "tunnel".into(),
            suite: "aes128gcm16".into(),
            library: "ring".into(),
            packets: 1234,
            handed: 7,
            bytes: 99_999,
            failures: 1,
            sequence: 1235,
            state: "valid".into(),
            ..Sa::default()
        };
        let expected = "\
SA    DIR  SPI         SOURCE     DESTINATION   MODE    INTERFACE  SUITE        WORKER  HANDED  PACKETS   BYTES  FAILURES  SEQUENCE  STATE  LIBRARY
to-b  out  0x00001001  192.0.2.1  198.51.100.1  tunnel  -          aes128gcm16       0       7    1,234  99,999         1     1,235  valid  ring
";
        assert_eq!(sas(&Sas { sas: vec![sa.clone()] }), expected);
        let of_cpu = sas(&Sas { sas: vec![Sa { worker: 1, cpu: Some(15), ..sa }] });
        assert!(of_cpu.contains("  1 (CPU 15)       7  "), "{of_cpu}");
    }

    #[test]
    fn shows_policies() {
        let policy = |action: &str, sa: &str| IpsecPolicy {
            direction: "out".into(),
            priority: 100,
            source: "10.1.0.0/16".into(),
            destination: "any".into(),
            action: action.into(),
            sa: sa.into(),
            ..IpsecPolicy::default()
        };
        let protect = IpsecPolicy { interface: "ipsec0".into(), ..policy("protect", "to-b") };
        let dns =
            IpsecPolicy { protocol: Some(17), destination_ports: "53-53".into(), ..policy("bypass", "") };
        let expected = "\
DIR  PRIORITY  INTERFACE  ACTION   SA    SELECTOR
out       100  ipsec0     protect  to-b  10.1.0.0/16 to any
out       100  -          bypass   -     protocol 17 10.1.0.0/16 to any ports 53-53
";
        assert_eq!(policies(&IpsecPolicies { policies: vec![protect, dns] }), expected);
        let several = IpsecPolicy {
            sas: vec!["to-b-0".into(), "to-b-1".into()],
            mark: Some("0x2a/0xff".into()),
            ..policy("protect", "to-b-0")
        };
        let expected = "\
DIR  PRIORITY  INTERFACE  ACTION   SA              SELECTOR
out       100  -          protect  to-b-0, to-b-1  10.1.0.0/16 to any mark 0x2a/0xff
";
        assert_eq!(policies(&IpsecPolicies { policies: vec![several] }), expected);
    }
}
