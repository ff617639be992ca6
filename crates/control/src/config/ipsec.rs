//! `[ipsec]`: security associations and policies with manual keys, and the socket for those of IKE daemons.

use std::path::PathBuf;

use bm_ipsec::{Action, Direction, Policy, Sa, SaId};

use super::daemon::OFF_ON;
use super::forms::{Choice, File};

/// What Linux does with routed packets that a policy protects or discards, and that it gets: while the daemon does not
/// run, or since something else leaves them to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeftToLinux {
    /// It drops them.
    #[default]
    Drop,
    /// It forwards them in clear.
    Forward,
}

/// Names in the configuration.
const LEFT_TO_LINUX: [(&str, LeftToLinux); 2] =
    [("drop", LeftToLinux::Drop), ("forward", LeftToLinux::Forward)];

/// An interface as next hop: packets that are routed to it are encrypted, and what its SAs decrypt arrives on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpsecInterface {
    /// Name in Linux.
    pub device: String,
    /// Of its SAs and policies; not 0.
    pub if_id: u32,
}

settings! {
    /// IPsec on workers: ESP with keys from this file or from an IKE daemon. docs/ipsec.md has the keys of `[[ipsec.sa]]`
    /// and `[[ipsec.policy]]`. There is none by default.
    #[table("[ipsec]")]
    pub struct Ipsec {
        /// The socket at which an IKE daemon (strongSwan's charon) and `brickmoon xfrm` add SAs and policies; only root may
        /// connect. A change needs a restart of the daemon.
        #[by_hand(xfrm_socket = "/run/brickmoon/xfrm.sock")]
        pub xfrm_socket: Option<PathBuf>,
        /// "on": workers use the SAs and policies of the kernel, and no others.
        #[setting(kernel = "off", Choice(&OFF_ON), Daemon)]
        pub kernel: bool,
        /// What Linux does with packets that have to be encrypted and are left to it: "drop" or "forward".
        #[setting(left_to_linux = "drop", Choice(&LEFT_TO_LINUX), Workers)]
        pub left_to_linux: LeftToLinux,
        /// Where the sequence numbers that SAs of this file have used are recorded.
        #[setting(state_file = "/var/lib/brickmoon/ipsec.state", File, Daemon)]
        pub state_file: PathBuf,
        /// Each `[[ipsec.interface]]`.
        pub interfaces: Vec<IpsecInterface>,
        /// Each `[[ipsec.sa]]`; `at` is its line.
        pub sas: Vec<Sa>,
        /// For each SA its name.
        pub names: Vec<String>,
        /// Each `[[ipsec.policy]]`; `at` is its line. `bm_ipsec::problems` finds nothing in them and the SAs.
        pub policies: Vec<Policy>,
        /// Whether keys stand in the configuration itself, and not in files of their own.
        pub has_keys_here: bool,
        /// The configuration file, if others than its owner can read it and it has keys.
        pub public_file: Option<PathBuf>,
        /// The SAs of policies with several, by the number that the policy has: the first one is for the first worker.
        pub lists: Vec<Vec<SaId>>,
    }
}

settings! {
    /// An interface to which routes lead: what is routed there is encrypted with SAs that have its name (`interface`), or
    /// that a program has added with its if_id. A change restarts the workers.
    #[table("[[ipsec.interface]]", "docs/ipsec.md")]
    by_hand {
        /// A TUN device, or an XFRM interface.
        device = "ipsec0",
        /// The number of its SAs and policies.
        if_id = 1,
    }
}

impl Ipsec {
    /// The place of an SA in the list of a policy with several: the number of the worker that uses it, if there is one.
    pub fn place_of(&self, id: SaId) -> Option<usize> {
        self.lists.iter().find_map(|list| list.iter().position(|other| *other == id))
    }

    /// Whether policies may drop what arrives in clear, so that workers must see all of it. Linux has its own for the kernel's.
    pub fn checks_arrivals(&self) -> bool {
        let mut inbound = self.policies.iter().filter(|policy| policy.direction == Direction::In);
        let may_drop = inbound.any(|policy| policy.action != Action::Bypass);
        !self.kernel && (self.xfrm_socket.is_some() || may_drop)
    }

    /// What to say if anybody can read the keys.
    pub fn public_keys(&self) -> Option<String> {
        let file = self.public_file.as_ref()?.display();
        Some(format!(
            "{file} has keys of IPsec, and others than its owner can read it: chmod 600 {file}, or use encryption_key_file"
        ))
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.sas.is_empty()
            && self.policies.is_empty()
            && self.interfaces.is_empty()
            && self.xfrm_socket.is_none()
            && !self.kernel
    }

    /// The interface that has this number.
    pub fn interface(&self, if_id: u32) -> Option<&IpsecInterface> {
        self.interfaces.iter().find(|interface| interface.if_id == if_id)
    }
}
