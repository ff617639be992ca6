//! Workers with the SAs and policies of a kernel that has ESP (`kernel = "on"` in `[ipsec]`).
//!
//! ```text
//! this machine ─ boots ─► user-mode Linux 6.1, its root is this machine's ─ runs ─► `inside`
//!
//! host a ─ tap:lan ─ brickmoon, the kernel's SAs ─ tap:wan ═ Linux with ESP       a 10.1.0.2, behind the peer 10.2.0.1
//! ```
//!
//! A kernel without ESP, such as that of many virtual machines, cannot add SAs, so this needs another one.

use bm_tests::daemon::{Daemon, eventually};
use bm_tests::netns::Namespace;
use bm_tests::report;
use bm_tests::sys::PacketSocket;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const LINUX: &str = "/usr/bin/linux.uml";
const MODPROBE: &str = "/sbin/modprobe";
/// What is needed of the kernel, in this order; the last ones are ciphers.
const MODULES: &str = "tun esp4 esp6 xfrm_user veth gcm ctr ghash-generic aes_generic cbc hmac sha256_generic seqiv echainiv \
                       cryptomgr authenc authencesn chacha20poly1305 des_generic af_key";
const SECONDS: u64 = 300;

#[test]
fn workers_use_the_sas_of_a_kernel_with_esp() {
    if !Path::new(LINUX).exists() {
        return report::skip("kernel_ipsec", "there is no user-mode Linux; `tools/setup test` installs it");
    }
    if !Path::new(MODPROBE).exists() {
        return report::skip("kernel_ipsec", "there is no modprobe; `tools/setup test` installs it");
    }
    if std::env::var_os("BM_SANITIZER").is_some() {
        return report::skip(
            "kernel_ipsec",
            "a sanitizer finds no room for its own memory in user-mode Linux",
        );
    }
    let Some(binary) = bm_tests::subject::binary() else { return };
    let folder = std::env::temp_dir().join(format!("bm-uml-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let (init, modprobe) = (folder.join("init"), folder.join("modprobe"));
    let this = std::env::current_exe().expect("this program");
    let here = std::env::current_dir().expect("a folder");
    let script = |file: &Path, text: &str| {
        fs::write(file, format!("#!/bin/sh\n{text}\n")).expect("a script");
        assert!(Command::new("chmod").args(["755"]).arg(file).status().is_ok_and(|status| status.success()));
    };
    script(&modprobe, &format!("exec {MODPROBE} -d /run \"$@\""));
    script(
        &init,
        &format!(
            "export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root BRICKMOON={}\n\
             mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t tmpfs tmp /run; mount -t tmpfs tmp /var/lib\n\
             mkdir -p /run/lib /run/netns /dev/net; ln -s /usr/lib/uml/modules /run/lib/modules\n\
             echo {} > /proc/sys/kernel/modprobe\n\
             for module in {MODULES}; do {1} $module 2>/dev/null; done\n\
             [ -e /dev/net/tun ] || mknod /dev/net/tun c 10 200\n\
             ip link set lo up; cd {}\n\
             {} kernel_ipsec:: --ignored --nocapture --test-threads=1\n\
             echo \"inside ended with $?\"\n\
             echo 1 > /proc/sys/kernel/sysrq; echo o > /proc/sysrq-trigger; sleep 60",
            binary.display(),
            modprobe.display(),
            here.display(),
            this.display(),
        ),
    );
    let output = folder.join("output");
    let log = fs::File::create(&output).expect("a file");
    let mut linux = Command::new(LINUX)
        .args(["mem=1500M", "rootfstype=hostfs", "rootflags=/", "rw", "con=null", "con0=fd:0,fd:1", "quiet"])
        .arg(format!("init={}", init.display()))
        .stdin(Stdio::null())
        .stderr(log.try_clone().expect("a file"))
        .stdout(log)
        .spawn()
        .expect("user-mode Linux");
    let end = Instant::now() + Duration::from_secs(SECONDS);
    let said = || String::from_utf8_lossy(&fs::read(&output).unwrap_or_default()).into_owned();
    while linux.try_wait().expect("a process").is_none() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(200));
    }
    let _ended = linux.kill();
    let _reaped = linux.wait();
    let said = said();
    let _gone = fs::remove_dir_all(&folder);
    if said.contains("put_fp_registers") {
        return report::skip(
            "kernel_ipsec",
            "user-mode Linux has no room for the registers of this CPU (AMX)",
        );
    }
    assert!(said.contains("inside ended with 0"), "{said}");
}

