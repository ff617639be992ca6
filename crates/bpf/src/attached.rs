//! Which XDP program is on an interface, and the command that removes it.
//!
//! An interface can have only one program. The kernel path, the ports of workers and switches refuse to replace a
//! program that is not theirs, and tell the user how to detach it. That depends on how it was attached: iproute2
//! cannot detach a program that a BPF link holds, and generic mode needs its own keyword.

use std::fmt;

use libbpf_rs::query::{LinkInfoIter, LinkTypeInfo, ProgInfoIter};

use crate::xdp::query::state;

/// An XDP program on an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachedProgram {
    /// The interface's name.
    pub interface: String,
    /// The program's id, as `bpftool prog show id` takes it.
    pub program_id: u32,
    /// The program's name, empty if it has none.
    pub program: String,
    /// Whether it runs in generic mode.
    pub generic: bool,
    /// The id of the BPF link that holds it, as `bpftool link show id` takes it.
    pub link_id: Option<u32>,
}

impl AttachedProgram {
    /// The program on an interface; `None` if there is none, or no such interface.
    pub fn on(ifindex: u32, interface: &str) -> Option<Self> {
        let state = state(ifindex).ok()?;
        let ids = [
            (state.driver_program, false),
            (state.hardware_program, false),
            (state.generic_program, true),
            (state.program, false),
        ];
        let (program_id, generic) = ids.into_iter().find(|(id, _)| *id != 0)?;
        let program = ProgInfoIter::default().find(|info| info.id == program_id);
        Some(Self {
            interface: interface.into(),
            program_id,
            program: program.map(|info| info.name.to_string_lossy().into_owned()).unwrap_or_default(),
            generic,
            link_id: LinkInfoIter::default()
                .find(|link| {
                    link.prog_id == program_id
                        && matches!(&link.info, LinkTypeInfo::Xdp(on) if on.ifindex == ifindex)
                })
                .map(|link| link.id),
        })
    }

    pub(crate) fn detach_command(&self) -> String {
        match (self.link_id, self.generic) {
            (Some(id), _) => format!("bpftool link detach id {id}"),
            (None, true) => format!("ip link set dev {} xdpgeneric off", self.interface),
            (None, false) => format!("ip link set dev {} xdp off", self.interface),
        }
    }
}

impl fmt::Display for AttachedProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "another XDP program ({}, id {}) is attached to {}: stop the program that uses it, or detach it with `{}`",
            if self.program.is_empty() { "without a name" } else { &self.program },
            self.program_id,
            self.interface,
            self.detach_command()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_attachment_has_its_detach_command() {
        let mut attached = AttachedProgram {
            interface: "eth0".into(),
            program_id: 7,
            program: "other".into(),
            generic: false,
            link_id: None,
        };
        assert_eq!(attached.detach_command(), "ip link set dev eth0 xdp off");
        attached.generic = true;
        assert_eq!(attached.detach_command(), "ip link set dev eth0 xdpgeneric off");
        attached.link_id = Some(12);
        assert_eq!(
            attached.to_string(),
            "another XDP program (other, id 7) is attached to eth0: stop the program that uses it, or detach it with `bpftool link detach id 12`"
        );
    }
}
