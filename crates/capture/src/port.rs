//! A port of the router: its interface, and the program of brickmoon that is attached to it.

use bm_bpf::xdp::Xdp;
use bm_bpf::{AttachType, ProgramInfo, pins};
use libbpf_rs::query::LinkInfoIter;

use crate::error::CaptureError;

/// Logical interfaces of a port whose counters are compared: `INTERFACES_MAX` of `../bpf/capture.bpf.c`.
pub(crate) const INTERFACES: usize = 16;

/// Which packets of a port are captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Directions {
    pub received: bool,
    pub sent: bool,
}

/// A port whose packets are shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    pub name: String,
    pub ifindex: u32,
    pub directions: Directions,
    /// How the program of the port counts its logical interfaces.
    pub interfaces: Vec<u32>,
}

/// A program of brickmoon on an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    pub id: u32,
    /// The name of its function.
    pub name: String,
    pub attach_type: AttachType,
}

/// The names of brickmoon's programs on ports: the kernel path, what holds its place, and the one that steers to workers.
fn is_ours(name: &str) -> bool {
    name.starts_with("bm_forward_") || name.starts_with("bm_hold") || name == "steer"
}

impl Port {
    /// The programs of brickmoon on the interface: one, or two for a moment while it is moved.
    ///
    /// # Errors
    /// If there is none, or the kernel does not say.
    pub(crate) fn programs(&self) -> Result<Vec<Program>, CaptureError> {
        let xdp = Xdp::query(self.ifindex)
            .map_err(|error| CaptureError::Query { port: self.name.clone(), error })?
            .program_id;
        // Links of other namespaces are among these, and an interface there may have the same index. What their programs
        // get is not shown: the programs of a capture compare the namespace.
        let at_tc = LinkInfoIter::default()
            .filter(|link| pins::place(&link.info) == Some((self.ifindex, AttachType::Tc)))
            .map(|link| (link.prog_id, AttachType::Tc));
        let all = xdp.map(|id| (id, AttachType::Xdp)).into_iter().chain(at_tc);
        let programs: Vec<_> = all
            .filter_map(|(id, attach_type)| {
                let name = ProgramInfo::query(id).ok()?.name;
                is_ours(&name).then_some(Program { id, name, attach_type })
            })
            .collect();
        if programs.is_empty() {
            return Err(CaptureError::NoProgram { port: self.name.clone() });
        }
        Ok(programs)
    }

    /// `struct port` of the programs, in bytes.
    pub(crate) fn value(&self) -> Vec<u8> {
        let directions = u32::from(self.directions.received) | u32::from(self.directions.sent) << 1;
        let count = self.interfaces.len().min(INTERFACES);
        let mut words = vec![directions, count as u32];
        words.extend(&self.interfaces[..count]);
        words.resize(2 + INTERFACES, 0);
        words.into_iter().flat_map(u32::to_ne_bytes).collect()
    }
}
