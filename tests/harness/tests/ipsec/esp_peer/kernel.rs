//! SAs and policies of a kernel that has ESP, which workers use (`kernel = "on"`), with the same peer.

use super::*;
use bm_tests::netns::Namespace;
use bm_tests::sys;

/// `UDP_ENCAP_ESPINUDP`.
const ESP_IN_UDP: libc::c_int = 2;

#[test]
fn sas_of_the_kernel_do_the_same() {
    let lab = Lab::new("esp-kernel");
    if !has_esp(&lab.router) {
        return report::skip("esp-kernel", "this machine's kernel has no ESP");
    }
    let Some(mut peer) = lab.peer("esp-kernel") else { return };
    let Some(mut daemon) = lab.start_with(START) else { return };
    let mut tunnels = adversary::attacked();
    // Others are Linux's.
    tunnels.retain(|tunnel| tunnel.mode == Mode::Tunnel);
    tunnels.iter_mut().for_each(|tunnel| tunnel.selectors = false);
    lab.router.feed("ip -batch -", &xfrm::commands(&tunnels)).expect("ip xfrm");
    ready(&daemon, &tunnels);
    peer.has(&tunnels);
    // As an IKE daemon has it. Linux decrypts a packet of another sender, so that it can tell the daemon about it.
    let of_ike = adversary::open_socket(&lab, 4500);
    sys::set_socket_option(&of_ike, libc::SOL_UDP, libc::UDP_ENCAP, ESP_IN_UDP).expect("an option");
    let some = json!({ "do": "exchange", "rounds": 5 });
    let mut packets = peer.number(&some);
    // Linux drops and counts a part of it: here only what passes is compared.
    let names = peer.ask(&json!({ "do": "attacks" }));
    for name in names.as_array().expect("a list") {
        for tunnel in 0..tunnels.len() {
            peer.ask(&json!({ "do": "attack", "name": name, "tunnel": tunnel }));
        }
    }
    packets += peer.number(&some);
    // The kernel keeps the SAs, and no number and no IV is used twice.
    daemon.kill();
    daemon = lab.start_with(START).expect("it has started before");
    ready(&daemon, &tunnels);
    packets += peer.number(&some);
    report::say(&format!("esp-kernel: {packets} packets"));
    daemon.stop();
}

const START: &str = "[ipsec]\nkernel = 'on'\n";

/// Waits until workers have the SAs, and leave none of their packets to Linux.
fn ready(daemon: &Daemon<'_>, tunnels: &[Tunnel]) {
    eventually("workers have the SAs", || {
        let (sas, status) = (daemon.ask(&["show", "sas"]), daemon.ask(&["status"]));
        sas["sas"].as_array().is_some_and(|all| all.len() == 2 * tunnels.len())
            && status["firewall"]["linux_only"].as_array().is_none_or(Vec::is_empty)
    });
}

fn has_esp(router: &Namespace) -> bool {
    let sa = "src 192.0.2.1 dst 192.0.2.77 proto esp spi 0x100";
    let key = "0x1f2e3d4c5b6a79880102030405060708a1b2c3d4";
    let add = format!("ip xfrm state add {sa} mode tunnel aead rfc4106(gcm(aes)) {key} 128");
    router.try_run(&add).status.success()
        && router.try_run(&format!("ip xfrm state delete {sa}")).status.success()
}
