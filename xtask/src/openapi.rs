//! `cargo xtask openapi`: `docs/openapi.json`, which describes the API, and the part of the Python client that follows
//! from it.
//!
//! ```text
//! bm_api: REQUESTS, types ─► schema ─► docs/openapi.json
//!                                └──► python ─► clients/python/brickmoon/__init__.py, below its last handwritten line
//! ```
//!
//! Keys are sorted, so a file changes only where the API does.

mod python;
mod schema;
#[cfg(test)]
mod tests;

use std::path::Path;

use bm_api::request::{Endpoint, METRICS, Method, NODES, REQUESTS, SOCKET, TYPES, Types, VERSION};
use serde_json::{Map, Value, json};

use schema::Schemas;

const DOCUMENT: &str = "docs/openapi.json";
const PYTHON: &str = "clients/python/brickmoon/__init__.py";

/// Writes both files.
pub fn write(root: &Path) -> Result<String, Vec<String>> {
    for (file, text) in files(root).map_err(|error| vec![error])? {
        std::fs::write(root.join(file), text).map_err(|error| vec![format!("{file}: {error}")])?;
    }
    Ok(format!("{DOCUMENT}, {PYTHON}: written"))
}

/// A finding for each file that is out of date.
pub fn check(root: &Path) -> Vec<String> {
    let is_current =
        |file: &str, text: &str| std::fs::read_to_string(root.join(file)).is_ok_and(|there| there == text);
    match files(root) {
        Ok(files) => files
            .into_iter()
            .filter(|(file, text)| !is_current(file, text))
            .map(|(file, _)| format!("{file}: out of date; run cargo xtask openapi"))
            .collect(),
        Err(error) => vec![error],
    }
}

/// Both files, with what should be in them.
fn files(root: &Path) -> Result<[(&'static str, String); 2], String> {
    let document = document();
    let there = std::fs::read_to_string(root.join(PYTHON)).map_err(|error| format!("{PYTHON}: {error}"))?;
    let by_hand =
        python::by_hand(&there).ok_or_else(|| format!("{PYTHON}: there is no line {:?}", python::BEGIN))?;
    let client = format!("{by_hand}{}", python::generated(&document));
    Ok([(DOCUMENT, format!("{document:#}\n")), (PYTHON, client)])
}

/// The API in OpenAPI 3.1.
fn document() -> Value {
    let mut schemas = Schemas::new();
    let mut paths = Map::new();
    for (request, types) in REQUESTS.iter().zip(TYPES) {
        let method = match request.method {
            Method::Get => "get",
            Method::Post => "post",
        };
        let mut path = Map::new();
        path.insert(method.into(), operation(request, types, &mut schemas));
        paths.insert(request.path.into(), path.into());
    }
    paths.insert(format!("{NODES}{{name}}/{VERSION}/{{request}}"), json!({ "get": of_node() }));
    let error = schemas.reply(|generator| generator.subschema_for::<bm_api::Error>());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "brickmoon",
            "description": "The API of a software router for Linux. Within a version fields may be added, but they are never renamed or removed, and their meaning does not change.",
            "version": VERSION,
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [
            { "url": "http://brickmoon", "description": format!("The control socket, a Unix socket: `{SOCKET}`. The name of the host does not matter.") },
            { "url": "http://127.0.0.1:9480", "description": "The address of the web page (`brickmoon up --web`), which serves only GET." },
        ],
        // The token is that of the web page, which needs none at a loopback address; the socket never does.
        "security": [{}, { "token": [] }],
        "paths": paths,
        "components": {
            "schemas": schemas.named(),
            "responses": { "Error": {
                "description": "Why the request failed, and how to fix it.",
                "content": { "application/json": { "schema": error } },
            } },
            "securitySchemes": { "token": {
                "type": "http",
                "scheme": "bearer",
                "description": "The contents of the file that `web_token` in `[daemon]` names.",
            } },
        },
    })
}

fn operation(request: &Endpoint, types: &Types, schemas: &mut Schemas) -> Value {
    let reply = schemas.reply(types.reply);
    let kind = if request.path == METRICS.path { "application/openmetrics-text" } else { "application/json" };
    let mut operation = json!({
        "operationId": name(request.path),
        "summary": request.description.trim(),
        "responses": replies(kind, &reply),
    });
    let parameters = schemas.parameters(types.parameters);
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    operation
}

/// What another node answers to one of the requests above.
fn of_node() -> Value {
    json!({
        "operationId": "node",
        "summary": "What another node of the cluster answers to a GET request.",
        "parameters": [
            { "name": "name", "in": "path", "required": true, "schema": { "type": "string" }, "description": "Name of the node." },
            { "name": "request", "in": "path", "required": true, "schema": { "type": "string" }, "description": "The rest of the path of that request, such as `ports`. Its parameters are passed on." },
        ],
        "responses": replies("application/json", &json!({})),
    })
}

fn replies(kind: &str, schema: &Value) -> Value {
    json!({
        "200": { "description": "The reply.", "content": { kind: { "schema": schema } } },
        "default": { "$ref": "#/components/responses/Error" },
    })
}

/// `/v1/cluster/drain` as `cluster_drain`.
fn name(path: &str) -> String {
    path.trim_start_matches(&format!("/{VERSION}/")).replace('/', "_")
}