/// Both ends of the tunnel, in user-mode Linux.
struct Net {
    a: Namespace,
    gateway: Namespace,
    peer: Namespace,
    /// Between both. At the peer itself, what Linux has decrypted would be seen as well.
    net: Namespace,
    folder: PathBuf,
}

/// SPIs and keys of both directions.
#[derive(Clone, Copy)]
struct Tunnel {
    out: u32,
    back: u32,
}

impl Net {
    fn new(test: &str) -> Self {
        let namespace = |role: &str| Namespace::new(test, role);
        let folder = PathBuf::from("/run").join(test);
        fs::create_dir_all(&folder).expect("a folder");
        let net = Self {
            a: namespace("a"),
            gateway: namespace("g"),
            peer: namespace("p"),
            net: namespace("n"),
            folder,
        };
        net.net.ip(&format!(
            "link add m1 type veth peer name eth0 netns {}\naddr add 198.51.100.9/24 dev m1\nlink set m1 up",
            net.peer.name()
        ));
        net.net.set(&[("net.ipv4.ip_forward", "1")]);
        net.peer.ip(
            "link set lo up\naddr add 198.51.100.1/24 dev eth0\nlink set eth0 up\naddr add 10.2.0.1/32 dev lo\n\
             route add default via 198.51.100.9",
        );
        net
    }

    /// Starts brickmoon, and connects its ports.
    fn start(&self) -> Daemon<'_> {
        let config = "[daemon]\nslots = 4096\nhuge_pages = 'off'\n[[port]]\ndevice = 'tap:lan'\n[[port]]\ndevice = 'tap:wan'\n\
                      [ipsec]\nkernel = 'on'\n";
        let file = self.folder.join("config");
        fs::write(&file, config).expect("a file");
        let arguments = ["--config", &*file.display().to_string()];
        let daemon = Daemon::start_with(&self.gateway, &arguments).expect("there is a binary");
        let Self { a, gateway, net, .. } = self;
        gateway.ip(&format!("link set lan netns {}\nlink set wan netns {}", a.name(), net.name()));
        gateway.ip(
            "link set lo up\naddr add 10.1.0.1/24 dev bm-lan\nlink set bm-lan up\naddr add 192.0.2.1/24 dev bm-wan\n\
             link set bm-wan up\nroute add default via 192.0.2.9",
        );
        gateway.set(&[("net.ipv4.ip_forward", "1")]);
        a.ip("addr add 10.1.0.2/24 dev lan\nlink set lan up\nroute add default via 10.1.0.1");
        net.ip("addr add 192.0.2.9/24 dev wan\nlink set wan up");
        daemon
    }

    /// Adds the SAs of a tunnel at both ends.
    fn add(&self, tunnel: Tunnel, more: &str) {
        for (from, to, spi) in
            [("192.0.2.1", "198.51.100.1", tunnel.out), ("198.51.100.1", "192.0.2.1", tunnel.back)]
        {
            for end in [&self.gateway, &self.peer] {
                end.ip(&format!(
                    "xfrm state add src {from} dst {to} proto esp spi {spi} reqid 1 mode tunnel aead rfc4106(gcm(aes)) \
                     0x{spi:08x}0102030405060708090a0b0c0d0e0f10 128 replay-window 64 {more}"
                ));
            }
        }
    }

    /// Adds the policies of a tunnel between these addresses at both ends.
    fn policies(&self, [own, other]: [&str; 2]) {
        for (end, [near, far], [own, other]) in [
            (&self.gateway, ["10.1.0.0/24", "10.2.0.0/24"], [own, other]),
            (&self.peer, ["10.2.0.0/24", "10.1.0.0/24"], [other, own]),
        ] {
            let template =
                |from: &str, to: &str| format!("tmpl src {from} dst {to} proto esp reqid 1 mode tunnel");
            end.ip(&format!("xfrm policy add src {near} dst {far} dir out {}", template(own, other)));
            for direction in ["in", "fwd"] {
                end.ip(&format!(
                    "xfrm policy add src {far} dst {near} dir {direction} {}",
                    template(other, own)
                ));
            }
        }
    }

    /// Sends pings; how many were answered.
    fn pings(from: &Namespace, arguments: &str) -> u32 {
        let output = from.try_run(&format!("ping -q -W 2 {arguments}"));
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let answered = said.split(" received").next().and_then(|head| head.rsplit(", ").next()?.parse().ok());
        answered.unwrap_or_else(|| panic!("{said}"))
    }

    /// A number of an SA as `ip -s xfrm state` shows it, behind `name`.
    fn of_kernel(&self, spi: u32, name: &str) -> u64 {
        let all = format!("\n{}", self.gateway.run("ip -s xfrm state"));
        let sa = all
            .split("\nsrc ")
            .find(|sa| sa.contains(&format!("spi 0x{spi:08x}")))
            .expect("the SA")
            .to_owned();
        let at = sa.find(name).unwrap_or_else(|| panic!("{name}: {sa}"));
        let text = sa[at + name.len()..].trim_start();
        let digits: String = text.chars().take_while(char::is_ascii_hexdigit).collect();
        u64::from_str_radix(&digits, if name.ends_with("0x") { 16 } else { 10 }).expect("a number")
    }
}

