//! The Python client of the API (`clients/python`) with a running daemon: replies are those of `brickmoon show`, and have
//! the types that docs/openapi.json says.

use bm_tests::PATIENCE;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use bm_tests::command::{self, has};
use bm_tests::daemon::eventually;
use bm_tests::lab::{Ends, Lab, Side};
use bm_tests::packet::Ip4;
use bm_tests::report;
use bm_tests::subject::{Router, Subject};
use serde_json::{Map, Value};

/// The commands that print the replies to GET requests.
const SHOWN: [(&str, &[&str]); 19] = [
    ("/v1/status", &["status"]),
    ("/v1/ports", &["show", "ports"]),
    ("/v1/routes", &["show", "routes"]),
    ("/v1/explain", &["explain", "10.9.9.9"]),
    ("/v1/neighbors", &["show", "neighbors"]),
    ("/v1/nexthops", &["show", "nexthops"]),
    ("/v1/apps", &["show", "apps"]),
    ("/v1/links", &["show", "links"]),
    ("/v1/workers", &["show", "workers"]),
    ("/v1/drops", &["show", "drops"]),
    ("/v1/hooks", &["show", "hooks"]),
    ("/v1/filters", &["show", "filters"]),
    ("/v1/flows", &["show", "flows"]),
    ("/v1/sas", &["show", "sas"]),
    ("/v1/policies", &["show", "policies"]),
    ("/v1/collectors", &["show", "collectors"]),
    ("/v1/switches", &["show", "switch"]),
    ("/v1/macs", &["show", "macs"]),
    ("/v1/cluster", &["show", "cluster"]),
];

/// These have no command of their own.
const NOT_SHOWN: [&str; 3] = ["/v1/cleared", "/v1/metrics", "error"];

const WEB: &str = "127.0.0.1:9480";
const TOKEN: &str = "0123456789abcdef";

/// Runs `client.py` in the router's namespace, and returns what it prints.
fn client(lab: &Lab, arguments: &[&str]) -> Result<Value, String> {
    let tests = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let mut python = lab.rtr.command("python3");
    python.arg(tests.join("tests/observe/client.py")).args(arguments);
    python.env("PYTHONPATH", tests.join("../../clients/python")).env("PYTHONDONTWRITEBYTECODE", "1");
    let done = command::run("client.py", &mut python, PATIENCE)?;
    if done.status.success() {
        return serde_json::from_slice(&done.stdout).map_err(|error| error.to_string());
    }
    Err(String::from_utf8_lossy(&done.stderr).into_owned())
}

/// A reply without what changes by itself: 0 for each number, and no rates, which are absent at first.
fn at_rest(value: &Value) -> Value {
    match value {
        Value::Number(_) => 0.into(),
        Value::Array(values) => values.iter().map(at_rest).collect(),
        Value::Object(fields) => {
            let fields = fields.iter().filter(|(name, _)| !name.ends_with("_per_s"));
            Value::Object(fields.map(|(name, value)| (name.clone(), at_rest(value))).collect::<Map<_, _>>())
        }
        _ => value.clone(),
    }
}

/// The first reply that the client and `brickmoon show` do not have in common.
fn difference(router: &Router, replies: &Value) -> Option<String> {
    SHOWN.iter().find_map(|(path, words)| {
        let (ours, shown) = (at_rest(&replies[path]), at_rest(&router.json(words)));
        (ours != shown).then(|| format!("{path}\n{ours}\nbeside\n{shown}"))
    })
}

#[test]
fn the_python_client_gets_what_show_prints() {
    let Some(subject) = Subject::user("client") else { return };
    if !has("python3") {
        return report::skip("client", "there is no python3");
    }
    let lab = Lab::new("client", Ends::Silent);
    lab.rtr.run("ip link set lo up");
    let token = std::env::temp_dir().join(format!("{}.token", lab.rtr.name()));
    std::fs::write(&token, TOKEN).expect("a file");
    std::fs::set_permissions(&token, PermissionsExt::from_mode(0o600)).expect("a mode");
    let mut router = subject.start(&lab);
    router.end(&[]);
    // With something in as many replies as possible.
    let config = format!(
        "[daemon]\npath = \"user\"\nweb = \"{WEB}\"\nweb_token = \"{}\"\n\
         [[filter.rule]]\nname = \"no-telnet\"\naction = \"drop\"\nprotocol = \"tcp\"\ndestination_ports = 23\n\
         [[sflow]]\ncollector = \"127.0.0.1:6343\"\n",
        token.display()
    );
    router.restart_with(&["r0", "r1"], &config);
    router.settle();
    eventually("a packet is forwarded", || {
        lab.send(Side::Src, &Side::Src.to_router(&Ip4::udp("192.0.2.2", "10.9.9.9", 300).bytes()));
        router.sent() > 0
    });
    let socket = router.socket().expect("a daemon");
    let replies = client(&lab, &[&socket]).unwrap_or_else(|why| panic!("{why}"));
    let others = replies.as_object().expect("an object").keys().map(String::as_str);
    let others: Vec<&str> = others.filter(|path| !NOT_SHOWN.contains(path)).collect();
    assert_eq!(others.len(), SHOWN.len(), "each of {others:?} has a command");
    assert!(replies["/v1/metrics"].as_str().is_some_and(|text| text.contains("\nbrickmoon_frames_total{")));
    assert_eq!(replies["error"]["message"], "\"nowhere\" is not an IP address");
    // A neighbor may change its state between two requests.
    let mut last = None;
    eventually("the same replies", || {
        last = client(&lab, &[&socket]).map_or_else(Some, |replies| difference(&router, &replies));
        last.iter().for_each(|last| eprintln!("{last}"));
        last.is_none()
    });
    let of_page = client(&lab, &[&format!("http://{WEB}"), TOKEN]).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(at_rest(&of_page["/v1/filters"]), at_rest(&replies["/v1/filters"]));
    let refused = client(&lab, &[&format!("http://{WEB}"), "wrong"]).expect_err("a wrong token");
    assert!(refused.contains("brickmoon.Error: no token, or a wrong one: log in with"), "{refused}");
    std::fs::remove_file(token).expect("the file");
    router.stop();
}

#[test]
fn mypy_finds_nothing_in_the_python_client() {
    if !has("mypy") {
        return report::skip("client", "there is no mypy, which checks the types of the Python client");
    }
    let package = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../clients/python/brickmoon");
    let mut mypy = Command::new("mypy");
    mypy.args(["--strict", "--cache-dir", "/dev/null"]).arg(package);
    let done = command::run("mypy", &mut mypy, PATIENCE * 3).unwrap_or_else(|why| panic!("{why}"));
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
}
