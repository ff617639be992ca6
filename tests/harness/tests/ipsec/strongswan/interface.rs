//! Routes decide what charon's SAs encrypt: `if_id_in` and `if_id_out`, and a TUN device as the interface.

use super::*;

const INTERFACE: &str = "[[ipsec.interface]]\ndevice = 'ipsec0'\nif_id = 42\n";
/// charon asks for everything; the peer allows its networks.
const EVERYTHING: Ends = Ends { networks: ["0.0.0.0/0", "0.0.0.0/0"], ..IPV4 };

impl Net {
    /// Makes the interface, and routes the other network to it; nothing for that network leaves in any other way.
    fn add_interface(&self) {
        self.gateways[0]
            .ip("tuntap add ipsec0 mode tun\nlink set ipsec0 up\nroute add 10.2.0.0/24 dev ipsec0\n\
             route add unreachable 10.2.0.0/24 metric 4000000");
    }
}

#[test]
fn routes_decide_what_charon_protects() {
    if !has_strongswan("strongswan-if") {
        return;
    }
    let net = Net::new("strongswan-if");
    let Some(daemon) = net.brickmoon_with(INTERFACE) else { return };
    net.add_interface();
    let seen = net.net.packet_socket("m1");
    let _b = net.charon(1, &IPV4, "");
    let a = net.charon(0, &EVERYTHING, "start_action = trap\n if_id_in = 42\n if_id_out = 42");
    ping(&net.a, "10.2.0.2", 56, 62);
    let shown = sas(&daemon);
    assert!(shown.len() == 2 && shown.iter().all(|sa| sa["interface"] == "ipsec0"), "{shown:?}");
    let listed = net.xfrm("policy list");
    assert!(listed.contains("src 0.0.0.0/0 dst 0.0.0.0/0") && listed.contains("if_id 0x2a"), "{listed}");
    assert!(net.xfrm("state list").contains("if_id 0x2a"));
    // What this machine itself sends, too.
    net.gateways[0].ip("route change 10.2.0.0/24 dev ipsec0 src 10.1.0.1");
    ping(&net.gateways[0], "10.2.0.2", 56, 63);
    ping(&net.b, "10.1.0.1", 56, 63);
    let expired = net.b.try_run("ping -c 5 -i 0.1 -W 1 -t 2 10.1.0.2");
    let expired = String::from_utf8_lossy(&expired.stdout).into_owned();
    assert!(expired.contains("From 10.1.0.1 icmp_seq="), "{expired}");
    // Although its policy is for everything, what no route leads there passes as it is.
    let before = sas(&daemon);
    let _no_answer = net.a.try_run("ping -c 3 -i 0.05 -W 1 192.0.2.9");
    assert_eq!(before[1]["packets"], sas(&daemon)[1]["packets"], "{before:?}");
    drain(&seen);
    let mut stream = net.a.command("ping");
    stream.args(["-i", "0.01", "-c", "200", "-W", "2", "10.2.0.2"]).stdout(Stdio::piped());
    let stream = stream.spawn().expect("there is ping");
    for _ in 0..2 {
        std::thread::sleep(std::time::Duration::from_millis(500));
        a.swanctl("--rekey --child nets");
    }
    let output = stream.wait_with_output().expect("it ends");
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.contains("200 received"), "{output}\n{}", a.log());
    assert!(Net::none_in_clear(&seen, UDP) > 200);
    // Without the peer, and without the route.
    a.swanctl("--terminate --ike gw");
    eventually("the SAs are gone", || sas(&daemon).is_empty());
    net.gateways[0].ip("route del 10.2.0.0/24 dev ipsec0");
    eventually("the next route decides", || {
        let said = net.a.try_run("ping -c 1 -W 1 10.2.0.2");
        String::from_utf8_lossy(&said.stdout).contains("Destination Host Unreachable")
    });
    Net::none_in_clear(&seen, UDP);
    drop(a);
    daemon.stop();
}

/// Forgets what has crossed.
fn drain(socket: &bm_tests::sys::PacketSocket) {
    Net::frames(socket);
}

#[test]
fn ip_xfrm_adds_sas_and_policies_of_an_interface() {
    let net = Net::new("ip-xfrm-if");
    let Some(daemon) = net.brickmoon_with(INTERFACE) else { return };
    net.add_interface();
    let out = "src 192.0.2.1 dst 198.51.100.1";
    let aead = |key: &str| format!("aead rfc4106(gcm(aes)) 0x{key:0>40} 128");
    for (spi, if_id) in [("0x1001", 42), ("0x1002", 43)] {
        let aead = aead(&format!("{if_id}"));
        net.xfrm(&format!("state add {out} proto esp spi {spi} reqid 1 mode tunnel {aead} if_id {if_id}"));
        net.xfrm(&format!(
            "policy add src 0.0.0.0/0 dst 0.0.0.0/0 dir out if_id {if_id} tmpl {out} proto esp reqid 1 mode tunnel"
        ));
    }
    let names: Vec<_> = sas(&daemon).iter().map(|sa| sa["interface"].clone()).collect();
    // There is no interface for the second one.
    assert_eq!(names, ["ipsec0", "if_id:43"]);
    let listed = net.xfrm("state list") + &net.xfrm("policy list");
    assert_eq!(listed.matches("if_id 0x2a").count() + listed.matches("if_id 0x2b").count(), 4, "{listed}");
    let seen = net.net.packet_socket("m1");
    let _lost = net.a.try_run("ping -c 5 -i 0.05 -W 1 10.2.0.2");
    eventually("packets are encrypted", || sas(&daemon)[0]["packets"].as_u64() >= Some(5));
    assert_eq!(Net::none_in_clear(&seen, ESP), 5);
    assert_eq!(sas(&daemon)[1]["packets"], 0);
    // Linux has no use for such policies: it sends there nothing in clear.
    assert_eq!(net.gateways[0].run("ip xfrm policy list").trim(), "");
    let refused = net.ip_xfrm("policy delete src 0.0.0.0/0 dst 0.0.0.0/0 dir out if_id 44");
    assert!(!refused.status.success());
    net.xfrm("policy delete src 0.0.0.0/0 dst 0.0.0.0/0 dir out if_id 42");
    let said = net.a.try_run("ping -c 2 -i 0.1 -W 1 10.2.0.2");
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.contains("From 10.1.0.1") && said.contains("Destination Host Unreachable"), "{said}");
    assert_eq!(Net::none_in_clear(&seen, ESP), 0);
    let mistake = format!("state add {out} proto esp spi 0x1003 mode transport {} if_id 42", aead("9"));
    let refused = net.ip_xfrm(&mistake);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("tunnel mode"), "{refused:?}");
    daemon.stop();
}
