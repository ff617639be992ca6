//! A peer that only Linux can reach: workers encrypt, and Linux sends.

use bm_tests::daemon::{eventually, ping};

use super::{ESP, Net};

#[test]
fn esp_goes_to_a_peer_behind_an_interface_that_is_no_port() {
    let net = Net::new("esp-by-linux");
    let gateway = &net.gateways[0];
    net.net.ip(&format!("link add m3 type veth peer name mgmt netns {}", gateway.name()));
    net.net.ip("addr add 203.0.113.9/24 dev m3\nlink set m3 up");
    gateway.ip("addr add 203.0.113.1/24 dev mgmt\nlink set mgmt up");
    let (Some(one), Some(two)) = (net.start(0, ""), net.start(1, "")) else { return };
    ping(&net.a, "10.2.0.2", 56, 62);
    gateway.ip("route add 198.51.100.0/24 via 203.0.113.9");
    let seen = net.net.packet_socket("m3");
    // Until the daemon has read the route, it goes by the port.
    eventually("Linux sends", || {
        ping(&net.a, "10.2.0.2", 56, 62);
        !Net::crossed(&seen).is_empty()
    });
    ping(&net.a, "10.2.0.2", 1300, 62);
    let crossed = Net::crossed(&seen);
    assert!(!crossed.is_empty() && crossed.iter().all(|(protocol, _)| *protocol == ESP), "{crossed:?}");
    // A tunnel is taken to be as wide as most links.
    let told = net.a.try_run("ping -n -c 1 -W 2 -M do -s 1472 10.2.0.2");
    assert!(String::from_utf8_lossy(&told.stdout).contains("mtu = 1446"), "{told:?}");
    one.stop();
    two.stop();
}
