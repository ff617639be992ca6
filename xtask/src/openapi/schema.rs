//! Schemas of the API's types, as replies have them and as generators of clients understand them best: enums as lists of
//! values, no defaults, and `null` only where it occurs.

use bm_api::request::SchemaOf;
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

const FOLDER: &str = "/components/schemas";

/// Collects the types that replies refer to.
pub struct Schemas {
    replies: SchemaGenerator,
    parameters: SchemaGenerator,
}

impl Schemas {
    pub fn new() -> Self {
        let settings = SchemaSettings::draft2020_12();
        let inline = settings.clone().for_deserialize().with(|settings| settings.inline_subschemas = true);
        let named = settings.for_serialize().with(|settings| settings.definitions_path = FOLDER.into());
        Self { replies: named.into_generator(), parameters: inline.into_generator() }
    }

    /// The schema of a reply, which refers to [`Schemas::named`].
    pub fn reply(&mut self, of_type: SchemaOf) -> Value {
        of_type(&mut self.replies).to_value()
    }

    /// The types that replies have referred to so far, by name.
    pub fn named(&mut self) -> Map<String, Value> {
        let mut named = self.replies.take_definitions(false);
        named.values_mut().for_each(clean);
        named
    }

    /// The fields of a type as parameters of a request.
    pub fn parameters(&mut self, of_type: SchemaOf) -> Vec<Value> {
        let schema = of_type(&mut self.parameters).to_value();
        let fields = schema["properties"].as_object().cloned().unwrap_or_default();
        let parameter = |(name, mut schema): (String, Value)| {
            let default = taken(&mut schema, "default");
            clean(&mut schema);
            without_null(&mut schema);
            let description = taken(&mut schema, "description");
            if default.is_boolean() {
                schema["default"] = default.clone();
            }
            // The daemon refuses a name that is empty, as it is by default.
            let is_required = default == "";
            json!({ "name": name, "in": "query", "required": is_required, "description": description, "schema": schema })
        };
        fields.into_iter().map(parameter).collect()
    }
}

fn taken(schema: &mut Value, key: &str) -> Value {
    schema.as_object_mut().and_then(|schema| schema.remove(key)).unwrap_or_default()
}

/// Changes a schema and all within it.
fn clean(schema: &mut Value) {
    taken(schema, "default");
    join_lines(schema);
    list_values(schema);
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    for (name, field) in schema.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten() {
        clean(field);
        // What is not always there is left out in place of `null`.
        if !required.contains(&json!(name)) {
            without_null(field);
        }
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get_mut(key) {
            clean(inner);
        }
    }
}

/// A description without the line breaks of the comment in Rust.
fn join_lines(schema: &mut Value) {
    if let Some(text) = schema["description"].as_str() {
        let paragraphs: Vec<String> =
            text.split("\n\n").map(|paragraph| paragraph.replace('\n', " ")).collect();
        schema["description"] = paragraphs.join("\n\n").into();
    }
}

/// An enum, whose values have a schema each, as one list with their descriptions below.
fn list_values(schema: &mut Value) {
    let kinds = taken(schema, "oneOf");
    let Some(kinds) = kinds.as_array() else { return };
    let mut values = Vec::new();
    let mut description = schema["description"].as_str().unwrap_or_default().to_string() + "\n";
    for kind in kinds {
        let mut kind = kind.clone();
        join_lines(&mut kind);
        let one = kind.get("const").cloned().into_iter();
        for value in one.chain(kind["enum"].as_array().cloned().unwrap_or_default()) {
            if let (Some(value), Some(meaning)) = (value.as_str(), kind["description"].as_str()) {
                description += &format!("\n- `{value}`: {meaning}");
            }
            values.push(value);
        }
    }
    schema["type"] = "string".into();
    schema["enum"] = values.into();
    schema["description"] = description.into();
}

/// Removes `null` from the types that a value can have.
fn without_null(schema: &mut Value) {
    if let Some([one, null]) = schema["type"].as_array().map(Vec::as_slice)
        && null == "null"
    {
        schema["type"] = one.clone();
    }
    let kinds = schema["anyOf"].as_array().cloned().unwrap_or_default();
    if let [one, null] = kinds.as_slice()
        && null["type"] == "null"
        && let Some(one) = one.as_object()
    {
        taken(schema, "anyOf");
        one.iter().for_each(|(key, value)| schema[key] = value.clone());
    }
}
