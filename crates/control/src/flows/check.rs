//! Which reports become flows.

use std::io;
use std::time::Duration;

use bm_conntrack::{Settings, Tuple, status};
use bm_fastpath::{Report, ReportedConnection, ReportedTuple};
use bm_flows::{Action, Connection, Key};

use super::counts::NotLearned;
use super::filter::FlowFilter;
use super::known::ConnectionKey;
use super::ruleset::Ruleset;

/// Protocols of plain packets.
pub(super) const TCP: u8 = 6;
const UDP: u8 = 17;
/// `TCP_CONNTRACK_ESTABLISHED`.
pub(super) const ESTABLISHED: u8 = 3;
/// Expected by a helper because of another connection (`IPS_EXPECTED`).
const EXPECTED: u32 = 1;
/// Status bits that [`status`] does not name: of a connection that clashes with another one, and of those that a flowtable
/// forwards, in software or in hardware.
const NAT_CLASH: u32 = 1 << 12;
const OFFLOADED: u32 = 1 << 14 | 1 << 15;
/// A helper was assigned by a rule (`IPS_HELPER`).
const HELPER: u32 = 1 << 13;
/// Timeouts are set once a second, so shorter ones could end in between.
const TIMEOUT_MIN: Duration = Duration::from_secs(4);
/// How long a flow that Linux does not track stays without packets.
pub(super) const UNTRACKED_IDLE: Duration = Duration::from_secs(60);

/// A flow that may be learned, unless Linux refuses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub key: Key,
    pub action: Action,
    /// `None` if Linux does not track it.
    pub connection: Option<ConnectionKey>,
    pub timeout: Duration,
    /// Whether a helper may have expected the connection, and read it as well.
    pub is_expected: bool,
    /// What packets of its direction have acknowledged, of TCP and if it is known.
    pub acknowledged: Option<u32>,
    pub jiffies: u32,
}

/// What a report is compared with.
pub(super) struct Checks<'a> {
    pub ruleset: &'a Ruleset,
    pub filter: &'a FlowFilter,
    /// `None` without conntrack.
    pub settings: Option<&'a Settings>,
}

impl Checks<'_> {
    /// The flow of a reported packet.
    pub fn check(&self, report: &Report) -> Result<Candidate, NotLearned> {
        let ruleset = self.ruleset;
        if ruleset.generation != Some(report.generation) {
            return Err(NotLearned::Rules);
        }
        if ![TCP, UDP].contains(&report.protocol) {
            return Err(NotLearned::State);
        }
        let arrives = arrives(report);
        let addresses = [report.sent.source, report.sent.destination, arrives.source, arrives.destination];
        let ipv6 = report.sent.source.is_ipv6();
        if addresses.iter().any(|address| address.is_ipv6() != ipv6) {
            return Err(NotLearned::Translation);
        }
        if !ruleset.is_by_flow(ipv6) {
            return Err(NotLearned::Rules);
        }
        let [input, out] = [report.input, report.output].map(|ifindex| ruleset.interface(ifindex));
        let (Some(interface), Some(out)) = (input, out) else { return Err(NotLearned::Interface) };
        let timeout = match &report.connection {
            None if ruleset.untracked => UNTRACKED_IDLE,
            None => return Err(NotLearned::Untracked),
            Some(connection) => self.check_connection(report, connection)?,
        };
        if self.filter.may_match(report.protocol, &arrives, &report.sent) {
            return Err(NotLearned::EachPacket);
        }
        let ReportedTuple { source, destination, source_port, destination_port } = arrives;
        let protocol = report.protocol;
        let sent = report.sent;
        Ok(Candidate {
            key: Key { source, destination, source_port, destination_port, protocol, interface },
            action: Action {
                out,
                source: sent.source,
                destination: sent.destination,
                source_port: sent.source_port,
                destination_port: sent.destination_port,
                connection: report.connection.map(|of| Connection { mark: of.mark, zone: of.own_zone }),
            },
            connection: report.connection.map(|connection| connection_key(protocol, &connection)),
            timeout,
            is_expected: report.connection.is_some_and(|of| of.status & EXPECTED != 0),
            acknowledged: report.connection.and_then(|of| of.acknowledged),
            jiffies: report.jiffies,
        })
    }

    /// The timeout of a connection whose packets Linux need not see.
    fn check_connection(
        &self,
        report: &Report,
        connection: &ReportedConnection,
    ) -> Result<Duration, NotLearned> {
        let settings = self.settings.ok_or(NotLearned::State)?;
        let needed = status::CONFIRMED | status::SEEN_REPLY | status::ASSURED;
        let forbidden = status::DYING | NAT_CLASH | OFFLOADED;
        if connection.status & needed != needed || connection.status & forbidden != 0 {
            return Err(NotLearned::State);
        }
        if report.protocol == TCP && connection.tcp_state != ESTABLISHED {
            return Err(NotLearned::State);
        }
        if connection.status & (HELPER | status::SEQ_ADJUST) != 0 {
            return Err(NotLearned::Helper);
        }
        // What leaves has the ends of the other direction: anything else has been changed besides.
        let other = if connection.is_reply { connection.original } else { connection.reply };
        if report.sent != other.reversed() {
            return Err(NotLearned::Translation);
        }
        let timeout = match report.protocol {
            // The timeout that a packet leaves behind is shorter while data is not acknowledged, so it does not tell the rule's.
            TCP if self.ruleset.has_timeouts => return Err(NotLearned::Timeout),
            TCP => settings.tcp_timeout_established_s,
            _ if self.ruleset.has_timeouts => connection.timeout_s,
            _ => settings.udp_timeout_stream_s,
        };
        let timeout = Duration::from_secs(timeout.into());
        if timeout < TIMEOUT_MIN || connection.status & status::FIXED_TIMEOUT != 0 {
            return Err(NotLearned::Timeout);
        }
        Ok(timeout)
    }
}

/// Addresses and ports of a reported packet as it arrived.
fn arrives(report: &Report) -> ReportedTuple {
    match &report.connection {
        Some(connection) if connection.is_reply => connection.reply,
        Some(connection) => connection.original,
        // Only conntrack translates addresses.
        None => report.sent,
    }
}

/// What Linux finds a reported connection by.
fn connection_key(protocol: u8, connection: &ReportedConnection) -> ConnectionKey {
    let ReportedTuple { source, destination, source_port, destination_port } = connection.original;
    let original = Tuple { source, destination, source_port, destination_port, protocol };
    ConnectionKey { original, zone: connection.zone }
}

/// Why Linux has refused an update.
pub(super) fn refusal(error: &io::Error) -> NotLearned {
    match error.kind() {
        io::ErrorKind::NotFound => NotLearned::Gone,
        io::ErrorKind::PermissionDenied => NotLearned::Timeout,
        _ => NotLearned::Refused,
    }
}
