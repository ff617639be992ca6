//! A raw socket on one interface, which gives frames with the tags that the kernel has taken off them.

use std::ffi::CString;
use std::mem::{size_of, size_of_val, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const PACKET_AUXDATA: libc::c_int = 8;
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

pub struct PacketSocket(OwnedFd);

impl PacketSocket {
    pub fn open(interface: &str) -> Self {
        let name = CString::new(interface).unwrap();
        let protocol = (libc::ETH_P_ALL as u16).to_be();
        // SAFETY: passes numbers, structures of numbers that outlive the calls, and a string that ends in zero.
        unsafe {
            let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
            let fd = libc::socket(libc::AF_PACKET, kind, i32::from(protocol));
            assert!(fd >= 0, "{}", std::io::Error::last_os_error());
            let socket = OwnedFd::from_raw_fd(fd);
            let mut address: libc::sockaddr_ll = zeroed();
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_protocol = protocol;
            address.sll_ifindex = libc::if_nametoindex(name.as_ptr()) as i32;
            assert_ne!(address.sll_ifindex, 0, "{interface}");
            let len = size_of_val(&address) as u32;
            assert_eq!(libc::bind(fd, std::ptr::from_ref(&address).cast(), len), 0);
            for option in [PACKET_AUXDATA, PACKET_IGNORE_OUTGOING] {
                let on: libc::c_int = 1;
                let at = std::ptr::from_ref(&on).cast();
                assert_eq!(
                    libc::setsockopt(fd, libc::SOL_PACKET, option, at, size_of::<libc::c_int>() as u32),
                    0
                );
            }
            Self(socket)
        }
    }

    pub fn send(&self, frame: &[u8]) {
        // SAFETY: as many bytes as said.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        assert_eq!(sent, frame.len() as isize, "{}", std::io::Error::last_os_error());
    }

    /// A frame that has come, if any has.
    pub fn receive(&self) -> Option<Vec<u8>> {
        let mut frame = vec![0u8; 1 << 16];
        let mut control = [0u64; 16];
        let mut part = libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: frame.len() };
        // SAFETY: zeros are a value; buffers are as long as said; the control messages are the kernel's.
        unsafe {
            let mut message: libc::msghdr = zeroed();
            (message.msg_iov, message.msg_iovlen) = (&mut part, 1);
            (message.msg_control, message.msg_controllen) =
                (control.as_mut_ptr().cast(), size_of_val(&control));
            let got = libc::recvmsg(self.0.as_raw_fd(), &mut message, 0);
            if got < 0 {
                return None;
            }
            frame.truncate(got as usize);
            let header = libc::CMSG_FIRSTHDR(&message);
            if !header.is_null() && (*header).cmsg_type == PACKET_AUXDATA {
                let aux = libc::CMSG_DATA(header).cast::<libc::tpacket_auxdata>().read_unaligned();
                if aux.tp_status & libc::TP_STATUS_VLAN_VALID != 0 {
                    let tag = [&[0x81, 0][..], &aux.tp_vlan_tci.to_be_bytes()].concat();
                    frame.splice(12..12, tag);
                }
            }
        }
        Some(frame)
    }
}