fn sas(daemon: &Daemon<'_>) -> BTreeMap<String, serde_json::Value> {
    let shown = daemon.ask(&["show", "sas"]);
    let all = shown["sas"].as_array().cloned().unwrap_or_default();
    all.into_iter().map(|sa| (sa["direction"].as_str().unwrap_or_default().to_owned(), sa)).collect()
}

fn left_to_linux(daemon: &Daemon<'_>) -> usize {
    daemon.ask(&["status"])["firewall"]["linux_only"].as_array().map_or(0, Vec::len)
}

/// Checks what has crossed the net: nothing in clear, no number and no IV twice. Returns the numbers by SPI.
fn check_wire(
    socket: &PacketSocket,
    seen: &mut BTreeSet<(u32, u32)>,
    ivs: &mut BTreeSet<(u32, u64)>,
) -> usize {
    let mut count = 0;
    while let Some(captured) = socket.receive().expect("frames") {
        let frame = captured.frame;
        if frame.get(12..14) != Some(&[8, 0]) {
            continue;
        }
        assert!(frame[26] != 10 && frame[30] != 10, "in clear: {frame:02x?}");
        if frame[23] == 50 {
            let word = |at: usize| u32::from_be_bytes(*frame[at..].first_chunk().expect("ESP"));
            let iv = u64::from_be_bytes(*frame[42..].first_chunk().expect("an IV"));
            assert!(seen.insert((word(34), word(38))), "number {} of SPI {:#x} twice", word(38), word(34));
            assert!(ivs.insert((word(34), iv)), "IV {iv:#x} of SPI {:#x} twice", word(34));
            count += 1;
        }
    }
    count
}

