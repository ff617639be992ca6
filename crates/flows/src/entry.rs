//! Writes what an entry contains.

use crate::key::{Connection, PackedKey, Words};
use crate::layout::{Flow, TRACKED, TRANSLATES};
use std::sync::atomic::Ordering::Relaxed;

/// What an entry is to contain.
pub(crate) struct NewEntry {
    pub key: PackedKey,
    pub out: u16,
    /// With which packets leave.
    pub words: Words,
    pub connection: Option<Connection>,
    pub now_jiffies: u32,
}

impl NewEntry {
    /// Whether packets of an entry leave like this.
    pub fn is_action_of(&self, flow: &Flow) -> bool {
        let connection = Connection::of(flow);
        flow.out.load(Relaxed) == self.out
            && Words::of_action(flow) == self.words
            && connection == self.connection
    }

    /// Fills an entry that no reader can find.
    pub fn write(&self, flow: &Flow, epoch: u32) {
        let (old, new) = (&self.key.words, &self.words);
        let addresses = [&flow.source, &flow.destination, &flow.new_source, &flow.new_destination];
        for (words, values) in
            addresses.into_iter().zip([old.source, old.destination, new.source, new.destination])
        {
            for (word, value) in words.iter().zip(values) {
                word.store(value, Relaxed);
            }
        }
        flow.ports.store(old.ports, Relaxed);
        flow.interface.store(self.key.interface, Relaxed);
        flow.protocol.store(self.key.protocol, Relaxed);
        flow.family.store(self.key.family, Relaxed);
        flow.epoch.store(epoch, Relaxed);
        flow.out.store(self.out, Relaxed);
        let translates = if new == old { 0 } else { TRANSLATES };
        let tracked = if self.connection.is_some() { TRACKED } else { 0 };
        flow.flags.store(translates | tracked, Relaxed);
        flow.ended.store(0, Relaxed);
        flow.used_at.store(self.now_jiffies, Relaxed);
        flow.reply_low.store(0, Relaxed);
        flow.reply_high.store(0, Relaxed);
        flow.follows.store(0, Relaxed);
        flow.packets.store(0, Relaxed);
        flow.bytes.store(0, Relaxed);
        flow.new_ports.store(new.ports, Relaxed);
        flow.sum_addresses.store(new.addresses_grow(old), Relaxed);
        flow.sum_ports.store(new.ports_grow(old), Relaxed);
        flow.acknowledged.store(0, Relaxed);
        flow.end.store(0, Relaxed);
        flow.mark.store(self.connection.map_or(0, |connection| connection.mark), Relaxed);
        flow.zone.store(self.connection.map_or(0, |connection| connection.zone), Relaxed);
        // The first packet looks the connection up.
        flow.checked_at.store((self.now_jiffies as u16).wrapping_sub(1 << 15), Relaxed);
    }
}
