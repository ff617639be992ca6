//! SAs and policies for marks, as `ip xfrm` adds them: packets of workers have the mark 0, others are Linux's.

use super::*;

#[test]
fn policies_and_sas_for_marks_are_kept_and_concern_marked_packets_only() {
    let net = Net::new("xfrm-mark");
    let Some(daemon) = net.brickmoon() else { return };
    let seen = net.net.packet_socket("m1");
    let ends = "src 192.0.2.1 dst 198.51.100.1";
    let nets = "src 10.1.0.0/24 dst 10.2.0.0/24 dir out";
    let template = format!("tmpl {ends} proto esp reqid 1 mode tunnel");
    let key = |number: u8| {
        format!("aead rfc4106(gcm(aes)) 0x{number:02x}2e3d4c5b6a79880102030405060708a1b2c3d4 128")
    };
    let state = |mark: &str, number| {
        net.xfrm(&format!(
            "state add {ends} proto esp spi 0x1001 reqid 1 mode tunnel {mark} {}",
            key(number)
        ));
    };
    state("mark 42 mask 0xff", 1);
    net.xfrm(&format!("policy add {nets} mark 42 mask 0xff {template}"));
    // Workers do not use them: what a host sends is not marked, and leaves as it is.
    assert!(sas(&daemon).is_empty() && daemon.log().contains("is not used by workers: its mark 0x2a/0xff"));
    let policies = daemon.ask(&["show", "policies"]);
    assert_eq!(policies["policies"][0]["mark"], "0x2a/0xff", "{policies}");
    let clear = || {
        let _unanswered = net.a.try_run("ping -c 5 -i 0.05 -W 1 10.2.0.2");
        let crossed = Net::crossed(&seen);
        let is_inner = |address: &IpAddr| address.to_string().starts_with("10.1.");
        crossed.iter().filter(|(_, from, _)| is_inner(from)).count()
    };
    eventually("packets pass in clear", || clear() == 5);
    // What Linux marks, it gets, and does not forward in clear.
    let kernel = || net.gateways[0].run("ip xfrm policy list");
    assert!(kernel().contains("mark 0x2a/0xff") && kernel().contains("action block"), "{}", kernel());
    let chain = "table ip t { chain p { type filter hook prerouting priority -150; meta mark set 42; }; }";
    net.gateways[0].feed("nft -f -", chain).expect("nftables");
    eventually("marked packets are dropped", || clear() == 0);
    net.gateways[0].run("nft delete table ip t");
    eventually("packets pass in clear again", || clear() == 5);
    // Others with the same selector, and SPI, are for all packets that workers handle.
    state("mark 0 mask 0xff", 2);
    net.xfrm(&format!("policy add {nets} mark 0 mask 0xff {template}"));
    assert_eq!(clear(), 0);
    assert!(sas(&daemon)[0]["packets"].as_u64() >= Some(5), "{:?}", sas(&daemon));
    // Requests find each by its mark.
    let listed = net.xfrm("policy list");
    assert!(listed.contains("mark 0x2a/0xff") && listed.contains("mark 0/0xff"), "{listed}");
    for refused in
        [format!("policy delete {nets}"), "state get dst 198.51.100.1 proto esp spi 0x1001 mark 7".into()]
    {
        assert!(!net.ip_xfrm(&refused).status.success(), "{refused}");
    }
    assert!(net.xfrm("state get dst 198.51.100.1 proto esp spi 0x1001 mark 42").contains("mark 0x2a/0xff"));
    net.xfrm("state delete dst 198.51.100.1 proto esp spi 0x1001 mark 42");
    assert_eq!(sas(&daemon).len(), 1);
    net.xfrm(&format!("policy delete {nets} mark 42 mask 0xff"));
    assert!(!kernel().contains("0x2a/0xff"), "{}", kernel());
    // `ip` does not send a mark with the value 0.
    net.xfrm("policy flush");
    assert!(net.xfrm("policy list").is_empty() && !kernel().contains("10.2.0.0/24"), "{}", kernel());
    daemon.stop();
}
