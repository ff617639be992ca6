use super::kernel::{Change, RouteChanges};
use super::napi::{Napi, kernel_threads_are_seen};
use super::*;
use crate::tables::{TableOptions, generate};

/// A test bed for this test, or `None`, after printing why.
fn testbed(name: &str, tag: &str) -> Option<Testbed> {
    if require_root().is_err() {
        eprintln!("skipped {name}: needs root");
        return None;
    }
    let options =
        TestbedOptions { prefix: format!("bm-testbed-{name}"), tag: tag.into(), ..TestbedOptions::default() };
    Some(Testbed::up(&options).unwrap())
}

fn namespaces() -> String {
    namespace::command(&mut std::process::Command::new("ip"), &["netns", "list"], "").unwrap()
}

#[test]
fn hosts_reach_each_other_and_nothing_is_left() {
    let Some(testbed) = testbed("reach", "ea") else { return };
    for target in ["10.0.16.2", "fd00:2::2"] {
        let output = testbed.source.run(&["ping", "-c", "1", "-W", "2", target]).unwrap();
        assert!(output.contains(" 0% packet loss"), "{output}");
    }
    let neighbors = testbed.router.run(&["ip", "neigh", "show", "dev", "ear1"]).unwrap();
    assert!(neighbors.contains("10.0.16.17 lladdr 02:00:00:01:00:10 PERMANENT"), "{neighbors}");
    assert!(neighbors.contains("fd00:2::11 lladdr 02:00:00:01:00:10 PERMANENT"), "{neighbors}");
    assert_eq!(namespaces().matches("bm-testbed-reach-").count(), 3);
    drop(testbed);
    assert!(!namespaces().contains("bm-testbed-reach-"));
}

#[test]
fn removes_remains_of_earlier_runs() {
    let Some(first) = testbed("again", "eb") else { return };
    let mut sleeper = std::process::Command::new("sleep");
    first.router.confine(sleeper.arg("1000")).unwrap();
    let mut sleeper = sleeper.spawn().unwrap();
    // As if the first one had been killed: nothing of it is cleaned up.
    std::mem::forget(first);
    let second = testbed("again", "eb").unwrap();
    assert!(!sleeper.wait().unwrap().success());
    drop(second);
    assert!(!namespaces().contains("bm-testbed-again-"));
}

#[test]
fn routes_are_added_changed_and_removed() {
    let Some(testbed) = testbed("routes", "ec") else { return };
    let options = TableOptions { ipv4: 3_000, ipv6: 2_000, ..TableOptions::default() };
    let mut table = generate(&options).unwrap();
    let all = RouteChanges { done: 5_000, refused: 0, first_error: None };
    assert_eq!(testbed.change_routes(Change::Add, &table).unwrap(), all);
    let again = testbed.change_routes(Change::Add, &table).unwrap();
    assert_eq!((again.done, again.refused), (0, 5_000));
    assert!(again.first_error.unwrap().contains("File exists"));

    table.ipv4.iter_mut().for_each(|route| route.next_hop = 16);
    table.ipv6.iter_mut().for_each(|route| route.next_hop = 15);
    assert_eq!(testbed.change_routes(Change::Replace, &table).unwrap(), all);
    let count = |words: &[&str]| testbed.router.run(words).unwrap().lines().count();
    assert_eq!(count(&["ip", "route", "show", "via", "10.0.16.17", "proto", "bgp"]), 3_000);
    assert_eq!(count(&["ip", "-6", "route", "show", "via", "fd00:2::10", "proto", "bgp"]), 2_000);

    assert_eq!(testbed.change_routes(Change::Delete, &table).unwrap(), all);
    assert_eq!(count(&["ip", "route", "show", "proto", "bgp"]), 0);
    assert_eq!(count(&["ip", "-6", "route", "show", "proto", "bgp"]), 0);
}

#[test]
fn polling_moves_to_a_thread_on_its_core() {
    let Some(testbed) = testbed("napi", "ed") else { return };
    if !kernel_threads_are_seen() {
        return eprintln!("skipped: kernel threads are not seen from this process namespace");
    }
    let napi = Napi::threaded(&testbed.router, "edr0").unwrap();
    let threads = napi.threads();
    assert!(!threads.is_empty());
    let core = cores::allowed()[0];
    napi.pin(core, 0).unwrap();
    for thread in threads {
        let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap();
        assert!(status.contains(&format!("Cpus_allowed_list:\t{core}\n")), "{status}");
    }
    let _ = napi.core_ns();
}

#[test]
fn errors_say_what_is_wrong() {
    assert!(TestbedError::NotRoot.to_string().contains("sudo"));
    if require_root().is_err() {
        return eprintln!("skipped the rest: needs root");
    }
    let options = TestbedOptions { next_hops: 2_000, ..TestbedOptions::default() };
    assert_eq!(
        Testbed::up(&options).err().unwrap().to_string(),
        "2000 next hops are not possible: use 1 to 1023"
    );
    let Some(testbed) = testbed("wrong", "ee") else { return };
    let error = testbed.router.ip_batch("link set nothing up\n").unwrap_err().to_string();
    assert!(error.contains("nothing"), "{error}");
    assert!(testbed.router.index("nothing").unwrap_err().to_string().contains("interface nothing"));
}
