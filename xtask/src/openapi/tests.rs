use super::*;

#[test]
fn both_files_are_current() {
    let root = crate::root();
    assert_eq!(check(&root), [""; 0]);
}

#[test]
fn every_request_is_in_the_document() {
    let document = document();
    for request in REQUESTS {
        let method = if request.method == Method::Get { "get" } else { "post" };
        let operation = &document["paths"][request.path][method];
        assert!(operation["summary"].as_str().is_some_and(|summary| !summary.is_empty()), "{request:?}");
        assert!(operation["responses"]["200"]["content"].is_object(), "{request:?}");
    }
}

#[test]
fn schemas_say_what_replies_contain() {
    let document = document();
    let schemas = &document["components"]["schemas"];
    // Absent if the port is in none.
    assert_eq!(schemas["Interface"]["properties"]["vrf"]["type"], "string");
    assert!(!schemas["Interface"]["required"].as_array().expect("a list").contains(&json!("vrf")));
    // There, and null, if no version runs.
    assert_eq!(schemas["Hook"]["properties"]["running"]["type"], json!(["integer", "null"]));
    assert!(schemas["Hook"]["required"].as_array().expect("a list").contains(&json!("running")));
    assert_eq!(schemas["RouteState"]["enum"], json!(["route", "neighbor", "refused"]));
    assert_eq!(schemas["SentFrame"]["properties"]["vlan"]["$ref"], "#/components/schemas/Vlan");
    let remove = &document["paths"]["/v1/cluster/remove"]["post"]["parameters"][0];
    assert_eq!((&remove["name"], &remove["required"]), (&json!("name"), &json!(true)));
}

#[test]
fn the_python_client_has_the_version_of_the_workspace() {
    let root = crate::root();
    let version = |file: &str| {
        let text = std::fs::read_to_string(root.join(file)).expect(file);
        text.lines().find_map(|line| line.strip_prefix("version = ").map(str::to_string)).expect("a version")
    };
    assert_eq!(version("clients/python/pyproject.toml"), version("Cargo.toml"));
}
