//! What workers, links and devices are counted by.
//!
//! Links and devices count for themselves; their sums are copied to where other processes see them. Whoever takes an
//! earlier one's place begins at zero, so what stood there is added.

use bm_link::LinkStats;
use bm_port::DeviceCounters;
use bm_stats::Counters;

bm_stats::counter_kind! {
    /// What a worker counts of itself.
    pub enum WorkerCounter {
        /// Breaths.
        Breaths = "breaths",
        /// Frames that were moved, once for each link or port.
        Moves = "moves",
        /// Sleeps.
        Sleeps = "sleeps",
        /// Time at work, in nanoseconds.
        BusyNs = "busy_ns",
    }
}

bm_stats::counter_kind! {
    /// What is counted of a link, by Snabb's names.
    pub enum LinkCounter {
        /// Frames that were put into it.
        TxPackets = "txpackets",
        /// Their bytes.
        TxBytes = "txbytes",
        /// Frames that were taken out.
        RxPackets = "rxpackets",
        /// Their bytes.
        RxBytes = "rxbytes",
        /// Frames that found it full.
        TxDrop = "txdrop",
    }
}

/// The counters of a link, and what stood in them before its worker was started.
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
    /// What a device lost or refused by its own count.
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
    /// What stood in them less the device's own count at that time. Both wrap: a device that is opened again may begin at
    /// zero, or go on.
    before: DeviceCounters,
}

impl CountedDevice {
    pub fn new(counters: Counters<DeviceCounter>, now: &DeviceCounters) -> Self {
        let before = |counter, now| counters.get(counter).wrapping_sub(now);
        let before = DeviceCounters {
            receive_ring_full: before(DeviceCounter::ReceiveRingFull, now.receive_ring_full),
            receive_no_frame: before(DeviceCounter::ReceiveNoFrame, now.receive_no_frame),
            receive_other: before(DeviceCounter::ReceiveOther, now.receive_other),
            transmit_invalid: before(DeviceCounter::TransmitInvalid, now.transmit_invalid),
        };
        Self { counters, before }
    }

    pub fn publish(&self, now: &DeviceCounters) {
        let Self { counters, before } = self;
        let publish = |counter, before: u64, now| counters.set(counter, before.wrapping_add(now));
        publish(DeviceCounter::ReceiveRingFull, before.receive_ring_full, now.receive_ring_full);
        publish(DeviceCounter::ReceiveNoFrame, before.receive_no_frame, now.receive_no_frame);
        publish(DeviceCounter::ReceiveOther, before.receive_other, now.receive_other);
        publish(DeviceCounter::TransmitInvalid, before.transmit_invalid, now.transmit_invalid);
    }
}
