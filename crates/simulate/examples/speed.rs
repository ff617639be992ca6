//! How fast the simulator is: `cargo run --release -p bm-simulate --example speed -- NODES MILLISECONDS`.

use std::time::Instant;

use bm_simulate::{Matrix, Options, Shape, simulate};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let numbers: Vec<u64> = std::env::args().skip(1).map(|text| text.parse()).collect::<Result<_, _>>()?;
    let &[nodes, milliseconds] = &numbers[..] else { return Err("expected NODES and MILLISECONDS".into()) };
    let shape = Shape::Mesh(u16::try_from(nodes)?);
    for matrix in [Matrix::Uniform, Matrix::Permutation] {
        let options = Options { shape, matrix, time_ns: milliseconds * 1_000_000, ..Options::default() };
        let start = Instant::now();
        let report = simulate(&options)?;
        let (events, seconds) = (report.events as f64 / 1e6, start.elapsed().as_secs_f64());
        println!(
            "{nodes} nodes, {matrix}: {events:.1} million events in {seconds:.1} s, {:.2} million a second; \
             served {:.3} %, c {:.2}, busiest link {:.2} R/N",
            events / seconds,
            report.served_percent,
            report.c,
            report.busiest_link
        );
    }
    Ok(())
}
