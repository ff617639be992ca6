//! `[ipsec]`: security associations and policies with manual keys, and the socket for those of IKE daemons.

use std::path::PathBuf;

use bm_ipsec::{Action, Direction, Policy, Sa, SaId};

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
pub(super) const LEFT_TO_LINUX: [(&str, LeftToLinux); 2] =
    [("drop", LeftToLinux::Drop), ("forward", LeftToLinux::Forward)];

/// An interface as next hop: packets that are routed to it are encrypted, and what its SAs decrypt arrives on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpsecInterface {
    /// Name in Linux.
    pub device: String,
    /// Of its SAs and policies; not 0.
    pub if_id: u32,
}

/// `[ipsec]`, each `[[ipsec.sa]]` and each `[[ipsec.policy]]`, without any of the problems that `bm_ipsec::problems`
/// finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipsec {
    /// Where the sequence numbers that have been used are recorded.
    pub state_file: PathBuf,
    /// What Linux does with packets that have to be encrypted.
    pub left_to_linux: LeftToLinux,
    /// The socket at which programs add SAs and policies by XFRM messages.
    pub xfrm_socket: Option<PathBuf>,
    /// Whether workers use the SAs and policies of the kernel; there are no others then.
    pub kernel: bool,
    /// Each `[[ipsec.interface]]`.
    pub interfaces: Vec<IpsecInterface>,
    /// Each `[[ipsec.sa]]`; `at` is its line.
    pub sas: Vec<Sa>,
    /// For each SA its name.
    pub names: Vec<String>,
    /// Each `[[ipsec.policy]]`; `at` is its line.
    pub policies: Vec<Policy>,
    /// Whether keys stand in the configuration itself, and not in files of their own.
    pub has_keys_here: bool,
    /// The configuration file, if others than its owner can read it and it has keys.
    pub public_file: Option<PathBuf>,
    /// The SAs of policies with several, by the number that the policy has: the first one is for the first worker.
    pub lists: Vec<Vec<SaId>>,
}

impl Default for Ipsec {
    fn default() -> Self {
        Self {
            state_file: "/var/lib/brickmoon/ipsec.state".into(),
            left_to_linux: LeftToLinux::Drop,
            xfrm_socket: None,
            kernel: false,
            interfaces: Vec::new(),
            sas: Vec::new(),
            names: Vec::new(),
            policies: Vec::new(),
            has_keys_here: false,
            public_file: None,
            lists: Vec::new(),
        }
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
