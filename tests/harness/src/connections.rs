//! The table of connection tracking, without the program `conntrack`.
//!
//! A connection outlives the rules under which it began: NAT, for one, is decided by its first packet. So tests that
//! try one ruleset after the other in the same namespace begin each with an empty table.

use crate::netns::Namespace;
use crate::sys;
use std::io::{Error, Read, Result, Write};
use std::net::SocketAddrV4;

/// `NFNL_SUBSYS_CTNETLINK` with `IPCTNL_MSG_CT_NEW` and `_DELETE` of `<linux/netfilter/nfnetlink*.h>`.
const NEW: u16 = 1 << 8;
const DELETE: u16 = 1 << 8 | 2;
const FLAGS: u16 = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
/// `struct nlmsghdr` and `struct nfgenmsg`.
const LENGTH: usize = 16 + 4;
/// Attributes with others inside.
const NESTED: u16 = libc::NLA_F_NESTED as u16;

/// Deletes all connections of a namespace, of both families.
pub fn forget(namespace: &Namespace) {
    // Without a connection, and of no family: all of them.
    let done = namespace.within(|| request(DELETE, 0, &[]));
    done.unwrap_or_else(|error| panic!("the connections of {}: {error}", namespace.name()));
}

/// Sets the mark of a TCP connection of IPv4, known by its first packet's ends.
pub fn mark(namespace: &Namespace, from: SocketAddrV4, to: SocketAddrV4, mark: u32) {
    let addresses = [attribute(1, &from.ip().octets()), attribute(2, &to.ip().octets())].concat();
    let number = attribute(1, &[libc::IPPROTO_TCP as u8]);
    let ports = [attribute(2, &from.port().to_be_bytes()), attribute(3, &to.port().to_be_bytes())].concat();
    let protocol = [number, ports].concat();
    let tuple = [attribute(1 | NESTED, &addresses), attribute(2 | NESTED, &protocol)].concat();
    let body = [attribute(1 | NESTED, &tuple), attribute(8, &mark.to_be_bytes())].concat();
    let done = namespace.within(|| request(NEW, libc::AF_INET as u8, &body));
    done.unwrap_or_else(|error| panic!("mark a connection of {}: {error}", namespace.name()));
}

/// `struct nlattr` with a value, which is padded to four bytes.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = (4 + value.len() as u16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn request(kind: u16, family: u8, body: &[u8]) -> Result<()> {
    let mut socket = sys::netlink_socket(libc::NETLINK_NETFILTER)?;
    let mut request = ((LENGTH + body.len()) as u32).to_ne_bytes().to_vec();
    request.extend(kind.to_ne_bytes());
    request.extend(FLAGS.to_ne_bytes());
    request.resize(LENGTH, 0);
    request[16] = family;
    request.extend(body);
    socket.write_all(&request)?;
    // The kernel answers before the send returns; `struct nlmsgerr` begins with the error, 0 for success.
    let mut answer = [0; 1024];
    let read = socket.read(&mut answer)?;
    match i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]) {
        0 if read >= LENGTH => Ok(()),
        code => Err(Error::from_raw_os_error(-code)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_connection_is_left() {
        if !sys::is_root() || !crate::command::has("nft") {
            return crate::report::skip("connections", "needs root for a network namespace, and nft");
        }
        let namespace = Namespace::new("connections", "rtr");
        namespace.ip("link set lo up\n");
        let rules = "table inet t { chain c { type filter hook output priority 0; ct state new accept; }; }";
        namespace.feed("nft -f -", rules).expect("a ruleset");
        let tracked = || namespace.setting("net.netfilter.nf_conntrack_count");
        namespace.within(|| {
            let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
            socket.send_to(b"hello", "127.0.0.1:9").expect("it is sent");
        });
        assert_eq!(tracked(), "1");
        forget(&namespace);
        assert_eq!(tracked(), "0");
        // There is nothing to delete.
        forget(&namespace);
    }
}
