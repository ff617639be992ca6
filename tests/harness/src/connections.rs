//! The table of connection tracking, without the program `conntrack`.
//!
//! A connection outlives the rules under which it began: NAT, for one, is decided by its first packet. So tests that
//! try one ruleset after the other in the same namespace begin each with an empty table.

use crate::netns::Namespace;
use crate::sys;
use std::io::{Error, Read, Result, Write};

/// `NFNL_SUBSYS_CTNETLINK` and `IPCTNL_MSG_CT_DELETE` of `<linux/netfilter/nfnetlink*.h>`.
const DELETE: u16 = 1 << 8 | 2;
const FLAGS: u16 = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
/// `struct nlmsghdr` and `struct nfgenmsg`.
const LENGTH: u32 = 16 + 4;

/// Deletes all connections of a namespace, of both families.
pub fn forget(namespace: &Namespace) {
    let done: Result<()> = namespace.within(|| {
        let mut socket = sys::netlink_socket(libc::NETLINK_NETFILTER)?;
        let mut request = LENGTH.to_ne_bytes().to_vec();
        request.extend(DELETE.to_ne_bytes());
        request.extend(FLAGS.to_ne_bytes());
        // Without a connection, and of no family: all of them.
        request.resize(LENGTH as usize, 0);
        socket.write_all(&request)?;
        // The kernel answers before the send returns; `struct nlmsgerr` begins with the error, 0 for success.
        let mut answer = [0; 64];
        socket.read_exact(&mut answer[..LENGTH as usize])?;
        match i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]) {
            0 => Ok(()),
            code => Err(Error::from_raw_os_error(-code)),
        }
    });
    done.unwrap_or_else(|error| panic!("the connections of {}: {error}", namespace.name()));
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