/// SAs and policies by `ip xfrm`.
#[test]
#[ignore = "runs in user-mode Linux, by workers_use_the_sas_of_a_kernel_with_esp"]
fn sas_of_ip_xfrm() {
    let net = Net::new("kxfrm");
    let daemon = net.start();
    let (mut seen, mut ivs) = (BTreeSet::new(), BTreeSet::new());
    let wire = net.net.packet_socket("wan");
    let first = Tunnel { out: 0x1001, back: 0x1002 };
    net.policies(["192.0.2.1", "198.51.100.1"]);
    // Policies without an SA are Linux's.
    eventually("the policies are seen", || left_to_linux(&daemon) == 2);
    assert!(sas(&daemon).is_empty());
    net.add(first, "flag esn");
    eventually("workers apply the policies", || left_to_linux(&daemon) == 0 && sas(&daemon).len() == 2);
    assert_eq!(Net::pings(&net.a, "-c 20 -i 0.05 10.2.0.1"), 20);
    let shown = sas(&daemon);
    for direction in ["out", "in"] {
        assert!(shown[direction]["packets"].as_u64() >= Some(20), "{shown:?}");
    }
    assert!(check_wire(&wire, &mut seen, &mut ivs) >= 20);
    // The kernel takes all numbers of workers for used, and knows what was done.
    let sent = shown["out"]["sequence"].as_u64().expect("a number");
    assert!(net.of_kernel(first.out, "oseq 0x") > sent, "{}", net.of_kernel(first.out, "oseq 0x"));
    for spi in [first.out, first.back] {
        eventually("the kernel knows the bytes", || net.of_kernel(spi, "lifetime current:") >= 20 * 84);
    }

    // What is for this machine, and what it sends, stays Linux's; workers go on.
    for _ in 0..3 {
        assert_eq!(Net::pings(&net.gateway, "-c 1 -I 10.1.0.1 10.2.0.1"), 1);
        eventually("workers continue above Linux's numbers", || {
            Net::pings(&net.a, "-c 3 -i 0.05 10.2.0.1") == 3
        });
    }
    check_wire(&wire, &mut seen, &mut ivs);

    // A daemon that is killed leaves the SAs in the kernel, and the next one goes on with them.
    daemon.kill();
    eventually("the interfaces are gone", || !net.gateway.try_run("ip link show bm-wan").status.success());
    let daemon = net.start();
    let wire = net.net.packet_socket("wan");
    eventually("workers apply the policies again", || left_to_linux(&daemon) == 0 && sas(&daemon).len() == 2);
    eventually("pings pass", || Net::pings(&net.a, "-c 3 -i 0.05 10.2.0.1") == 3);
    assert!(sas(&daemon)["out"]["sequence"].as_u64() > Some(sent));
    assert!(check_wire(&wire, &mut seen, &mut ivs) >= 3);

    // An SA replaces another one while packets flow.
    let mut stream = net.a.command("ping");
    stream.args(["-q", "-i", "0.02", "-c", "150", "-W", "2", "10.2.0.1"]).stdout(Stdio::piped());
    let stream = stream.spawn().expect("there is ping");
    std::thread::sleep(Duration::from_millis(700));
    let second = Tunnel { out: 0x2001, back: 0x2002 };
    // Who receives has it first, as with IKE.
    net.peer.ip(&state(second.out, "192.0.2.1", "198.51.100.1"));
    net.gateway.ip(&state(second.back, "198.51.100.1", "192.0.2.1"));
    std::thread::sleep(Duration::from_millis(1100));
    net.gateway.ip(&state(second.out, "192.0.2.1", "198.51.100.1"));
    net.peer.ip(&state(second.back, "198.51.100.1", "192.0.2.1"));
    let said = String::from_utf8_lossy(&stream.wait_with_output().expect("it ends").stdout).into_owned();
    assert!(said.contains(" 150 received"), "{said}");
    for end in [&net.gateway, &net.peer] {
        end.ip(&format!(
            "xfrm state delete src 192.0.2.1 dst 198.51.100.1 proto esp spi {}\n\
             xfrm state delete src 198.51.100.1 dst 192.0.2.1 proto esp spi {}",
            first.out, first.back
        ));
    }
    eventually("the old ones are gone", || sas(&daemon).values().all(|sa| sa["spi"].as_u64() > Some(0x2000)));
    assert_eq!(Net::pings(&net.a, "-c 5 -i 0.05 10.2.0.1"), 5);
    check_wire(&wire, &mut seen, &mut ivs);

    // A machine that keeps sending on an SA that workers use gets it for good.
    let is_linuxs = || {
        let _own = Net::pings(&net.gateway, "-c 1 -W 1 -I 10.1.0.1 10.2.0.1");
        let _forwarded = Net::pings(&net.a, "-c 2 -i 0.2 -W 1 10.2.0.1");
        !sas(&daemon).contains_key("out")
    };
    assert!((0..40).any(|_| is_linuxs()), "{}", daemon.log());
    assert!(daemon.log().contains("this machine itself sends on it"), "{}", daemon.log());
    assert_eq!(Net::pings(&net.a, "-c 5 -i 0.05 10.2.0.1"), 5);
    check_wire(&wire, &mut seen, &mut ivs);

    // Without policies it is plain routing.
    for end in [&net.gateway, &net.peer] {
        end.ip("xfrm policy flush\nxfrm state flush");
    }
    net.net.ip("route add 10.1.0.0/24 via 192.0.2.1\nroute add 10.2.0.0/24 via 198.51.100.1");
    eventually("nothing is left", || sas(&daemon).is_empty() && left_to_linux(&daemon) == 0);
    assert_eq!(Net::pings(&net.a, "-c 3 -i 0.05 10.2.0.1"), 3);
    daemon.stop();
}

