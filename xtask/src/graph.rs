//! `docs/graph.svg`: the crates by layer and the arrows between them, generated from the manifests.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use crate::layers::{self, Layers};

const FILE: &str = "docs/graph.svg";
const BOX: (usize, usize) = (110, 30);
const STEP: (usize, usize) = (135, 84);

/// Draws the file.
pub fn write(root: &Path) -> Result<String, Vec<String>> {
    let drawn = draw(root).map_err(|error| vec![error])?;
    std::fs::write(root.join(FILE), drawn).map_err(|error| vec![format!("{FILE}: {error}")])?;
    Ok(format!("{FILE}: drawn"))
}

/// A finding if the file is out of date.
pub fn check(root: &Path) -> Option<String> {
    match draw(root) {
        Ok(drawn) if std::fs::read_to_string(root.join(FILE)).is_ok_and(|there| there == drawn) => None,
        Ok(_) => Some(format!("{FILE}: out of date; run cargo xtask graph")),
        Err(error) => Some(error),
    }
}

fn draw(root: &Path) -> Result<String, String> {
    let layers = layers::read(root)?;
    let places = places(&layers);
    let width = places.values().map(|place| place.0).max().unwrap_or_default() + BOX.0 + 20;
    let height = places.values().map(|place| place.1).max().unwrap_or_default() + BOX.1 + 20;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    // These use nearly all others.
    for name in layers.keys().filter(|name| !["brickmoon", "daemon"].contains(&name.as_str())) {
        let (x, y) = places[name];
        for other in layers::used(root, name)? {
            let Some(&(to_x, to_y)) = places.get(&other) else { continue };
            let (x, to_x) = (x + BOX.0 / 2, to_x + BOX.0 / 2);
            let _written = writeln!(
                svg,
                "<line x1=\"{x}\" y1=\"{}\" x2=\"{to_x}\" y2=\"{to_y}\" stroke=\"#9ab\" stroke-width=\"1\"/>",
                y + BOX.1
            );
        }
    }
    for (name, (x, y)) in &places {
        let fill = if layers[name].may_be_unsafe { "#fde8d0" } else { "#e3eefb" };
        let _written = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{}\" rx=\"5\" fill=\"{fill}\" stroke=\"#567\"/>\
             <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{name}</text>",
            BOX.0,
            BOX.1,
            x + BOX.0 / 2,
            y + 20
        );
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}

/// Upper left corners of the boxes: a row for each layer, the top layer first.
fn places(layers: &Layers) -> BTreeMap<String, (usize, usize)> {
    let top = layers.values().map(|row| row.layer).max().unwrap_or_default();
    let mut taken = BTreeMap::new();
    let place = |(name, row): (&String, &layers::Row)| {
        let column = taken.entry(row.layer).and_modify(|column| *column += 1).or_insert(0usize);
        let x = 20 + *column * STEP.0 + (row.layer as usize % 2) * STEP.0 / 2;
        (name.clone(), (x, 20 + (top - row.layer) as usize * STEP.1))
    };
    layers.iter().map(place).collect()
}
