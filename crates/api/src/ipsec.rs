//! `show sas` and `show policies`: IPsec.

use serde::{Deserialize, Serialize};

/// Security associations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Sas {
    /// SAs of the configuration in its order, then SAs that programs have added.
    pub sas: Vec<Sa>,
}

/// A security association. Keys are never shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Sa {
    /// As in the configuration; `reqid:N` for one that a program has added.
    pub name: String,
    /// `out` or `in`.
    pub direction: String,
    /// Security parameters index.
    pub spi: u32,
    pub source: String,
    pub destination: String,
    /// `tunnel` or `transport`.
    pub mode: String,
    /// The IPsec interface that it belongs to; empty for none. `if_id:N` if no interface has its number.
    pub interface: String,
    /// Encryption and integrity, such as `aes128gcm16`.
    pub suite: String,
    /// Which library encrypts or decrypts, by the size of packets if it is not the same for all, such as
    /// `ipsec-mb-avx2, ring from 640 bytes`.
    pub library: String,
    /// Number of the worker that has it.
    pub worker: u32,
    /// The CPU that an IKE daemon has added it for (RFC 9611); `null` for all.
    pub cpu: Option<u32>,
    /// Packets that other workers have handed to this one, since they have no SA of their own for them, or received ESP
    /// of this SA.
    pub handed: u64,
    /// Packets encrypted or decrypted.
    pub packets: u64,
    /// Bytes of their inner packets.
    pub bytes: u64,
    /// Packets that could not be encrypted or decrypted; `show drops` has the reasons.
    pub failures: u64,
    /// The next sequence number to send, or the highest received.
    pub sequence: u64,
    /// The largest ESP packet, as routers on the way have told in the last ten minutes; `null` if none has.
    pub path_mtu: Option<u16>,
    /// Seconds since it was added.
    pub age_s: u64,
    /// `valid`, `expiring` after a soft lifetime, `expired` after a hard one, `exhausted` without a sequence number left; `idle`
    /// if there are more SAs for a policy than workers, and this one was not needed yet.
    pub state: String,
}

/// What `show policies` prints: which packets are encrypted, dropped or left as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct IpsecPolicies {
    /// By direction and priority.
    pub policies: Vec<IpsecPolicy>,
}

/// Which packets it selects, and what is done with them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct IpsecPolicy {
    /// `out` or `in`.
    pub direction: String,
    /// Policies with lower values are compared first.
    pub priority: u32,
    /// The IPsec interface whose packets it is for; empty for packets of none. `if_id:N` if no interface has its number.
    pub interface: String,
    /// Prefix, or `any`.
    pub source: String,
    /// Prefix, or `any`.
    pub destination: String,
    /// Protocol number; `null` for any.
    pub protocol: Option<u8>,
    /// Such as `1024-65535`; empty for any.
    pub source_ports: String,
    /// Such as `1024-65535`; empty for any.
    pub destination_ports: String,
    /// `protect`, `discard` or `bypass`.
    pub action: String,
    /// Name of the SA of `protect`, the first one if there are several; otherwise empty.
    pub sa: String,
    /// Names of all SAs of `protect`: each worker encrypts with one, the first worker with the first.
    pub sas: Vec<String>,
    /// The packets' mark and the bits of it that are compared, such as `0x2a/0xff`; `null` for any. Packets that workers
    /// handle have the mark 0.
    pub mark: Option<String>,
}
