//! Numbers and structures of `linux/xfrm.h` and `linux/netlink.h`: where each field is. They are the same on all
//! architectures with 64 bits.

/// Message types.
pub mod kind {
    pub const ERROR: u16 = 2;
    pub const DONE: u16 = 3;
    /// Not of the kernel: what the preload library says about its socket ([`super::hello`]).
    pub(crate) const HELLO: u16 = 0x0f;
    pub const NEW_SA: u16 = 0x10;
    pub(crate) const DELETE_SA: u16 = 0x11;
    pub const GET_SA: u16 = 0x12;
    pub const NEW_POLICY: u16 = 0x13;
    pub const DELETE_POLICY: u16 = 0x14;
    pub const GET_POLICY: u16 = 0x15;
    pub(crate) const ALLOCATE_SPI: u16 = 0x16;
    pub const ACQUIRE: u16 = 0x17;
    pub const EXPIRE: u16 = 0x18;
    pub const UPDATE_POLICY: u16 = 0x19;
    pub(crate) const UPDATE_SA: u16 = 0x1a;
    pub(crate) const FLUSH_SAS: u16 = 0x1c;
    pub const FLUSH_POLICIES: u16 = 0x1d;
    pub const NEW_AE: u16 = 0x1e;
    pub const GET_AE: u16 = 0x1f;
    pub(crate) const NEW_SA_INFO: u16 = 0x22;
    pub(crate) const GET_SA_INFO: u16 = 0x23;
    pub(crate) const NEW_POLICY_INFO: u16 = 0x24;
    pub(crate) const GET_POLICY_INFO: u16 = 0x25;
    pub(crate) const MAPPING: u16 = 0x26;
    pub const GET_DEFAULT: u16 = 0x28;
}

/// Flags of a message.
pub mod flag {
    pub(crate) const MULTI: u16 = 2;
    pub const ACK: u16 = 4;
    pub(crate) const ACK_TLVS: u16 = 0x200;
    /// `NLM_F_ROOT` or `NLM_F_MATCH`: all objects.
    pub const DUMP: u16 = 0x300;
}

/// Attributes.
pub mod attribute {
    pub(crate) const AUTH: u16 = 1;
    pub(crate) const CRYPT: u16 = 2;
    pub(crate) const COMPRESSION: u16 = 3;
    pub(crate) const ENCAPSULATION: u16 = 4;
    pub const TEMPLATES: u16 = 5;
    pub const SA: u16 = 6;
    pub const POLICY: u16 = 7;
    pub(crate) const SECURITY: u16 = 8;
    pub const LIFETIME: u16 = 9;
    pub const REPLAY: u16 = 10;
    pub(crate) const CARE_OF: u16 = 14;
    pub(crate) const POLICY_TYPE: u16 = 16;
    pub const AEAD: u16 = 18;
    pub(crate) const AUTH_TRUNCATED: u16 = 20;
    pub const MARK: u16 = 21;
    pub(crate) const TFC: u16 = 22;
    pub const REPLAY_ESN: u16 = 23;
    pub(crate) const EXTRA_FLAGS: u16 = 24;
    pub(crate) const OFFLOAD: u16 = 28;
    pub(crate) const SET_MARK: u16 = 29;
    pub(crate) const SET_MARK_MASK: u16 = 30;
    pub const INTERFACE: u16 = 31;
    pub const DIRECTION: u16 = 33;
    /// `XFRMA_SA_PCPU`.
    pub const CPU: u16 = 35;
}

/// Multicast groups, as numbers.
pub mod group {
    pub const ACQUIRE: u32 = 1;
    pub const EXPIRE: u32 = 2;
    pub const SA: u32 = 3;
    pub const POLICY: u32 = 4;
    pub(crate) const MAPPING: u32 = 8;
}

/// `struct xfrm_selector`.
pub mod selector {
    pub const DESTINATION: usize = 0;
    pub const SOURCE: usize = 16;
    pub const DESTINATION_PORT: usize = 32;
    pub const SOURCE_PORT: usize = 36;
    pub const FAMILY: usize = 40;
    pub const DESTINATION_LENGTH: usize = 42;
    pub const SOURCE_LENGTH: usize = 43;
    pub const PROTOCOL: usize = 44;
    pub const INTERFACE: usize = 48;
    pub const LENGTH: usize = 56;
}

