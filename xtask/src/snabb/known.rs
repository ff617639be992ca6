//! Tests that cannot pass, with the reasons. They still run, and the table shows if one passes.

/// Name and reason.
const KNOWN: &[(&str, &str)] = &[
    (
        "lwaftr end-to-end data 12: NDP: With receiving NA, next_hop6_mac not initially set",
        "the expected file has a solicitation to the broadcast address; the tree sends to the multicast one since 2021",
    ),
    ("lib.pmu_x86", "needs /sys/devices/cpu/rdpmc: performance counters of the processor"),
];

/// The known reason why the test of this name cannot pass.
pub fn reason(name: &str) -> Option<&'static str> {
    KNOWN.iter().find(|(known, _)| *known == name).map(|(_, reason)| *reason)
}
