//! Numbers in network order, appended to a datagram.

/// Appends numbers and addresses.
pub trait PutNumbers {
    fn put8(&mut self, value: u8);
    fn put16(&mut self, value: u16);
    fn put32(&mut self, value: u32);
    fn put64(&mut self, value: u64);
}

impl PutNumbers for Vec<u8> {
    fn put8(&mut self, value: u8) {
        self.push(value);
    }

    fn put16(&mut self, value: u16) {
        self.extend(value.to_be_bytes());
    }

    fn put32(&mut self, value: u32) {
        self.extend(value.to_be_bytes());
    }

    fn put64(&mut self, value: u64) {
        self.extend(value.to_be_bytes());
    }
}
