//! A chart of a plan: the price with each server type, compared with switches.

use std::fmt::Write;

use super::{Outcome, Plans};

const BAR: usize = 22;
const LEFT: usize = 240;
const WIDTH: usize = 860;

/// Bars of the prices, with the topology next to each.
pub fn draw(plans: &Plans) -> String {
    let mut bars: Vec<(String, f64, String)> = Vec::new();
    for plan in &plans.plans {
        let (price, text) = match &plan.outcome {
            Outcome::Built(fabric) => (
                fabric.price,
                format!("{}, {} servers, {} relays", fabric.topology, fabric.servers, fabric.relays),
            ),
            Outcome::Impossible(why) => (0.0, format!("impossible: {why}")),
        };
        bars.push((plan.server.clone(), price, text));
    }
    if let Some(switched) = &plans.switched {
        bars.push((
            "switches alone".into(),
            switched.price,
            format!("{}, {} switches", switched.topology, switched.switches),
        ));
    }
    let most = bars.iter().map(|(_, price, _)| *price).fold(1.0, f64::max);
    let height = 50 + bars.len() * (BAR * 2);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n<text x=\"8\" y=\"24\" font-size=\"16\">{} ports of {} Gbit/s: price</text>\n",
        plans.ports, plans.rate_gbps
    );
    for (at, (name, price, text)) in bars.iter().enumerate() {
        let y = 40 + at * BAR * 2;
        let width = (price / most * (WIDTH - LEFT - 20) as f64).round();
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n\
             <rect x=\"{LEFT}\" y=\"{y}\" width=\"{width}\" height=\"{BAR}\" fill=\"#0072b2\"/>\n\
             <text x=\"{LEFT}\" y=\"{}\">{price:.0}: {}</text>",
            LEFT - 8,
            y + 15,
            escaped(name),
            y + BAR + 13,
            escaped(text)
        );
    }
    svg + "</svg>\n"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
