use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

/// A file that goes away by itself.
struct Scratch(PathBuf);

impl Scratch {
    fn new(bytes: &[u8]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("bm-testbed-rib-{}-{number}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn read_bytes(bytes: &[u8]) -> Result<Rib, RibError> {
    read(&[&Scratch::new(bytes).0])
}

fn shown(rib: &Rib) -> Vec<String> {
    let ipv4 = rib.table.ipv4.iter().map(|route| format!("{} {}", route.prefix, route.next_hop));
    let ipv6 = rib.table.ipv6.iter().map(|route| format!("{} {}", route.prefix, route.next_hop));
    ipv4.chain(ipv6).collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn bzip2(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

const TEXT: &str = "\
# a table
198.51.100.0/24 7
192.0.2.0/25\t10.0.0.9   # another
2001:db8::/32 fd00::1

192.0.2.0/24
198.51.100.0/24 8
";

#[test]
fn reads_lines_of_both_families() {
    let rib = read_bytes(TEXT.as_bytes()).unwrap();
    assert_eq!(shown(&rib), ["192.0.2.0/24 1", "192.0.2.0/25 1", "198.51.100.0/24 7", "2001:db8::/32 2"]);
    assert_eq!(rib.next_hops, ["10.0.0.9".parse::<IpAddr>().unwrap(), "fd00::1".parse().unwrap()]);
    assert_eq!((rib.duplicates, rib.skipped), (1, 0));
}

#[test]
fn compression_changes_nothing() {
    let plain = read_bytes(TEXT.as_bytes()).unwrap();
    assert_eq!(read_bytes(&gzip(TEXT.as_bytes())).unwrap(), plain);
    assert_eq!(read_bytes(&bzip2(TEXT.as_bytes())).unwrap(), plain);
    // Two streams in one file, as parallel compressors write them.
    let halves = [gzip(&TEXT.as_bytes()[..40]), gzip(&TEXT.as_bytes()[40..])].concat();
    assert_eq!(read_bytes(&halves).unwrap(), plain);
}

#[test]
fn errors_have_line_and_reason() {
    for (text, want) in [
        ("192.0.2.0/24\n192.0.2.1/24 1\n", "line 2: \"192.0.2.1/24\": has bits past its length"),
        ("192.0.2.0/33\n", "line 1: \"192.0.2.0/33\": not a prefix length"),
        ("\n\n2001:db8::g/32\n", "line 3: \"2001:db8::g/32\": not an address"),
        ("192.0.2.0\n", "line 1: \"192.0.2.0\": a prefix needs its length, as in 192.0.2.0/24"),
        ("192.0.2.0/24 0", "line 1: \"0\": a next hop is a number from 1 to 65535 or an address"),
        ("192.0.2.0/24 70000", "line 1: \"70000\": a next hop is a number from 1 to 65535 or an address"),
        ("a route\n", "line 1: \"a\": a prefix needs its length, as in 192.0.2.0/24"),
        ("192.0.2.0/24 via 1", "line 1: \"via\": a next hop is a number from 1 to 65535 or an address"),
        ("192.0.2.0/24 1 2", "line 1: \"2\": expected only PREFIX/LENGTH [NEXT_HOP]"),
        ("", "no routes: give an MRT table dump (TABLE_DUMP_V2) or lines of PREFIX/LENGTH [NEXT_HOP]"),
    ] {
        let file = Scratch::new(text.as_bytes());
        let error = read(&[&file.0]).unwrap_err().to_string();
        assert_eq!(error, format!("{}: {want}", file.0.display()));
    }
    let absent = read(&["/nonexistent/rib.txt"]).unwrap_err().to_string();
    assert!(absent.starts_with("/nonexistent/rib.txt: No such file"), "{absent}");
}

fn record(kind: u16, subtype: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x66, 0, 0, 0];
    bytes.extend(kind.to_be_bytes());
    bytes.extend(subtype.to_be_bytes());
    bytes.extend((body.len() as u32).to_be_bytes());
    bytes.extend(body);
    bytes
}

/// Two peers: 203.0.113.1 with a short AS number, 2001:db8::9 with a long one. The collector is "rc".
fn peer_index_table() -> Vec<u8> {
    let mut body = vec![192, 0, 2, 1, 0, 2, b'r', b'c', 0, 2];
    body.extend([0, 1, 1, 1, 1, 203, 0, 113, 1, 0xfd, 0xe8]);
    body.extend([3, 2, 2, 2, 2]);
    body.extend([0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 1, 0, 0]);
    record(13, 1, &body)
}

fn entry(peer: u16, path_id: Option<u32>, attributes: &[u8]) -> Vec<u8> {
    let mut bytes = peer.to_be_bytes().to_vec();
    bytes.extend([0x66, 0, 0, 0]);
    bytes.extend(path_id.map(u32::to_be_bytes).into_iter().flatten());
    bytes.extend((attributes.len() as u16).to_be_bytes());
    bytes.extend(attributes);
    bytes
}

fn rib_record(subtype: u16, length: u8, prefix: &[u8], entries: &[Vec<u8>]) -> Vec<u8> {
    let mut body = vec![0, 0, 0, 1, length];
    body.extend(prefix);
    body.extend((entries.len() as u16).to_be_bytes());
    body.extend(entries.concat());
    record(13, subtype, &body)
}

/// ORIGIN igp; AS_PATH sequence of three, with a length of two bytes; NEXT_HOP 10.0.0.3.
const LONG_PATH: &[u8] = &[
    0x40, 1, 1, 0, 0x50, 2, 0, 14, 2, 3, 0, 0, 0xfd, 0xe8, 0, 0, 0xfd, 0xe9, 0, 0, 0xfd, 0xea, 0x40, 3, 4,
    10, 0, 0, 3,
];
/// AS_PATH of a sequence of one and a set of two; NEXT_HOP 10.0.0.2.
const SHORT_PATH: &[u8] =
    &[0x40, 2, 16, 2, 1, 0, 0, 0xfd, 0xe8, 1, 2, 0, 0, 0xfd, 0xe9, 0, 0, 0xfd, 0xea, 0x40, 3, 4, 10, 0, 0, 2];
/// MP_REACH_NLRI as dumps shorten it: a global and a link-local next hop.
const REACHED_SHORT: &[u8] = &[
    0x80, 14, 33, 32, 0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xfe, 0x80, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 1,
];
/// MP_REACH_NLRI in full: IPv6, unicast, next hop 2001:db8::2, reserved byte, no prefix.
const REACHED_FULL: &[u8] =
    &[0x80, 14, 21, 0, 2, 1, 16, 0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0];

fn dump() -> Vec<u8> {
    [
        peer_index_table(),
        rib_record(2, 24, &[192, 0, 2], &[entry(0, None, LONG_PATH), entry(1, None, SHORT_PATH)]),
        rib_record(2, 0, &[], &[entry(0, None, LONG_PATH)]),
        rib_record(8, 23, &[198, 51, 100], &[entry(0, Some(7), SHORT_PATH)]),
        rib_record(4, 32, &[0x20, 1, 0x0d, 0xb8], &[entry(1, None, REACHED_SHORT)]),
        rib_record(10, 33, &[0x20, 1, 0x0d, 0xb8, 0x80], &[entry(1, Some(1), REACHED_FULL)]),
        rib_record(4, 20, &[0x2a, 0, 0x10], &[entry(1, None, &[])]),
        rib_record(3, 24, &[224, 0, 0], &[]),
        record(16, 4, &[1, 2, 3]),
    ]
    .concat()
}

#[test]
fn reads_table_dumps() {
    let rib = read_bytes(&dump()).unwrap();
    assert_eq!(
        shown(&rib),
        [
            "0.0.0.0/0 2",
            "192.0.2.0/24 1",
            "198.51.100.0/23 1",
            "2001:db8::/32 3",
            "2001:db8:8000::/33 4",
            "2a00:1000::/20 5",
        ]
    );
    let next_hops: Vec<String> = rib.next_hops.iter().map(IpAddr::to_string).collect();
    assert_eq!(next_hops, ["10.0.0.2", "10.0.0.3", "2001:db8::1", "2001:db8::2", "2001:db8::9"]);
    assert_eq!((rib.duplicates, rib.skipped), (0, 2));
    assert_eq!(read_bytes(&bzip2(&dump())).unwrap(), rib);
}

#[test]
fn joins_files_of_different_kinds() {
    let (text, dump) = (Scratch::new(TEXT.as_bytes()), Scratch::new(&gzip(&dump())));
    let rib = read(&[&text.0, &dump.0]).unwrap();
    assert_eq!((rib.table.ipv4.len(), rib.table.ipv6.len(), rib.duplicates), (5, 3, 3));
}

#[test]
fn errors_have_record_and_reason() {
    let peers = peer_index_table();
    let at = peers.len();
    let after = |record: Vec<u8>| [peers.clone(), record].concat();
    for (bytes, want) in [
        (
            after(rib_record(2, 33, &[1, 2, 3, 4, 5], &[])),
            format!("MRT record at byte {at}: prefix length 33 is too large"),
        ),
        (
            after(rib_record(2, 8, &[1], &[])),
            format!("MRT record at byte {at}: it has a prefix without an entry"),
        ),
        (
            after(rib_record(2, 8, &[1], &[entry(2, None, &[])])),
            format!("MRT record at byte {at}: peer 2 is not among the 2 of the index table"),
        ),
        (
            after(rib_record(2, 8, &[1], &[entry(0, None, &[0x40, 3, 5, 1, 2, 3, 4, 5])])),
            format!("MRT record at byte {at}: it has a next hop of 5 bytes"),
        ),
        (
            after(record(13, 2, &[0, 0, 0, 1, 24, 10])),
            format!("MRT record at byte {at}: it ends before its last field"),
        ),
        (
            dump()[..at + 20].to_vec(),
            format!("MRT record at byte {at}: the file ends in the middle of it: fetch the dump again"),
        ),
        (
            b"\x7fELF\x02\x01\x01\x00 all of this is a program".to_vec(),
            "MRT record at byte 0: type 513: this is neither text nor an MRT dump".into(),
        ),
    ] {
        let error = read_bytes(&bytes).unwrap_err();
        assert!(error.to_string().ends_with(&want), "{error}, wanted {want}");
    }
}

/// Bytes from a seed, cut and changed anywhere: an error or a table, never a panic.
#[test]
fn survives_damage() {
    let mut random = crate::random::Random::new(crate::random::Seed(1));
    let whole = dump();
    for _ in 0..20_000 {
        let mut bytes = whole.clone();
        for _ in 0..1 + random.below(4) {
            let place = random.below(bytes.len());
            bytes[place] = random.next_u64() as u8;
        }
        bytes.truncate(random.below(bytes.len()) + 1);
        let _ = mrt::read(&bytes[..], &mut RibBuilder::default());
        let _ = text::read(&bytes[..], &mut RibBuilder::default());
    }
}
