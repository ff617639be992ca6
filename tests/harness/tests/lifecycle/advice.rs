//! Advice in error messages: runs each command that a message suggests, which must solve the problem.

use bm_tests::daemon::Daemon;
use bm_tests::foreign::ForeignProgram;
use bm_tests::netns::Namespace;
use bm_tests::{PATIENCE, command, report, subject};

/// A namespace with a veth r0, whose other end k0 is in a second one.
fn veth(test: &str) -> Option<(Namespace, Namespace)> {
    if subject::binary().is_none() || !bm_tests::sys::is_root() {
        report::skip(test, "it needs root and the binary");
        return None;
    }
    let (router, host) = (Namespace::new(test, "rtr"), Namespace::new(test, "host"));
    router.run(&format!("ip link add r0 type veth peer name k0 netns {}", host.name()));
    router.run("ip link set r0 up");
    host.run("ip link set k0 up");
    Some((router, host))
}

/// A daemon with a program at XDP on r0; as it comes, it would be at tc.
fn by_xdp<'a>(router: &'a Namespace, path: &str) -> Option<Daemon<'a>> {
    Daemon::start_with(router, &["--port", "r0", "--path", path, "--attach", "xdp"])
}

/// The message of `brickmoon up` when it refuses to start.
fn refused(router: &Namespace, arguments: &[&str]) -> String {
    let mut up = router.command(subject::binary().expect("the binary"));
    let socket = std::env::temp_dir().join(format!("{}.sock", router.name()));
    up.arg("up").args(arguments).arg("--socket").arg(&socket);
    let done = command::run("brickmoon up", &mut up, PATIENCE).expect("it ends");
    assert!(!done.status.success(), "it must refuse to start");
    String::from_utf8_lossy(&done.stderr).into_owned()
}

/// The commands between backticks.
fn commands(text: &str) -> Vec<String> {
    let words = text.split('`').skip(1).step_by(2);
    words.filter(|words| words.contains(' ')).map(String::from).collect()
}

#[test]
fn the_suggested_command_detaches_a_foreign_program() {
    let Some((router, _host)) = veth("taken") else { return };
    let Some(program) = ForeignProgram::compile("taken") else {
        return report::skip("taken", "it needs clang");
    };
    for mode in ["xdpgeneric", "xdpdrv"] {
        for path in ["kernel", "user"] {
            program.attach(&router, "r0", mode);
            let message = refused(&router, &["--path", path, "--attach", "xdp", "--port", "r0"]);
            let offered = commands(&message);
            let [command] = &offered[..] else { panic!("{mode}, {path}: {message}") };
            router.run(command);
            let daemon = by_xdp(&router, path).expect("the suggested command must help");
            daemon.stop();
        }
    }
}

#[test]
fn the_suggested_command_detaches_a_program_held_by_a_link() {
    let Some((router, _host)) = veth("linked") else { return };
    if std::process::Command::new("bpftool").arg("version").output().is_err() {
        return report::skip("linked", "it needs bpftool");
    }
    let first = by_xdp(&router, "user").expect("the binary is there");
    let message = refused(&router, &["--path", "user", "--port", "r0"]);
    let offered = commands(&message);
    let [command] = &offered[..] else { panic!("{message}") };
    assert!(command.starts_with("bpftool link detach id "), "{message}");
    router.run(command);
    assert!(router.run("ip -d link show r0").lines().all(|line| !line.contains("prog/xdp")));
    drop(first);
}

#[test]
fn the_suggested_command_makes_frames_fit_into_slots() {
    let Some((router, host)) = veth("slots") else { return };
    router.run("ip link set r0 mtu 9000");
    host.run("ip link set k0 mtu 9000");
    let daemon = by_xdp(&router, "user").expect("it starts");
    let reason = || daemon.port("r0")["state_reason"].as_str().unwrap_or_default().to_string();
    let message = reason();
    assert!(!message.contains("slot_size = 4096"), "no slot of AF_XDP holds 9000 bytes: {message}");
    let offered = commands(&message);
    let [command] = &offered[..] else { panic!("{message}") };
    router.run(command);
    assert_eq!(reason(), "", "the suggested command must help");
    router.run("ip link set r0 mtu 3000");
    assert!(reason().contains("set slot_size = 4096 in [daemon]"), "{}", reason());
    daemon.stop();
}

#[test]
fn an_end_without_gro_is_reported_with_the_command_that_enables_it() {
    let Some((router, host)) = veth("gro") else { return };
    host.run("ethtool -K k0 gro off");
    let daemon = Daemon::start(&router, &["r0"]).expect("the binary is there");
    let reason = |daemon: &Daemon<'_>| {
        let port = daemon.port("r0");
        [&port["mode_reason"], &port["attach_reason"]]
            .map(|why| why.as_str().unwrap_or_default().to_string())
            .concat()
    };
    let message = reason(&daemon);
    let offered = commands(&message);
    let [command] = &offered[..] else { panic!("{message}") };
    daemon.stop();
    assert!(message.contains("in the network namespace of the other end"), "{message}");
    host.run(&command.replace("NAME", "k0"));
    let daemon = Daemon::start(&router, &["r0"]).expect("the binary is there");
    assert!(!reason(&daemon).contains("gro"), "{}", reason(&daemon));
    daemon.stop();
    // An interface for which GRO would not help gets no such advice.
    router.run("ip link add vx1 type vxlan id 7 dstport 4789 dev r0 local 10.0.0.1");
    router.run("ip link set vx1 up");
    let daemon = Daemon::start(&router, &["vx1"]).expect("the binary is there");
    let port = daemon.port("vx1");
    assert!(!port.to_string().contains("gro on"), "{port}");
    assert!(port.to_string().contains("(vxlan) cannot send frames that XDP redirects"), "{port}");
    daemon.stop();
}

#[test]
fn without_root_no_command_is_suggested_that_needs_root_too() {
    let Some((router, _host)) = veth("unprivileged") else { return };
    let binary = subject::binary().expect("the binary");
    let copy = std::env::temp_dir().join(format!("{}-brickmoon", router.name()));
    std::fs::copy(binary, &copy).expect("a copy that everybody may run");
    for path in ["kernel", "user"] {
        let mut up = router.command("setpriv");
        up.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&copy);
        let socket = format!("/tmp/{}.sock", router.name());
        up.args(["up", "--path", path, "--port", "r0", "--socket", &socket]);
        let done = command::run("brickmoon up", &mut up, PATIENCE).expect("it ends");
        let message = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(!done.status.success() && message.contains("root"), "{path}: {message}");
        assert!(!message.contains("--path user"), "{path}: {message}");
    }
    let _gone = std::fs::remove_file(copy);
}
