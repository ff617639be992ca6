//! Reads `[cluster]`: this node, the members, links to them, external ports.

use super::switches::is_interface;
use super::*;
use bm_cluster::{
    COPY, Endpoint, EtcdSettings, ExternalPort, FabricLink, Member, PREFIX, ROOM_WITH_STORE, SPEED, Settings,
    StoreSettings,
};
use bm_vlb::address::{Node, Port as Number};
use bm_vlb::membership::Epoch;

/// The longest name of a node.
const NAME_MAX: usize = 63;

/// Reads the section; `ports` are the ports of the router, which include the external ports but no fabric link.
pub(super) fn cluster(section: &mut Section<'_, '_>, ports: &[Port]) -> Settings {
    let mut epoch = 0;
    let mut settings = Settings::new(name(section, "name", "name = \"a\"").unwrap_or_default());
    section.number("epoch", 0..=255, &mut epoch);
    settings.epoch = Epoch::new(epoch as u8);
    settings.read(section);
    let before = section.report.problems.len();
    let mut kept = None;
    section.read("store", "[cluster.store]", |part| kept = store(part));
    settings.store = kept;
    for key in ["epoch", "member"].into_iter().filter(|_| settings.store.is_some()) {
        if section.table.get(key).is_some() {
            section.report(key, ProblemKind::Cluster(bm_cluster::Problem::WithStore(key)));
        }
    }
    for (_, table) in section.tables("member", "[[cluster.member]] with name and node below it") {
        let mut part = section.element("[[cluster.member]]", table);
        settings.members.extend(member(&mut part));
        part.finish();
    }
    for (_, table) in section.tables("fabric", "[[cluster.fabric]] with device and peer below it") {
        let mut part = section.element("[[cluster.fabric]]", table);
        settings.links.extend(fabric(&mut part, ports));
        part.finish();
    }
    for (_, table) in section.tables("port", "[[cluster.port]] with device and number below it") {
        let mut part = section.element("[[cluster.port]]", table);
        settings.ports.extend(external(&mut part));
        part.finish();
    }
    // Without other problems, or a missing table would be reported twice.
    if section.report.problems.len() == before && !settings.name.is_empty() {
        let at = section.table.keys().map(|key| key.span().start).min().unwrap_or(0);
        for problem in settings.problems() {
            section.report.add(at, ProblemKind::Cluster(problem));
        }
    }
    settings
}

/// Reads `[cluster.store]`.
fn store(section: &mut Section<'_, '_>) -> Option<StoreSettings> {
    let example = "[\"https://192.0.2.1:2379\"]";
    let mut endpoints = Vec::new();
    match section.texts("etcd", example) {
        Some((at, texts)) => {
            for text in &texts {
                match text.parse::<Endpoint>() {
                    Ok(endpoint) => endpoints.push(endpoint),
                    Err(_) => {
                        section.invalid("etcd", at, text, "write https://HOST:PORT or http://HOST:PORT")
                    }
                }
            }
            if texts.is_empty() {
                section.invalid("etcd", at, "[]", "name at least one endpoint of etcd");
            }
        }
        None if section.table.get("etcd").is_some() => {}
        None => section.missing("etcd", "etcd = [\"https://192.0.2.1:2379\"]"),
    }
    let mut prefix = PREFIX.to_string();
    if let Some((at, text)) = section.text("prefix", "\"/brickmoon/\"") {
        if text.len() < 2 || !text.ends_with('/') || !text.is_ascii() {
            section.invalid("prefix", at, text, "write a name that ends in /, such as /brickmoon/");
        }
        prefix = text.into();
    }
    let mut node = None;
    section.number_or("node", "auto", 0..=u64::from(ROOM_WITH_STORE) - 1, &mut node);
    let node = node.and_then(|node| Node::new(node as u16));
    let etcd = access(section, endpoints);
    let mut store = StoreSettings { etcd, prefix, node, copy: COPY.into() };
    store.read(section);
    Some(store)
}

