//! Forwards packets for a number of breaths: what `cargo xtask instructions` counts over. Prints the packets and
//! the nanoseconds of CPU time for each.
//!
//! ```text
//! breaths TRAFFIC BREATHS [BURST [ROUTES]]     TRAFFIC: ipv4, ipv6, mix-ipv4, mix-ipv6, mix-mixed, mix-options, mix-ttl,
//!                                              mix-tag-in; with-plain, with-filters, with-reverse-path, with-hook,
//!                                              with-all, with-rate, with-lookup-hook, with-egress-hook, with-multipath,
//!                                              with-tag-out, with-vrfs (always in bursts of 256); with DPDK: net_ring, net_ring-minimal (the same)
//! ```
//!
//! The kinds with `mix-` have ports that write frames whole: compare them with each other only.

use std::process::ExitCode;

use bm_eval::bench::{CountOptions, forward_counted};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let numbers: Result<Vec<usize>, _> = arguments.iter().skip(1).map(|word| word.parse()).collect();
    let (Some(traffic), Ok([breaths, rest @ ..])) = (arguments.first(), numbers.as_deref()) else {
        eprintln!("usage: breaths TRAFFIC BREATHS [BURST [ROUTES]]");
        return ExitCode::from(2);
    };
    let burst = rest.first().copied().unwrap_or(256).clamp(1, 256);
    let routes = rest.get(1).copied().unwrap_or(10_000);
    match forward_counted(traffic, CountOptions { breaths: *breaths, burst, routes }) {
        Ok(counted) => {
            let ns = counted.time.as_nanos() as f64 / counted.packets.max(1) as f64;
            println!("{} {ns:.2}", counted.packets);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("breaths: {error}");
            ExitCode::FAILURE
        }
    }
}
