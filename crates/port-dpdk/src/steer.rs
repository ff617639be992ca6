//! What control sets on a running device: the MAC addresses of this machine, and which packets are for Linux.

use std::collections::HashMap;
use std::ffi::c_void;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use bm_port::Steering;

use crate::ffi;
use crate::shared::SharedDevice;

/// All frames come to brickmoon; packets to this machine arrive on the first queue if the driver can separate them
/// (rte_flow), so that none of them waits behind another worker's traffic.
pub struct DpdkSteering {
    shared: Arc<SharedDevice>,
    macs: Vec<[u8; 6]>,
    flows: HashMap<IpAddr, Flow>,
    /// The driver has refused a rule, so no others are tried.
    has_no_flows: bool,
}

struct Flow(*mut c_void);

// SAFETY: a handle that the driver gave, used by whoever holds the steering alone.
unsafe impl Send for Flow {}

impl DpdkSteering {
    pub(crate) fn new(shared: Arc<SharedDevice>) -> Self {
        Self { shared, macs: Vec::new(), flows: HashMap::new(), has_no_flows: false }
    }

    fn add_flow(&mut self, address: IpAddr) {
        let (bytes, count) = match address {
            IpAddr::V4(address) => ([address.octets(), [0; 4], [0; 4], [0; 4]].concat(), 4),
            IpAddr::V6(address) => (address.octets().to_vec(), 16),
        };
        let mut flow = std::ptr::null_mut();
        // SAFETY: as many bytes as are named, and a place for one pointer.
        let done = unsafe { ffi::bm_flow_to_queue(self.shared.port(), bytes.as_ptr(), count, 0, &mut flow) };
        if done < 0 {
            self.has_no_flows = true;
        } else {
            self.flows.insert(address, Flow(flow));
        }
    }

    fn remove_flow(&mut self, address: &IpAddr) {
        if let Some(flow) = self.flows.remove(address) {
            // SAFETY: the handle came from this port and is forgotten with this call.
            unsafe { ffi::bm_flow_remove(self.shared.port(), flow.0) };
        }
    }
}

impl Steering for DpdkSteering {
    /// MAC addresses besides the device's own. A device that cannot filter by a list of them takes every frame
    /// instead.
    fn set_macs(&mut self, macs: &[[u8; 6]]) -> io::Result<()> {
        let port = self.shared.port();
        let mut all = true;
        for mac in macs.iter().filter(|mac| !self.macs.contains(mac)) {
            all &= ffi::bm_device_add_mac(port, mac) == 0;
        }
        for mac in self.macs.iter().filter(|mac| !macs.contains(mac)) {
            // A MAC that the device never had is none to remove.
            ffi::bm_device_remove_mac(port, mac);
        }
        if !all {
            // A virtual device that refuses this, too, takes every frame anyway.
            ffi::bm_device_promiscuous(port);
        }
        self.macs = macs.to_vec();
        Ok(())
    }

    fn set_local(&mut self, addresses: &[IpAddr]) -> io::Result<()> {
        let gone: Vec<_> =
            self.flows.keys().filter(|address| !addresses.contains(address)).copied().collect();
        gone.iter().for_each(|address| self.remove_flow(address));
        for address in addresses {
            if !self.has_no_flows && !self.flows.contains_key(address) {
                self.add_flow(*address);
            }
        }
        Ok(())
    }

    fn set_active(&mut self, _active: bool) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for DpdkSteering {
    fn drop(&mut self) {
        let all: Vec<_> = self.flows.keys().copied().collect();
        all.iter().for_each(|address| self.remove_flow(address));
    }
}