/// Reads the credentials for etcd, and the CA certificates.
fn access(section: &mut Section<'_, '_>, endpoints: Vec<Endpoint>) -> EtcdSettings {
    let files = [
        ("ca", "\"/etc/brickmoon/etcd-ca.pem\""),
        ("cert", "\"/etc/brickmoon/etcd-cert.pem\""),
        ("key", "\"/etc/brickmoon/etcd-key.pem\""),
        ("password_file", "\"/etc/brickmoon/etcd-password\""),
    ];
    let [ca, cert, key, password_file] =
        files.map(|(key, example)| section.text(key, example).map(|(_, text)| PathBuf::from(text)));
    let user = section.text("user", "\"brickmoon\"").map(|(_, text)| text.to_string());
    if endpoints.iter().any(|endpoint| endpoint.tls) && ca.is_none() {
        section.missing("ca", "ca = \"/etc/brickmoon/etcd-ca.pem\"");
    }
    for (one, other, example) in [
        (cert.is_some(), key.is_some(), ("key", "key = \"/etc/brickmoon/etcd-key.pem\"")),
        (key.is_some(), cert.is_some(), ("cert", "cert = \"/etc/brickmoon/etcd-cert.pem\"")),
        (
            user.is_some(),
            password_file.is_some(),
            ("password_file", "password_file = \"/etc/brickmoon/etcd-password\""),
        ),
        (password_file.is_some(), user.is_some(), ("user", "user = \"brickmoon\"")),
    ] {
        if one && !other {
            section.missing(example.0, example.1);
        }
    }
    EtcdSettings { endpoints, ca, cert, key, user, password_file }
}

/// The name of a node.
fn name(section: &mut Section<'_, '_>, key: &'static str, example: &'static str) -> Option<String> {
    let (at, name) = section.required(key, example)?;
    if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(|c| is_plain(c) || c == '.') {
        section.invalid(key, at, name, "use 1 to 63 letters, digits, `-`, `_` or `.`");
        return None;
    }
    Some(name.into())
}

/// The name of an interface.
fn device(section: &mut Section<'_, '_>, example: &'static str) -> Option<(usize, String)> {
    let (at, device) = section.required("device", example)?;
    if !is_interface(device) {
        section.invalid("device", at, device, "must be the name of an interface");
        return None;
    }
    Some((at, device.into()))
}

/// A required number.
fn number(section: &mut Section<'_, '_>, key: &'static str, example: &'static str, most: u64) -> Option<u32> {
    let value = section.value(key);
    if value.is_none() {
        section.missing(key, example);
    }
    section.in_range(key, value, 0..=most, "a whole number", example.into()).map(|number| number as u32)
}

fn member(section: &mut Section<'_, '_>) -> Option<Member> {
    let name = name(section, "name", "name = \"b\"");
    let node = number(section, "node", "node = 1", u64::from(Node::COUNT) - 1);
    Some(Member { name: name?, node: Node::new(node? as u16)? })
}

fn fabric(section: &mut Section<'_, '_>, ports: &[Port]) -> Option<FabricLink> {
    let mut link = FabricLink { device: String::new(), peer: String::new(), speed: SPEED };
    link.read(section);
    let device = device(section, "device = \"fab1\"");
    let peer = name(section, "peer", "peer = \"b\"");
    let (at, device) = device?;
    if ports.iter().any(|port| port.device.interface() == Some(&device)) {
        let hint = "it is also a [[port]] of the router: remove that; a fabric link must not be one";
        section.invalid("device", at, &device, hint);
    }
    Some(FabricLink { device, peer: peer?, ..link })
}

fn external(section: &mut Section<'_, '_>) -> Option<ExternalPort> {
    let device = device(section, "device = \"eth0\"");
    let number = number(section, "number", "number = 0", u64::from(Number::COUNT) - 1);
    let mut port = ExternalPort::default();
    port.read(section);
    Some(ExternalPort { device: device?.1, number: Number::new(number? as u8)?, ..port })
}
