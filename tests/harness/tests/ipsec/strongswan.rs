//! Unmodified programs that add SAs and policies: Debian's charon (strongSwan) and `ip xfrm`.
//!
//! ```text
//! host a ─ brickmoon, charon ═ the net ═ charon with kernel-libipsec ─ host b          a 10.1.0.2, b 10.2.0.2
//!                                                                               a 2001:db8:a1::2, b 2001:db8:a2::2
//! ```
//!
//! This machine's kernel needs no ESP. The other end has charon's own, which is an implementation of others.

use bm_tests::daemon::{Daemon, eventually, ping};
use bm_tests::report;
use std::net::IpAddr;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::gateways::{ESP, Gateways};

mod interface;
mod marks;
mod moving;

const CHARON: &str = "/usr/sbin/charon-systemd";
const LIBIPSEC: &str = "/usr/lib/ipsec/plugins/libstrongswan-kernel-libipsec.so";
const GCM: &str = "/usr/lib/ipsec/plugins/libstrongswan-gcm.so";
/// The gateways, and the networks behind them.
struct Ends {
    gateways: [&'static str; 2],
    networks: [&'static str; 2],
}
const IPV4: Ends = Ends { gateways: ["192.0.2.1", "198.51.100.1"], networks: ["10.1.0.0/24", "10.2.0.0/24"] };
const IPV6: Ends = Ends {
    gateways: ["2001:db8:c1::1", "2001:db8:c2::1"],
    networks: ["2001:db8:a1::/64", "2001:db8:a2::/64"],
};
const UDP: u8 = 17;

/// The hosts, the gateways and the net between these.
struct Net(Gateways);

impl Deref for Net {
    type Target = Gateways;

    fn deref(&self) -> &Gateways {
        &self.0
    }
}

/// A running charon, which ends with this.
struct Charon<'a> {
    child: Child,
    net: &'a Net,
    gateway: usize,
}

impl Drop for Charon<'_> {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
        if std::thread::panicking() {
            eprintln!("charon {}:\n{}", self.gateway, self.log());
        }
    }
}

impl Charon<'_> {
    fn log(&self) -> String {
        std::fs::read_to_string(self.net.file(self.gateway, "log")).unwrap_or_default()
    }

    /// Runs `swanctl`; its output.
    fn swanctl(&self, arguments: &str) -> String {
        let uri = format!("unix://{}", self.net.file(self.gateway, "vici").display());
        self.net.gateways[self.gateway].run(&format!("swanctl {arguments} --uri {uri}"))
    }
}

impl Net {
    fn new(test: &'static str) -> Self {
        let net = Self(Gateways::new(test, "", &[("net.ipv6.conf.all.forwarding", "1")]));
        net.net.set(&[("net.ipv6.conf.all.forwarding", "1")]);
        for (n, host) in net.hosts().into_iter().enumerate() {
            let (gateway, lan) = (&net.gateways[n], n + 1);
            host.ip(&format!(
                "addr add 2001:db8:a{lan}::2/64 dev eth0 nodad\nroute add default via 2001:db8:a{lan}::1"
            ));
            net.net.ip(&format!("addr add 2001:db8:c{lan}::9/64 dev m{lan} nodad"));
            gateway.ip(&format!(
                "addr add 2001:db8:a{lan}::1/64 dev lan nodad\naddr add 2001:db8:c{lan}::1/64 dev wan nodad\n\
                 route add default via 2001:db8:c{lan}::9"
            ));
        }
        net
    }

    fn file(&self, gateway: usize, what: &str) -> PathBuf {
        self.folder.join(format!("{what}{gateway}"))
    }

    fn write(&self, gateway: usize, what: &str, text: &str) -> PathBuf {
        let file = self.file(gateway, what);
        std::fs::write(&file, text).expect("a folder for configurations");
        file
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("xfrm.sock")
    }