/// IPv4 in IPv6, with AES-CBC and HMAC-SHA-256, and packets of several lengths.
#[test]
#[ignore = "runs in user-mode Linux, by workers_use_the_sas_of_a_kernel_with_esp"]
fn sas_between_ipv6_addresses() {
    let net = Net::new("kxfrm6");
    let daemon = net.start();
    net.gateway.ip("addr add 2001:db8:1::1/64 dev bm-wan nodad\nroute add default via 2001:db8:1::9");
    net.gateway.set(&[("net.ipv6.conf.all.forwarding", "1")]);
    net.net.ip("addr add 2001:db8:1::9/64 dev wan nodad\naddr add 2001:db8:2::9/64 dev m1 nodad");
    net.net.set(&[("net.ipv6.conf.all.forwarding", "1")]);
    net.peer.ip("addr add 2001:db8:2::1/64 dev eth0 nodad\nroute add default via 2001:db8:2::9");
    let wire = net.net.packet_socket("wan");
    let ends = ["2001:db8:1::1", "2001:db8:2::1"];
    for end in [&net.gateway, &net.peer] {
        for ([from, to], spi) in [(ends, 0x3001), ([ends[1], ends[0]], 0x3002)] {
            end.ip(&format!(
                "xfrm state add src {from} dst {to} proto esp spi {spi} reqid 1 mode tunnel replay-window 32 flag af-unspec \
                 auth-trunc hmac(sha256) 0x{spi:08x}0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c 128 \
                 enc cbc(aes) 0x{spi:08x}0102030405060708090a0b0c"
            ));
        }
    }
    net.policies(ends);
    eventually("workers apply the policies", || left_to_linux(&daemon) == 0 && sas(&daemon).len() == 2);
    for size in [0, 1, 56, 1000, 1300] {
        eventually("pings pass", || Net::pings(&net.a, "-c 1 10.2.0.1") == 1);
        assert_eq!(Net::pings(&net.a, &format!("-c 10 -i 0.05 -s {size} 10.2.0.1")), 10, "{size}");
    }
    let shown = sas(&daemon);
    for direction in ["out", "in"] {
        assert_eq!(shown[direction]["suite"], "aes128-sha256");
        assert!(shown[direction]["packets"].as_u64() >= Some(50), "{shown:?}");
    }
    check_wire(&wire, &mut BTreeSet::new(), &mut BTreeSet::new());
    daemon.stop();
}

fn state(spi: u32, from: &str, to: &str) -> String {
    format!(
        "xfrm state add src {from} dst {to} proto esp spi {spi} reqid 1 mode tunnel aead rfc4106(gcm(aes)) \
         0x{spi:08x}0102030405060708090a0b0c0d0e0f10 128 replay-window 64"
    )
}

/// charon, unmodified and without anything preloaded.
struct Charon<'a> {
    child: Child,
    at: &'a Namespace,
    files: [PathBuf; 2],
}

impl Drop for Charon<'_> {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
        if std::thread::panicking() {
            eprintln!("{}", fs::read_to_string(&self.files[1]).unwrap_or_default());
        }
    }
}

