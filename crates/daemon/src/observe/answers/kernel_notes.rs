//! What the kernel path leaves to Linux on its ports, for `status` and `show ports`.

use bm_api::Interface;

use crate::workers::running::PortInfo;

/// Why the kernel path cannot send through one of its ports; `None` if it can.
pub fn no_frames(info: &PortInfo) -> Option<String> {
    let why = bm_fastpath::why_no_frames(&info.name)?;
    Some(format!("{why}: Linux forwards packets that leave there"))
}

/// Which interfaces of a port the kernel path leaves to Linux because they are in a VRF.
pub fn left_to_linux(interfaces: &[Interface]) -> Option<String> {
    let in_vrf = interfaces.iter().filter(|interface| interface.vrf.is_some());
    let names: Vec<&str> = in_vrf.map(|interface| interface.name.as_str()).collect();
    let names = names.join(", ");
    (!names.is_empty()).then(|| format!("{names}: in a VRF, so Linux forwards packets that arrive there"))
}