    /// Starts brickmoon on the first gateway.
    fn brickmoon(&self) -> Option<Daemon<'_>> {
        self.brickmoon_with("")
    }

    /// Starts brickmoon with more settings of `[ipsec]`.
    fn brickmoon_with(&self, more: &str) -> Option<Daemon<'_>> {
        let config = format!(
            "[[port]]\ndevice = 'lan'\n[[port]]\ndevice = 'wan'\n[ipsec]\nxfrm_socket = '{}'\n{more}",
            self.socket().display()
        );
        let file = self.write(0, "brickmoon", &config);
        Daemon::start_with(&self.gateways[0], &["--config", &file.display().to_string()])
    }

    /// Starts charon on a gateway, with a child SA `nets` between the networks of both.
    fn charon(&self, gateway: usize, ends: &Ends, more: &str) -> Charon<'_> {
        let addresses = [ends.gateways[gateway], ends.gateways[1 - gateway]];
        self.charon_between(gateway, ends, addresses, more)
    }

    /// The same with addresses for the SA of IKE, its own first, `%any` for one that is not known before.
    fn charon_between(&self, gateway: usize, ends: &Ends, [own, peer]: [&str; 2], more: &str) -> Charon<'_> {
        let (other, Ends { gateways, networks }) = (1 - gateway, ends);
        let kernel = ["kernel-netlink", "kernel-libipsec kernel-netlink"][gateway];
        let [vici, log] = ["vici", "log"].map(|what| self.file(gateway, what).display().to_string());
        let settings = self.write(
            gateway,
            "strongswan",
            &format!(
                "charon-systemd {{\n load = random nonce openssl aes sha1 sha2 hmac gcm kdf drbg curve25519 {kernel} \
                 socket-default vici\n plugins {{ vici {{ socket = unix://{vici}\n }} }}\n filelog {{ log {{ path = {log}\n \
                 default = 1\n knl = 2\n flush_line = yes\n }} }}\n}}\n"
            ),
        );
        let connections = format!(
            "connections {{ gw {{ version = 2\n local_addrs = {own}\n remote_addrs = {peer}\n proposals = aes128-sha256-x25519\n \
             local {{ auth = psk\n id = {0}\n }}\n remote {{ auth = psk\n id = {1}\n }}\n children {{ nets {{\n local_ts = \
             {2}\n remote_ts = {3}\n esp_proposals = aes128gcm16-x25519\n {more}\n }} }}\n }} }}\n\
             secrets {{ ike-1 {{ id-1 = {0}\n id-2 = {1}\n secret = \"a secret of the test\"\n }} }}\n",
            gateways[gateway], gateways[other], networks[gateway], networks[other],
        );
        let connections = self.write(gateway, "swanctl", &connections);
        let mut command = self.gateways[gateway].command(CHARON);
        command
            .env("STRONGSWAN_CONF", settings)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if gateway == 0 {
            command.env("LD_PRELOAD", library()).env("BRICKMOON_XFRM", self.socket());
        }
        let charon = Charon { child: command.spawn().expect("charon"), net: self, gateway };
        eventually("charon answers", || Path::new(&vici).exists());
        charon.swanctl(&format!("--load-all --noprompt --file {}", connections.display()));
        charon
    }

    /// The frames that have crossed the net since the last call.
    fn frames(socket: &bm_tests::sys::PacketSocket) -> Vec<Vec<u8>> {
        let receive = || socket.receive().expect("frames of the net");
        std::iter::from_fn(receive).map(|captured| captured.frame).collect()
    }

    /// What has crossed the net since the last call, as (protocol, source, destination).
    fn crossed(socket: &bm_tests::sys::PacketSocket) -> Vec<(u8, IpAddr, IpAddr)> {
        let mut packets = Vec::new();
        for frame in Self::frames(socket) {
            let four = |at: usize| Some(<[u8; 4]>::try_from(frame.get(at..at + 4)?).ok()?.into());
            let six = |at: usize| Some(<[u8; 16]>::try_from(frame.get(at..at + 16)?).ok()?.into());
            let packet = match frame.get(12..14) {
                Some([8, 0]) => frame.get(23).copied().zip(four(26)).zip(four(30)),
                Some([0x86, 0xdd]) => frame.get(20).copied().zip(six(22)).zip(six(38)),
                _ => None,
            };
            packets.extend(packet.map(|((protocol, source), destination)| (protocol, source, destination)));
        }
        packets
    }

    /// Asserts that nothing has crossed in clear; returns how many packets did with this protocol.
    fn none_in_clear(socket: &bm_tests::sys::PacketSocket, protocol: u8) -> usize {
        let crossed = Self::crossed(socket);
        let is_inner = |address: &IpAddr| match address {
            IpAddr::V4(address) => address.octets()[0] == 10,
            // 2001:db8:a1::/64 and 2001:db8:a2::/64.
            IpAddr::V6(address) => matches!(address.segments(), [0x2001, 0xdb8, 0xa1 | 0xa2, ..]),
        };
        let clear: Vec<_> = crossed.iter().filter(|(_, from, to)| is_inner(from) || is_inner(to)).collect();
        assert!(clear.is_empty(), "{clear:?}");
        crossed.iter().filter(|(found, ..)| *found == protocol).count()
    }

    /// Runs `ip xfrm` on the first gateway, connected to brickmoon.
    fn ip_xfrm(&self, arguments: &str) -> std::process::Output {
        let mut command: Command = self.gateways[0].command("ip");
        command.arg("xfrm").args(arguments.split_whitespace());
        command.env("LD_PRELOAD", library()).env("BRICKMOON_XFRM", self.socket());
        command.output().expect("ip")
    }

    /// The same, which must succeed; its output.
    fn xfrm(&self, arguments: &str) -> String {
        let output = self.ip_xfrm(arguments);
        assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

/// The library beside the binary.
fn library() -> PathBuf {
    let binary = bm_tests::subject::binary().expect("the daemon runs");
    binary.with_file_name("libbrickmoon-xfrm.so")
}

fn has_strongswan(test: &str) -> bool {
    let all = [CHARON, LIBIPSEC, GCM, "/usr/sbin/swanctl"];
    let missing = all.iter().find(|file| !Path::new(file).exists());
    if let Some(missing) = missing {
        report::skip(test, &format!("there is no {missing}; `tools/setup test` installs it"));
    }
    missing.is_none()
}

fn sas(daemon: &Daemon<'_>) -> Vec<serde_json::Value> {
    daemon.ask(&["show", "sas"])["sas"].as_array().expect("a list").clone()
}

/// A trap brings the tunnel up, a rekey loses nothing, and without the peer nothing is sent in clear.
#[test]
fn charon_brings_a_tunnel_up_rekeys_it_and_takes_it_down() {
    if !has_strongswan("strongswan") {
        return;
    }
    let net = Net::new("strongswan");
    let Some(daemon) = net.brickmoon() else { return };
    let seen = net.net.packet_socket("m1");
    let b = net.charon(1, &IPV4, "");
    let a = net.charon(0, &IPV4, "start_action = trap");
    // The first packets ask for the SA, and are lost.
    ping(&net.a, "10.2.0.2", 56, 62);
    assert!(Net::none_in_clear(&seen, UDP) > 10);
    let before = sas(&daemon);
    assert_eq!(before.len(), 2, "{before:?}");
    assert!(
        before.iter().all(|sa| sa["suite"] == "aes128gcm16" && sa["packets"].as_u64() > Some(0)),
        "{before:?}"
    );
    let listed = a.swanctl("--list-sas");
    assert!(listed.contains("nets: #") && listed.contains("ESP:AES_GCM_16-128"), "{listed}");
    // An ICMP error about a packet of the tunnel comes through the tunnel, from an address that the policy has.
    let expired = net.b.try_run("ping -c 5 -i 0.1 -W 1 -t 2 10.1.0.2");
    let expired = String::from_utf8_lossy(&expired.stdout).into_owned();
    assert!(expired.contains("From 10.1.0.1 icmp_seq="), "{expired}");
    Net::none_in_clear(&seen, UDP);
    // A stream, in the middle of which the keys are replaced.
    let mut stream = net.a.command("ping");
    stream.args(["-i", "0.01", "-c", "300", "-W", "2", "10.2.0.2"]).stdout(Stdio::piped());
    let stream = stream.spawn().expect("there is ping");
    for _ in 0..3 {
        std::thread::sleep(std::time::Duration::from_millis(500));
        a.swanctl("--rekey --child nets");
    }
    let output = stream.wait_with_output().expect("it ends");
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.contains("300 received"), "{output}\n{}", a.log());
    eventually("the old SAs are gone", || sas(&daemon).len() == 2);
    let after = sas(&daemon);
    assert!(after.iter().all(|sa| before.iter().all(|old| old["spi"] != sa["spi"])), "{after:?}");
    let said = daemon.log()
        + &daemon.ask(&["show", "policies"]).to_string()
        + &after.iter().map(ToString::to_string).collect::<String>();
    assert!(said.contains("10.2.0.0/24") && !said.to_lowercase().contains("key\""), "{said}");
    // The peer goes, and the SAs with it: the trap stays.
    a.swanctl("--terminate --ike gw");
    eventually("the SAs are gone", || sas(&daemon).is_empty());
    drop(b);
    let (drops, _before) = (daemon.dropped("ipsec_no_sa"), Net::crossed(&seen));
    let _lost = net.a.try_run("ping -c 5 -i 0.1 -W 1 10.2.0.2");
    eventually("packets without an SA are counted", || daemon.dropped("ipsec_no_sa") >= drops + 5);
    Net::none_in_clear(&seen, UDP);
    drop(a);
    daemon.stop();
}

