//! Reads `[sampling]`, `[[sflow]]` and `[[ipfix]]`.

use super::*;
use crate::config::export::{Collector, Export, ExportFormat};
use std::net::SocketAddr;

/// Reads all three.
pub(super) fn export(top: &mut Section<'_, '_>, export: &mut Export) {
    top.read("sampling", "[sampling]", |section| export.read(section));
    let formats = [
        (ExportFormat::Sflow, "[[sflow]]", "collector = \"192.0.2.1:6343\""),
        (ExportFormat::Ipfix, "[[ipfix]]", "collector = \"192.0.2.1:4739\""),
    ];
    for (format, name, example) in formats {
        for (start, table) in top.tables(format.name(), &format!("{name} with {example} below it")) {
            let mut section = top.element(name, table);
            let address = section.collector(start, example);
            section.finish();
            let Some(address) = address else { continue };
            let line = top.report.line(start);
            let mut others = export.collectors.iter();
            match others.find(|other| (other.format, other.address) == (format, address)) {
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
}
