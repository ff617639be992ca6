//! The filter and the ports of the command line.

use bm_api::request::{self, NoParameters};
use bm_api::{PortMode, PortState, Ports};
use bm_capture::{Directions, Filter, Port};
use bm_cli::Failure;
use bm_lua::BpfFilter;
use bm_serve::client;

use crate::args::Direction;
use crate::query::Socket;

/// All ports.
const ANY: &str = "any";
/// Where the language of filters is described.
const HELP: &str = "the language is that of `man pcap-filter`";

/// Compiles a filter.
pub fn filter(arguments: &[String]) -> Result<Filter, Failure> {
    let compiled = BpfFilter::compile(&arguments.join(" "));
    let BpfFilter { instructions, bytes } =
        compiled.map_err(|why| Failure::Usage(format!("{why}\n{HELP}")))?;
    Filter::new(instructions, bytes).map_err(Failure::usage)
}

/// The daemon's ports.
pub fn ports(socket: &Socket) -> Result<Ports, Failure> {
    client::ask(&socket.server(), request::PORTS, &NoParameters {})
}

/// The ports of a capture point.
pub fn chosen(ports: &Ports, point: Option<&str>, direction: Direction) -> Result<Vec<Port>, Failure> {
    let directions = Directions { received: direction != Direction::Out, sent: direction != Direction::In };
    let shown: Vec<_> = ports.ports.iter().filter(|port| can_be_shown(port)).collect();
    let chosen: Vec<_> = match point {
        Some(ANY) => shown,
        Some(name) => shown.into_iter().filter(|port| port.name == name).collect(),
        None => return Err(Failure::Usage(format!("which packets? {}", list(ports)))),
    };
    if let (Some(name), true) = (point, chosen.is_empty()) {
        return Err(Failure::Usage(none_such(ports, name)));
    }
    chosen.into_iter().map(|port| of_port(port, directions)).collect()
}

/// Whether packets of a port can be seen in the kernel.
fn can_be_shown(port: &bm_api::Port) -> bool {
    let in_kernel = matches!(port.mode, PortMode::Kernel | PortMode::Copy | PortMode::ZeroCopy);
    in_kernel && port.state == PortState::Attached
}

fn list(ports: &Ports) -> String {
    let names: Vec<_> =
        ports.ports.iter().filter(|port| can_be_shown(port)).map(|port| port.name.as_str()).collect();
    format!("capture points are: {ANY}, {}", names.join(", "))
}

/// Why a name is no capture point.
fn none_such(ports: &Ports, name: &str) -> String {
    let Some(port) = ports.ports.iter().find(|port| port.name == name) else {
        return match name {
            ANY => "no port of the daemon has packets in the kernel".into(),
            _ => format!("there is no capture point {name:?}; {}", list(ports)),
        };
    };
    let why = match (port.state, port.mode) {
        (PortState::Missing, _) => "it has no interface now".into(),
        (PortState::Refused, _) => format!("Linux has all of its packets: use `tcpdump -i {name}`"),
        (_, PortMode::Tap) => format!("its packets pass through Linux: use `tcpdump -i {name}`"),
        _ => format!("its packets ({}) are not in the kernel", port.device),
    };
    format!("{name} cannot be captured: {why}; {}", list(ports))
}

fn of_port(port: &bm_api::Port, directions: Directions) -> Result<Port, Failure> {
    let name = &port.name;
    let elsewhere = || {
        Failure::Failed(format!(
            "the daemon's {name} is not an interface of this network namespace: run this command in the daemon's, \
             as in `ip netns exec NAME brickmoon capture ...`"
        ))
    };
    let ifindex = bm_sys::interface::index(name).ok_or_else(elsewhere)?;
    let own = port.interfaces.iter().find(|interface| interface.vlan.is_none());
    if own.is_some_and(|own| own.ifindex != ifindex) {
        return Err(elsewhere());
    }
    let interfaces = match port.mode {
        // The steering program has one set of counters.
        PortMode::Copy | PortMode::ZeroCopy => vec![0],
        _ => port.interfaces.iter().map(|interface| interface.index.into()).collect(),
    };
    Ok(Port { name: name.clone(), ifindex, directions, interfaces })
}

/// What will be missing, one line for each port.
pub fn hints(ports: &Ports, chosen: &[Port]) -> Vec<String> {
    let mut hints = Vec::new();
    for port in chosen.iter().filter(|port| port.directions.sent) {
        let mut ports = ports.ports.iter();
        if ports.any(|shown| shown.name == port.name && shown.mode == PortMode::ZeroCopy) {
            hints.push(format!(
                "{}: what workers send is not shown, since the card takes it from their memory (zero-copy)",
                port.name
            ));
        }
    }
    hints
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(name: &str, mode: PortMode, state: PortState) -> bm_api::Port {
        bm_api::Port {
            name: name.into(),
            device: format!("x:{name}"),
            mode,
            state,
            ..bm_api::Port::default()
        }
    }

    fn ports() -> Ports {
        let attached = PortState::Attached;
        let ports = vec![
            port("r0", PortMode::Kernel, attached),
            port("r1", PortMode::Copy, attached),
            port("t0", PortMode::Tap, attached),
            port("d0", PortMode::Dpdk, attached),
            port("gone", PortMode::Kernel, PortState::Missing),
        ];
        Ports { ports }
    }

    fn refused(point: Option<&str>) -> String {
        match chosen(&ports(), point, Direction::Inout) {
            Err(Failure::Usage(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_point_that_does_not_exist_lists_those_that_do() {
        assert_eq!(refused(Some("r7")), "there is no capture point \"r7\"; capture points are: any, r0, r1");
        assert_eq!(refused(None), "which packets? capture points are: any, r0, r1");
        assert!(refused(Some("t0")).contains("use `tcpdump -i t0`"));
        assert!(refused(Some("d0")).contains("its packets (x:d0) are not in the kernel"));
        assert!(refused(Some("gone")).contains("it has no interface now"));
    }

    #[test]
    fn a_filter_that_does_not_parse_is_shown_with_a_caret() {
        let Err(Failure::Usage(why)) = filter(&["udp".into(), "prt".into(), "53".into()]) else { panic!() };
        assert!(why.contains("\n   udp prt 53\n       ^\n"), "{why}");
        assert!(why.ends_with(HELP), "{why}");
        assert!(filter(&[]).is_ok());
    }
}