/// IPv6 in a tunnel between IPv6 addresses.
#[test]
fn charon_protects_ipv6() {
    if !has_strongswan("strongswan-ipv6") {
        return;
    }
    let net = Net::new("strongswan-ipv6");
    let Some(daemon) = net.brickmoon() else { return };
    let seen = net.net.packet_socket("m1");
    let _b = net.charon(1, &IPV6, "");
    let a = net.charon(0, &IPV6, "start_action = trap");
    ping(&net.a, "2001:db8:a2::2", 56, 62);
    let shown = sas(&daemon);
    assert!(shown.len() == 2 && shown.iter().all(|sa| sa["packets"].as_u64() > Some(0)), "{shown:?}");
    let expired = net.b.try_run("ping -c 5 -i 0.1 -W 1 -t 2 2001:db8:a1::2");
    let expired = String::from_utf8_lossy(&expired.stdout).into_owned();
    assert!(expired.contains("From 2001:db8:a1::1 icmp_seq="), "{expired}");
    let mut stream = net.a.command("ping");
    stream.args(["-i", "0.01", "-c", "100", "-W", "2", "2001:db8:a2::2"]).stdout(Stdio::piped());
    let stream = stream.spawn().expect("there is ping");
    std::thread::sleep(std::time::Duration::from_millis(300));
    a.swanctl("--rekey --child nets");
    let output = stream.wait_with_output().expect("it ends");
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.contains("100 received"), "{output}\n{}", a.log());
    assert!(Net::none_in_clear(&seen, UDP) > 100);
    drop(a);
    daemon.stop();
}