impl<'a> Charon<'a> {
    fn start(net: &'a Net, is_peer: bool, more: &str) -> Self {
        let (at, name) = if is_peer { (&net.peer, "p") } else { (&net.gateway, "g") };
        let file = |what: &str| net.folder.join(format!("{what}-{name}"));
        let [vici, log, settings, connections] = ["vici", "log", "settings", "connections"].map(file);
        fs::write(
            &settings,
            format!(
                "charon-systemd {{\n load = random nonce openssl aes sha1 sha2 hmac gcm kdf drbg curve25519 kernel-netlink \
                 socket-default vici\n plugins {{ vici {{ socket = unix://{}\n }} }}\n filelog {{ log {{ path = {}\n \
                 default = 1\n knl = 2\n flush_line = yes\n }} }}\n}}\n",
                vici.display(),
                log.display()
            ),
        )
        .expect("a file");
        let (gateways, networks) = (["192.0.2.1", "198.51.100.1"], ["10.1.0.0/24", "10.2.0.0/24"]);
        let (own, other) = (usize::from(is_peer), usize::from(!is_peer));
        fs::write(
            &connections,
            format!(
                "connections {{ gw {{ version = 2\n local_addrs = {}\n remote_addrs = {}\n proposals = aes128-sha256-x25519\n \
                 local {{ auth = psk\n id = {0}\n }}\n remote {{ auth = psk\n id = {1}\n }}\n children {{ nets {{\n local_ts \
                 = {}\n remote_ts = {}\n esp_proposals = aes128gcm16-x25519-esn\n {more}\n }} }}\n }} }}\n\
                 secrets {{ ike-1 {{ id-1 = {0}\n id-2 = {1}\n secret = \"a secret of the test\"\n }} }}\n",
                gateways[own], gateways[other], networks[own], networks[other],
            ),
        )
        .expect("a file");
        let mut command = at.command("/usr/sbin/charon-systemd");
        command
            .env("STRONGSWAN_CONF", settings)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let charon = Self { child: command.spawn().expect("charon"), at, files: [vici, log] };
        eventually("charon answers", || charon.files[0].exists());
        charon.swanctl(&format!("--load-all --noprompt --file {}", connections.display()));
        charon
    }

    fn swanctl(&self, arguments: &str) -> String {
        self.at.run(&format!("swanctl {arguments} --uri unix://{}", self.files[0].display()))
    }
}

/// IKE: a trap, two rekeys with ESN, of which one by bytes that only workers have seen.
#[test]
#[ignore = "runs in user-mode Linux, by workers_use_the_sas_of_a_kernel_with_esp"]
fn sas_of_charon() {
    if !Path::new("/usr/sbin/charon-systemd").exists() {
        return report::skip("kernel_ipsec", "there is no charon; `tools/setup test` installs it");
    }
    let net = Net::new("kcharon");
    let daemon = net.start();
    let (mut seen, mut ivs) = (BTreeSet::new(), BTreeSet::new());
    let wire = net.net.packet_socket("wan");
    let _peer = Charon::start(&net, true, "");
    let own = Charon::start(
        &net,
        false,
        "start_action = trap\n rekey_bytes = 30000\n rand_bytes = 0\n life_bytes = 3000000",
    );
    eventually("the trap brings the tunnel up", || Net::pings(&net.a, "-c 3 -i 0.2 10.2.0.1") == 3);
    eventually("workers have the SAs", || sas(&daemon).len() == 2 && left_to_linux(&daemon) == 0);
    let first = sas(&daemon)["out"]["spi"].clone();
    assert_eq!(Net::pings(&net.a, "-c 50 -i 0.02 10.2.0.1"), 50);
    own.swanctl("--rekey --child nets");
    assert_eq!(Net::pings(&net.a, "-c 50 -i 0.02 10.2.0.1"), 50);
    eventually("the keys are others", || sas(&daemon).get("out").is_some_and(|sa| sa["spi"] != first));
    let second = sas(&daemon)["out"]["spi"].clone();
    // 100 times 1,028 bytes are more than the 30,000 of the lifetime.
    assert_eq!(Net::pings(&net.a, "-c 100 -i 0.02 -s 1000 10.2.0.1"), 100);
    eventually("bytes of workers lead to another rekey", || {
        sas(&daemon).get("out").is_some_and(|sa| sa["spi"] != second)
    });
    assert_eq!(Net::pings(&net.a, "-c 20 -i 0.02 10.2.0.1"), 20);
    check_wire(&wire, &mut seen, &mut ivs);
    own.swanctl("--terminate --ike gw");
    eventually("the SAs are gone", || sas(&daemon).is_empty());
    drop(own);
    daemon.stop();
}
