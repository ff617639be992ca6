//! The targets, one for each kind of input.

pub mod capture;
pub mod config;
pub mod filter;
pub mod http;
pub mod ipsec;
pub mod linux_only;
pub mod lua;
pub mod netlink;
pub mod rib;
pub mod router;
pub mod xdp;
pub mod xfrm;