/// SAs and policies by hand, between two workers' ends of one tunnel.
#[test]
fn ip_xfrm_adds_lists_and_deletes() {
    let net = Net::new("ip-xfrm");
    let Some(daemon) = net.brickmoon() else { return };
    let key = "0x1f2e3d4c5b6a79880102030405060708a1b2c3d4";
    let (out, inbound) = ("src 192.0.2.1 dst 198.51.100.1", "src 198.51.100.1 dst 192.0.2.1");
    let aead = format!("aead rfc4106(gcm(aes)) {key} 128");
    net.xfrm(&format!("state add {out} proto esp spi 0x1001 reqid 1 mode tunnel {aead}"));
    net.xfrm(&format!(
        "state add {inbound} proto esp spi 0x1002 reqid 1 mode tunnel {aead} replay-window 64"
    ));
    net.xfrm(&format!(
        "policy add src 10.1.0.0/24 dst 10.2.0.0/24 dir out tmpl {out} proto esp reqid 1 mode tunnel"
    ));
    net.xfrm("policy add src 10.3.0.0/24 dst 10.4.0.0/24 dir out action block priority 7");
    let shown = sas(&daemon);
    let directions: Vec<_> = shown.iter().map(|sa| sa["direction"].as_str().unwrap_or_default()).collect();
    assert_eq!(directions, ["out", "in"], "{shown:?}");
    // Another process does not see keys.
    let listed = net.xfrm("state list");
    assert!(
        listed.contains("spi 0x00001001") && listed.contains("mode tunnel") && !listed.contains("1f2e3d4c"),
        "{listed}"
    );
    let policies = net.xfrm("policy list");
    assert!(
        policies.contains("src 10.1.0.0/24 dst 10.2.0.0/24") && policies.contains("action block"),
        "{policies}"
    );
    assert!(net.xfrm("state count").contains("2"), "{}", net.xfrm("state count"));
    // What hosts send is encrypted, and the kernel would not forward it in clear.
    let seen = net.net.packet_socket("m1");
    let _lost = net.a.try_run("ping -c 5 -i 0.05 -W 1 10.2.0.2");
    eventually("packets are encrypted", || sas(&daemon)[0]["packets"].as_u64() >= Some(5));
    assert_eq!(Net::none_in_clear(&seen, ESP), 5);
    let kernel = net.gateways[0].run("ip xfrm policy list");
    assert!(
        kernel.contains("src 10.1.0.0/24 dst 10.2.0.0/24") && kernel.contains("dir fwd action block"),
        "{kernel}"
    );
    // Mistakes are refused with a reason, and change nothing.
    for (mistake, why) in [
        (
            format!("state add {out} proto esp spi 0x1003 mode tunnel aead rfc4106(gcm(aes)) 0x0102 128"),
            "aes128gcm16",
        ),
        (format!("state add {out} proto ah spi 0x1003 mode tunnel auth hmac(sha1) {key}"), "only ESP"),
        (format!("state add {out} proto esp spi 0x1003 reqid 1 mode tunnel {aead}"), "same keys"),
        (
            format!("state add {out} proto esp spi 0x1003 reqid 1 mode tunnel {aead} output-mark 1"),
            "marks of ESP packets",
        ),
    ] {
        let refused = net.ip_xfrm(&mistake);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains(why), "{mistake}: {said}");
    }
    assert_eq!(sas(&daemon).len(), 2);
    // A hard lifetime ends an SA; a policy without one drops.
    net.xfrm("state delete dst 198.51.100.1 proto esp spi 0x1001");
    let limited = "aead rfc4106(gcm(aes)) 0x9081726354453627111213141516171819202122 128 limit packet-hard 2";
    net.xfrm(&format!("state add {out} proto esp spi 0x1004 reqid 1 mode tunnel {limited}"));
    let _lost = net.a.try_run("ping -c 5 -i 0.05 -W 1 10.2.0.2");
    eventually("it ends", || sas(&daemon).len() == 1);
    assert_eq!(Net::none_in_clear(&seen, ESP), 2);
    net.xfrm("state flush");
    net.xfrm("policy flush");
    assert!(sas(&daemon).is_empty() && net.xfrm("policy list").is_empty());
    let kernel = net.gateways[0].run("ip xfrm policy list");
    assert!(!kernel.contains("10.2.0.0/24"), "{kernel}");
    daemon.stop();
}
