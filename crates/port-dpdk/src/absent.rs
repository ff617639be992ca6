//! The crate without DPDK: it has the same interface, but no device can be opened.

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use bm_frame::{Burst, Frame, FramePool, Freelist, MbufFrame};
use bm_port::{InPlace, Port, ReceivedFrames, Steering, TransmittedFrames};

use crate::{DpdkError, Link, Options, RssSettings, Spec};

/// A device; there is none without DPDK.
pub struct DpdkDevice(Infallible);
/// A queue; there is none without DPDK.
pub struct DpdkPort(Infallible);
/// The steering of a device; there is none without DPDK.
pub struct DpdkSteering(Infallible);

impl DpdkDevice {
    /// Always fails.
    ///
    /// # Errors
    /// [`DpdkError::NotBuilt`], always.
    pub fn open(spec: &Spec, _frame_pool: &Arc<FramePool>, _options: Options) -> Result<Self, DpdkError> {
        Err(DpdkError::NotBuilt { device: spec.as_str().into() })
    }

    /// Name of its driver.
    pub fn driver(&self) -> &str {
        match self.0 {}
    }

    /// Its MAC address.
    pub fn mac(&self) -> [u8; 6] {
        match self.0 {}
    }

    /// Its MTU in bytes.
    pub fn mtu(&self) -> u16 {
        match self.0 {}
    }

    /// Why frames are copied between the driver's memory and brickmoon's, if they are.
    pub fn copied(&self) -> Option<&str> {
        match self.0 {}
    }

    /// How many queues it has.
    pub fn queues(&self) -> u16 {
        match self.0 {}
    }

    /// One queue.
    ///
    /// # Errors
    /// [`DpdkError::Queues`].
    pub fn queue(&self, _queue: u16) -> Result<DpdkPort, DpdkError> {
        match self.0 {}
    }

    pub fn steering(&self) -> DpdkSteering {
        match self.0 {}
    }

    pub fn link(&self) -> Link {
        match self.0 {}
    }

    /// How it distributes flows over its queues.
    pub fn spread(&self) -> RssSettings {
        match self.0 {}
    }

    /// Changes its MTU.
    ///
    /// # Errors
    /// [`DpdkError`].
    pub fn set_mtu(&self, _mtu: u16) -> Result<(), DpdkError> {
        match self.0 {}
    }

    /// Changes its MAC.
    ///
    /// # Errors
    /// [`DpdkError`].
    pub fn set_mac(&self, _mac: [u8; 6]) -> Result<(), DpdkError> {
        match self.0 {}
    }

    /// Its own counters.
    pub fn counters(&self) -> Vec<(String, u64)> {
        match self.0 {}
    }
}

impl Port for DpdkPort {
    fn receive(&mut self, _burst: &mut Burst, _frames: &mut Freelist) {
        match self.0 {}
    }

    fn transmit(&mut self, _burst: &mut Burst, _frames: &mut Freelist) -> usize {
        match self.0 {}
    }
}

impl InPlace for DpdkPort {
    fn receive_into(&mut self, _places: &mut [Option<Frame>], _frames: &mut Freelist) -> ReceivedFrames {
        match self.0 {}
    }

    fn transmit_from(&mut self, _places: &mut [Option<Frame>], _frames: &mut Freelist) -> TransmittedFrames {
        match self.0 {}
    }
}

impl InPlace<MbufFrame> for DpdkPort {
    fn receive_into(&mut self, _places: &mut [Option<MbufFrame>], _frames: &mut Freelist) -> ReceivedFrames {
        match self.0 {}
    }

    fn transmit_from(
        &mut self,
        _places: &mut [Option<MbufFrame>],
        _frames: &mut Freelist,
    ) -> TransmittedFrames {
        match self.0 {}
    }
}

impl Steering for DpdkSteering {
    fn set_macs(&mut self, _macs: &[[u8; 6]]) -> io::Result<()> {
        match self.0 {}
    }

    fn set_local(&mut self, _addresses: &[IpAddr]) -> io::Result<()> {
        match self.0 {}
    }

    fn set_active(&mut self, _active: bool) -> io::Result<()> {
        match self.0 {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_how_to_build_with_it() {
        let frame_pool = FramePool::new(8, 2048).unwrap();
        let refused =
            DpdkDevice::open(&Spec::new("net_null0"), &frame_pool, Options::default()).err().unwrap();
        assert!(refused.to_string().contains("cargo build --release --features dpdk"), "{refused}");
    }
}
