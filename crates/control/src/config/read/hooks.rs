//! Reads `[[hook]]`: Lua files for stages of the router.

use super::*;
use crate::config::hook::Hook;
use serde_json::{Map, Value};

/// All hooks, in the order they run.
pub(super) fn hooks(top: &mut Section<'_, '_>) -> Vec<Hook> {
    let mut hooks: Vec<Hook> = Vec::new();
    for (start, table) in top.tables("hook", "[[hook]] with file = \"acl.lua\" below it") {
        let mut section = top.element("[[hook]]", table);
        let hook = hook(&mut section, start);
        section.finish();
        let Some(hook) = hook else { continue };
        match hooks.iter().find(|other| other.name == hook.name) {
            Some(other) => {
                let kind = ProblemKind::Again { what: format!("hook \"{}\"", hook.name), first: other.line };
                top.report.add(start, kind);
            }
            None => hooks.push(hook),
        }
    }
    hooks
}

fn hook(section: &mut Section<'_, '_>, start: usize) -> Option<Hook> {
    let mut hook = Hook { line: section.report.line(start), ..Hook::default() };
    let file = section.text("file", "\"acl.lua\"").map(|(_, file)| PathBuf::from(file));
    let name = section.text("name", "\"acl\"");
    hook.read(section);
    if let Some(value) = section.value("args") {
        match value.get_ref() {
            DeValue::Table(table) => hook.arguments = table_of(table),
            _ => {
                let example = "args = { limit = 1000 }".into();
                section.wrong_type(section.key("args"), value, "a table", example);
            }
        }
    }
    let Some(file) = file else {
        if !section.table.contains_key("file") {
            let kind = ProblemKind::Missing { key: section.key("file"), example: "file = \"acl.lua\"" };
            section.report.add(start, kind);
        }
        return None;
    };
    let stem = file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let (at, name) = name.map_or((start, stem), |(at, name)| (at, name.to_string()));
    if name.is_empty() || name.len() > 24 || !name.chars().all(|c| is_plain(c) || c == '.') {
        let hint = "use 1 to 24 letters, digits, `-`, `_` or `.`";
        section.report.add(at, ProblemKind::Text { key: section.key("name"), found: name, hint });
        return None;
    }
    (hook.file, hook.name) = (file, name);
    Some(hook)
}

pub(super) fn table_of(table: &Table<'_>) -> Value {
    let pairs = table.iter().map(|(key, value)| (key.get_ref().to_string(), value_of(value.get_ref())));
    Value::Object(pairs.collect::<Map<_, _>>())
}

/// Converts a value for Lua; a time becomes a string.
pub(super) fn value_of(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Boolean(truth) => Value::Bool(*truth),
        DeValue::Integer(number) => {
            i64::from_str_radix(number.as_str(), number.radix()).map_or(Value::Null, Value::from)
        }
        DeValue::Float(number) => number.as_str().parse::<f64>().map_or(Value::Null, Value::from),
        DeValue::Datetime(time) => Value::String(time.to_string()),
        DeValue::Array(items) => items.iter().map(|item| value_of(item.get_ref())).collect(),
        DeValue::Table(table) => table_of(table),
    }
}
