//! The counters of workers, links and devices.
//!
//! Links and devices keep their own counts, which are copied to memory that other processes can read. A new link or
//! device starts at zero, so the values of the one that it replaces are added.

use bm_link::LinkStats;
use bm_port::DeviceCounters;
use bm_stats::Counters;

bm_stats::counter_kind! {
    /// The counters of a worker.
    pub enum WorkerCounter {
        /// Rounds through all apps.
        Breaths = "breaths",
        /// Frames moved, counted once for each link or port.
        Moves = "moves",
        /// Times that it went to sleep.
        Sleeps = "sleeps",
        /// Time spent on frames, in nanoseconds.
        BusyNs = "busy_ns",
    }
}

bm_stats::counter_kind! {
    /// The time that a worker spends in an app.
    pub enum AppCounter {
        /// Nanoseconds in breaths in which frames moved, estimated from some of these.
        Ns = "ns",
    }
}

bm_stats::counter_kind! {
    /// The counters of a link, with Snabb's names.
    pub enum LinkCounter {
        /// Frames put into the link.
        TxPackets = "txpackets",
        /// Their bytes.
        TxBytes = "txbytes",
        /// Frames taken out of the link.
        RxPackets = "rxpackets",
        /// Their bytes.
        RxBytes = "rxbytes",
        /// Frames dropped because the link was full.
        TxDrop = "txdrop",
    }
}

/// The counters of a link, and their values before its worker was started.
pub(crate) struct CountedLink {
    counters: Counters<LinkCounter>,
    before: LinkStats,
}

impl CountedLink {
    pub fn new(counters: Counters<LinkCounter>) -> Self {
        let before = LinkStats {
            txpackets: counters.get(LinkCounter::TxPackets),
            txbytes: counters.get(LinkCounter::TxBytes),
            rxpackets: counters.get(LinkCounter::RxPackets),
            rxbytes: counters.get(LinkCounter::RxBytes),
            txdrop: counters.get(LinkCounter::TxDrop),
        };
        Self { counters, before }
    }

    pub fn publish(&self, now: &LinkStats) {
        let Self { counters, before } = self;
        counters.set(LinkCounter::TxPackets, before.txpackets + now.txpackets);
        counters.set(LinkCounter::TxBytes, before.txbytes + now.txbytes);
        counters.set(LinkCounter::RxPackets, before.rxpackets + now.rxpackets);
        counters.set(LinkCounter::RxBytes, before.rxbytes + now.rxbytes);
        counters.set(LinkCounter::TxDrop, before.txdrop + now.txdrop);
    }
}

bm_stats::counter_kind! {
    /// Frames lost or refused by a device, as it counts them itself.
    pub enum DeviceCounter {
        /// Frames for which there was no room in the receive ring.
        ReceiveRingFull = "receive_ring_full",
        /// Frames for which the device had no free buffer.
        ReceiveNoFrame = "receive_no_frame",
        /// Frames lost on receive for other reasons.
        ReceiveOther = "receive_other",
        /// Frames that the device refused to send.
        TransmitInvalid = "transmit_invalid",
    }
}

/// The counters of a queue's device.
pub(crate) struct CountedDevice {
    counters: Counters<DeviceCounter>,
    /// Their values at the start, minus the device's own counts at that time. The difference may wrap: a device that is
    /// opened again may start at zero or continue.
    before: DeviceCounters,
}

impl CountedDevice {
    pub fn new(counters: Counters<DeviceCounter>, now: &DeviceCounters) -> Self {
        let mut before = *now;
        for (counter, value) in fields(&mut before) {
            *value = counters.get(counter).wrapping_sub(*value);
        }
        Self { counters, before }
    }

    pub fn publish(&self, now: &DeviceCounters) {
        let (mut before, mut now) = (self.before, *now);
        for ((counter, before), (_, now)) in fields(&mut before).into_iter().zip(fields(&mut now)) {
            self.counters.set(counter, before.wrapping_add(*now));
        }
    }
}

/// The fields of a device's counters, with the counter that each is published as.
fn fields(values: &mut DeviceCounters) -> [(DeviceCounter, &mut u64); 4] {
    [
        (DeviceCounter::ReceiveRingFull, &mut values.receive_ring_full),
        (DeviceCounter::ReceiveNoFrame, &mut values.receive_no_frame),
        (DeviceCounter::ReceiveOther, &mut values.receive_other),
        (DeviceCounter::TransmitInvalid, &mut values.transmit_invalid),
    ]
}
