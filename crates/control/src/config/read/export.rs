//! Reads `[sampling]`, `[[sflow]]` and `[[ipfix]]`.

use super::*;
use crate::config::export::{Collector, Export, ExportFormat};
use std::net::IpAddr;

/// Most packets of which one is sampled.
const ONE_IN_MAX: u64 = 1 << 24;

/// Reads all three.
pub(super) fn export(top: &mut Section<'_, '_>, export: &mut Export) {
    top.read("sampling", "[sampling]", |section| {
        section.number("one_in", 1..=ONE_IN_MAX, &mut export.one_in);
        section.duration("counters_s", Duration::from_secs, 0..=86_400, &mut export.counters);
        section.agent(&mut export.agent);
    });
    let formats = [
        (ExportFormat::Sflow, "[[sflow]]", "collector = \"192.0.2.1:6343\""),
        (ExportFormat::Ipfix, "[[ipfix]]", "collector = \"192.0.2.1:4739\""),
    ];
    for (format, name, example) in formats {
        for (start, table) in top.tables(format.name(), &format!("{name} with {example} below it")) {
            let mut section = Section { name, table, known: Vec::new(), report: top.report };
            let address = section.collector(start, example);
            section.finish();
            let Some(address) = address else { continue };
            let line = top.report.line(start);
            let is_same = |other: &&Collector| other.format == format && other.address == address;
            match export.collectors.iter().find(is_same) {
                Some(other) => {
                    let what = format!("collector {address}");
                    top.report.add(start, ProblemKind::Again { what, first: other.line });
                }
                None => export.collectors.push(Collector { format, address, line }),
            }
        }
    }
}

impl Section<'_, '_> {
    fn collector(&mut self, start: usize, example: &'static str) -> Option<SocketAddr> {
        const KEY: &str = "collector";
        let Some((at, text)) = self.text(KEY, "\"192.0.2.1:6343\"") else {
            if !self.table.contains_key(KEY) {
                self.report.add(start, ProblemKind::Missing { key: self.key(KEY), example });
            }
            return None;
        };
        let address = text.parse::<SocketAddr>().ok().filter(|address| address.port() != 0);
        if address.is_none() {
            let hint = "write an IP address and a port, such as \"192.0.2.1:6343\" or \"[2001:db8::1]:6343\"";
            let kind = ProblemKind::Text { key: self.key(KEY), found: text.into(), hint };
            self.report.add(at, kind);
        }
        address
    }

    fn agent(&mut self, target: &mut Option<IpAddr>) {
        let Some((at, text)) = self.text("agent", "\"192.0.2.9\"") else { return };
        match text.parse() {
            Ok(address) => *target = Some(address),
            Err(_) if text == "auto" => *target = None,
            Err(_) => {
                let hint = "write an IP address of this router, such as \"192.0.2.9\", or \"auto\"";
                let kind = ProblemKind::Text { key: self.key("agent"), found: text.into(), hint };
                self.report.add(at, kind);
            }
        }
    }
}