/// `struct xfrm_usersa_info`, behind its selector.
pub mod sa {
    pub const DESTINATION: usize = 56;
    pub const SPI: usize = 72;
    pub const PROTOCOL: usize = 76;
    pub const SOURCE: usize = 80;
    pub const LIMITS: usize = 96;
    pub(crate) const USED: usize = 160;
    pub const FAILURES: usize = 192;
    pub(crate) const REQID: usize = 208;
    pub const FAMILY: usize = 212;
    pub const MODE: usize = 214;
    pub const WINDOW: usize = 215;
    pub const FLAGS: usize = 216;
    pub const LENGTH: usize = 224;
}

/// `struct xfrm_usersa_id`.
pub mod sa_id {
    pub const DESTINATION: usize = 0;
    pub const SPI: usize = 16;
    pub const FAMILY: usize = 20;
    pub const PROTOCOL: usize = 22;
    pub const LENGTH: usize = 24;
}

/// `struct xfrm_aevent_id`, which begins with the id of the SA.
pub mod sa_event {
    pub const LENGTH: usize = 48;
}

/// `struct xfrm_userpolicy_info`, behind its selector.
pub mod policy {
    pub const LIMITS: usize = 56;
    pub(crate) const USED: usize = 120;
    pub const PRIORITY: usize = 152;
    pub const INDEX: usize = 156;
    pub const DIRECTION: usize = 160;
    pub const ACTION: usize = 161;
    pub const FLAGS: usize = 162;
    /// `XFRM_POLICY_CPU_ACQUIRE`.
    pub(crate) const CPU_ACQUIRE: u8 = 4;
    pub const LENGTH: usize = 168;
}

/// `struct xfrm_userpolicy_id`, behind its selector.
pub mod policy_id {
    pub const INDEX: usize = 56;
    pub const DIRECTION: usize = 60;
    pub const LENGTH: usize = 64;
}

/// `struct xfrm_user_tmpl`.
pub mod template {
    pub const DESTINATION: usize = 0;
    pub const SPI: usize = 16;
    pub const PROTOCOL: usize = 20;
    pub const FAMILY: usize = 24;
    pub const SOURCE: usize = 28;
    pub(crate) const REQID: usize = 44;
    pub const MODE: usize = 48;
    pub(crate) const OPTIONAL: usize = 50;
    pub const LENGTH: usize = 64;
}

/// `struct xfrm_encap_tmpl`.
pub mod encapsulation {
    pub const TYPE: usize = 0;
    pub const SOURCE_PORT: usize = 2;
    pub const DESTINATION_PORT: usize = 4;
    pub const LENGTH: usize = 24;
    /// `UDP_ENCAP_ESPINUDP`.
    pub const IN_UDP: u16 = 2;
}

/// What the preload library says about its socket: groups as bits, its port, options.
pub mod hello {
    pub const GROUPS: usize = 0;
    pub const PORT: usize = 4;
    pub const OPTIONS: usize = 8;
    pub const LENGTH: usize = 12;
    /// Texts of errors are wanted (`NETLINK_EXT_ACK`).
    pub(crate) const TEXTS: u32 = 1;
}

/// `XFRM_STATE_*`.
pub mod sa_flag {
    pub(crate) const NO_ECN: u8 = 1;
    pub(crate) const NO_PATH_MTU: u8 = 4;
    pub(crate) const ANY_FAMILY: u8 = 32;
    pub const ESN: u8 = 128;
    /// Of the attribute with more flags: DSCP is not copied to the outer header.
    pub(crate) const NO_DSCP: u32 = 1;
}

/// Protocol number of ESP.
pub const ESP: u8 = 50;
/// Any IPsec protocol, in requests about several.
pub(crate) const ANY_PROTOCOL: u8 = 255;
pub const INET: u16 = 2;
pub const INET6: u16 = 10;

/// Error numbers.
pub mod errno {
    pub(crate) const NO_ENTRY: i32 = 2;
    pub(crate) const NO_PROCESS: i32 = 3;
    pub(crate) const EXISTS: i32 = 17;
    pub const INVALID: i32 = 22;
    pub(crate) const NO_SPACE: i32 = 28;
    pub(crate) const NOT_IMPLEMENTED: i32 = 38;
    pub(crate) const NOT_SUPPORTED: i32 = 95;
}
