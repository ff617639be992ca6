//! Links: of the router, beside its ports, and at their other ends.

use super::Undoable;
use crate::model::beds;
use crate::model::step::{Kind, Step, Tool};
use bm_tests::lab::{Ends, Lab, SIDES, Side};
use bm_tests::rulesets::Random;

/// Changes of ports.
pub(super) fn link(random: &mut Random) -> Undoable {
    let side = random.choice(&SIDES);
    let name = side.router();
    let usual = if side == Side::Low { 1300 } else { 1500 };
    let one = |text: String, undo: String| (Step::ip(Kind::Link, text), vec![Step::ip(Kind::Link, undo)]);
    match random.below(9) {
        // IPv6 addresses and routes are gone with the link, and the routes of both families.
        0 | 1 => one(format!("link set {name} down"), Lab::port_lines(side, Ends::Silent)),
        2 | 3 => {
            let mtu = random.choice(&[1280, 1400, 1492, 1300, 1000, 68, 1500]);
            one(
                format!("link set {name} mtu {mtu}"),
                format!("link set {name} mtu {usual}\n{}", Lab::port_lines(side, Ends::Silent)),
            )
        }
        4 => {
            let mac = random.choice(&["02:00:00:00:00:aa", "02:00:00:00:00:ab"]);
            // All neighbors are gone with the address.
            let undo =
                format!("link set {name} address {}\n{}", side.mac(1), Lab::port_lines(side, Ends::Silent));
            one(format!("link set {name} address {mac}"), undo)
        }
        5 => one(format!("link set {name} name {name}x"), format!("link set {name}x name {name}")),
        6 => one(
            format!("link property add dev {name} altname {name}.alt"),
            format!("link property del dev {name} altname {name}.alt"),
        ),
        7 => {
            let text = format!(
                "link set {name} {}",
                random.choice(&["promisc on", "allmulticast on", "arp off", "multicast off"])
            );
            // All neighbors are gone when ARP is off, and when it is on again.
            let usual = format!("link set {name} promisc off allmulticast off arp on multicast on");
            one(text, format!("{usual}\n{}", Lab::port_lines(side, Ends::Silent)))
        }
        _ => {
            let far = if side == Side::Src { "@src" } else { "@snk" };
            let up = Step::ip(Kind::Link, format!("link set {0} up arp off", side.host()));
            // The other end first, so that the port has a carrier when its routes are added.
            let undo = vec![
                Step::ip(Kind::Link, Lab::wire_line(side, far).trim_end()),
                if side == Side::Src { up.at_source() } else { up.at_sink() },
                Step::by(Kind::Link, Tool::Set, beds::calm(side)),
                Step::ip(Kind::Link, Lab::port_lines(side, Ends::Silent).trim_end()),
            ];
            (Step::ip(Kind::Link, format!("link del {name}")), undo)
        }
    }
}

/// Devices above and beside ports.
pub(super) fn device(random: &mut Random) -> Undoable {
    let name = random.choice(&SIDES).router();
    let made = random.choice(&[
        "link add mv0 link PORT address 02:00:00:00:00:bb type macvlan mode bridge\nlink set mv0 up",
        "link add mv0 link PORT address 02:00:00:00:00:bb type macvlan mode private\nlink set mv0 up",
        "link add mv0 link PORT address 02:00:00:00:00:bc type macvlan mode source macaddr set 02:00:00:00:00:02\nlink set mv0 up",
        "link add mv0 link PORT type macvlan mode passthru\nlink set mv0 up",
        "link add mv0 link PORT netns @snk type macvlan mode bridge",
        "link add mv0 link PORT netns @snk type macvlan mode source macaddr set 02:00:00:00:00:02",
        "link add mv0 link PORT netns @snk type macvlan mode passthru",
        "link add mv0 address 02:00:00:00:00:bb type bridge\nlink set mv0 up\nlink set PORT master mv0",
        "link add mv0 address 02:00:00:00:00:bb type bridge\nlink set mv0 up\naddr add 10.21.0.1/24 dev mv0\nroute replace 10.20.1.0/24 dev mv0",
        "link add mv0 address 02:00:00:00:00:bb type ifb\nlink set mv0 up\naddr add 10.21.0.1/24 dev mv0",
        "link add mv0 address 02:00:00:00:00:bb type vxlan id 5 dstport 4789 local 198.51.100.1 remote 198.51.100.2\nlink set mv0 up\nroute replace 10.20.1.0/24 dev mv0",
        "link add mv0 address 02:00:00:00:00:bb type veth peer name mv1 address 02:00:00:00:00:bd\nlink set mv0 up\nlink set mv1 up\nroute replace 10.20.1.0/24 dev mv0",
        "tuntap add mv0 mode tap\nlink set mv0 address 02:00:00:00:00:bb up\nroute replace 10.20.1.0/24 dev mv0",
    ]);
    let text = made.replace("PORT", name);
    let undo = vec![
        Step::ip(Kind::Device, format!("link set {name} nomaster")),
        Step::ip(Kind::Device, "link del mv0"),
        Step::ip(Kind::Device, "link del mv0").at_sink(),
    ];
    (Step::ip(Kind::Device, text), undo)
}

/// A port that goes to another namespace and comes back.
pub(super) fn moved(random: &mut Random) -> Undoable {
    let side = random.choice(&[Side::Low, Side::Snk]);
    let name = side.router();
    let back = Step::ip(Kind::Moved, format!("link set {name} netns @rtr")).at_sink();
    let lines = Step::ip(Kind::Moved, Lab::port_lines(side, Ends::Silent));
    (Step::ip(Kind::Moved, format!("link set {name} netns @snk")), vec![back, lines])
}

/// The other end of a link.
pub(super) fn far_end(random: &mut Random) -> Undoable {
    let side = random.choice(&[Side::Low, Side::Snk]);
    let name = side.host();
    let (usual, mac) = (if side == Side::Low { 1300 } else { 1500 }, side.mac(2));
    let far = |text: String| Step::by(Kind::FarEnd, Tool::Ip, text).at_sink();
    match random.below(4) {
        0 | 1 => (far(format!("link set {name} down")), vec![far(format!("link set {name} up"))]),
        2 => {
            let mtu = random.choice(&[1600, 1400, 9000]);
            (far(format!("link set {name} mtu {mtu}")), vec![far(format!("link set {name} mtu {usual}"))])
        }
        _ => (
            far(format!("link set {name} address 02:00:00:00:00:ee")),
            vec![far(format!("link set {name} address {mac}"))],
        ),
    }
}
