//! Reads `[[app]]` and `[[link]]`: Lua apps and the links between them.

use super::hooks::{table_of, value_of};
use super::*;
use crate::config::app::{App, Link, Module, TAKEN};

/// A required string.
fn needed<'s>(
    section: &mut Section<'s, '_>,
    key: &'static str,
    example: &'static str,
    start: usize,
) -> Option<(usize, &'s str)> {
    let text = section.text(key, example.split_once(" = ").map_or(example, |(_, value)| value));
    if !section.table.contains_key(key) {
        let kind = ProblemKind::Missing { key: section.key(key), example };
        section.report.add(start, kind);
    }
    text
}

pub(super) fn apps(top: &mut Section<'_, '_>) -> Vec<App> {
    let mut apps: Vec<App> = Vec::new();
    let example = "[[app]] with name = \"guard\" and module = \"guard.lua\" below it";
    for (start, table) in top.tables("app", example) {
        let mut section = top.element("[[app]]", table);
        let app = app(&mut section, start);
        section.finish();
        let Some(app) = app else { continue };
        match apps.iter().find(|other| other.name == app.name) {
            Some(other) => {
                let kind = ProblemKind::Again { what: format!("app \"{}\"", app.name), first: other.line };
                top.report.add(start, kind);
            }
            None => apps.push(app),
        }
    }
    apps
}

fn app(section: &mut Section<'_, '_>, start: usize) -> Option<App> {
    let name = needed(section, "name", "name = \"guard\"", start);
    let module = needed(section, "module", "module = \"guard.lua\"", start);
    let class = section.text("class", "\"Guard\"").map(|(_, class)| class.to_string());
    let argument = section.value("config").map_or(serde_json::Value::Null, |value| match value.get_ref() {
        DeValue::Table(table) => table_of(table),
        other => value_of(other),
    });
    let line = section.report.line(start);
    // Name and module are set below.
    let unset = Module::Lua(String::new());
    let mut app = App { name: String::new(), module: unset, class, argument, core: None, line };
    app.read(section);
    let (name_at, name) = name?;
    let (module_at, module) = module?;
    if name.is_empty() || name.len() > 24 || !name.chars().all(is_plain) {
        let hint = "use 1 to 24 letters, digits, `-` or `_`";
        section.report.add(name_at, ProblemKind::Text { key: section.key("name"), found: name.into(), hint });
        return None;
    }
    if TAKEN.contains(&name) {
        let hint = "this name is reserved: use another";
        section.report.add(name_at, ProblemKind::Text { key: section.key("name"), found: name.into(), hint });
        return None;
    }
    let module = Module::from_text(module);
    if let Module::Rust(class) = &module
        && class != "memory"
        && let Err(why) = class.parse::<Device>()
    {
        section.report.add(module_at, ProblemKind::Device(why));
        return None;
    }
    Some(App { name: name.into(), module, ..app })
}

pub(super) fn links(top: &mut Section<'_, '_>, ports: &[Port]) -> Vec<Link> {
    let ports: Vec<_> = ports.iter().enumerate().map(|(index, port)| port.name(index)).collect();
    let mut links = Vec::new();
    let example = "[[link]] with from = \"eth0.output\" and to = \"guard.input\" below it";
    for (start, table) in top.tables("link", example) {
        let mut section = top.element("[[link]]", table);
        let from = end(&mut section, "from", &ports, start);
        let to = end(&mut section, "to", &ports, start);
        let line = section.report.line(start);
        section.finish();
        links.extend(from.zip(to).map(|(from, to)| Link { from, to, line }));
    }
    links
}

fn end(
    section: &mut Section<'_, '_>,
    key: &'static str,
    ports: &[String],
    start: usize,
) -> Option<(String, String)> {
    let example = if key == "from" { "from = \"eth0.output\"" } else { "to = \"guard.input\"" };
    let (at, text) = needed(section, key, example, start)?;
    let end = Link::end(text, ports);
    if end.is_none() {
        let hint = "must be the name of an app, a dot, and the name of the link in the app";
        section.report.add(at, ProblemKind::Text { key: section.key(key), found: text.into(), hint });
    }
    end
}
