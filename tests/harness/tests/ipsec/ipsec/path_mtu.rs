//! A way between the gateways that is narrower than their own links: routers on it tell so, about ESP packets.

use bm_tests::daemon::{Daemon, eventually};

use super::Net;

/// The largest inner packet of AES-GCM in an ESP packet of 1,300 bytes over IPv4.
const INNER: usize = ((1300 - 20 - 8 - 8 - 16) & !3) - 2;
/// Headers of IPv4 and ICMP, which `ping` does not count.
const HEADERS: usize = 28;

#[test]
fn sources_learn_the_mtu_of_a_narrow_way() {
    let net = Net::new("esp-mtu");
    net.net.ip("link set m2 mtu 1300");
    let Some(_far) = net.start(1, "") else { return };
    // Without inbound policies, workers get ESP and such errors alone.
    for has_inbound in [true, false] {
        let file = net.write(0, "", "");
        if !has_inbound {
            let config = std::fs::read_to_string(&file).expect("a configuration");
            let end = config.rfind("[[ipsec.policy]]").expect("the inbound policy comes last");
            std::fs::write(&file, &config[..end]).expect("a folder for configurations");
        }
        let Some(daemon) = Daemon::start_with(&net.gateways[0], &["--config", &file.display().to_string()])
        else {
            return;
        };
        let too_large = format!("ping -n -c 1 -W 1 -M do -s {} 10.2.0.2", INNER + 1 - HEADERS);
        let told = format!("mtu = {INNER}");
        // The first one that is lost makes the router on the way say why.
        eventually("the host is told", || {
            let output = net.a.try_run(&too_large);
            String::from_utf8_lossy(&output.stdout).contains(&told)
        });
        let sas = daemon.ask(&["show", "sas"]);
        let mtus: Vec<_> = sas["sas"].as_array().into_iter().flatten().map(|sa| &sa["path_mtu"]).collect();
        assert_eq!(mtus, [&serde_json::json!(1300), &serde_json::Value::Null]);
        net.a.run(&format!("ping -n -c 1 -W 9 -M do -s {} 10.2.0.2", INNER - HEADERS));
        net.a.ip("route flush cache");
        daemon.stop();
    }
}
