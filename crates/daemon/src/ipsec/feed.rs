//! Keeps an outbound SA of the configuration supplied with sequence numbers.
//!
//! ```text
//! Record ── a block ──► worker      at the start a small one: it is lost if the process is killed
//!        ── the next one ──► ring   when the worker has fewer left than it may soon need
//! ```

use std::sync::Arc;

use bm_forward::{SaNumbers, SaStatus};
use bm_ipsec::{Block, Numbers, Sa, SaId};
use bm_link::{Producer, channel};

use super::BLOCK;
use super::record::{NoNumbers, Record};

/// Numbers of an SA that has sent little: enough for some tenths of a second, and few enough that 32 bits outlast 2,000
/// kills.
const FIRST: u64 = 1 << 21;
/// Blocks that wait for a worker at most.
const WAITING: usize = 2;

/// The numbers of an SA that a worker has.
pub struct Feed {
    id: SaId,
    name: String,
    fingerprint: u128,
    esn: bool,
    status: Arc<SaStatus>,
    blocks: Producer<Block>,
    /// The number after the last one that was reserved.
    end: u64,
    /// The next number to send, when this was looked at last.
    seen: u64,
    /// Numbers that the worker should have left.
    ahead: u64,
    /// Whether there are no more numbers, or the file could not be written when it was tried last; it has been logged.
    is_used_up: bool,
    has_failed: bool,
}

impl Feed {
    /// The first numbers of an SA, and what supplies it with the next ones.
    ///
    /// # Errors
    /// The state file cannot be written.
    pub fn begin(
        sa: &Sa,
        name: String,
        status: &Arc<SaStatus>,
        record: &mut Record,
    ) -> Result<(Self, SaNumbers), String> {
        let (id, fingerprint, esn) = (sa.id(), sa.fingerprint(), sa.esn);
        let (block, iv_mask, is_used_up) = match record.reserve(fingerprint, FIRST, esn) {
            Ok((block, iv_mask)) => (block, iv_mask, false),
            Err(NoNumbers::UsedUp(_)) => (Numbers::none(esn), 0, true),
            Err(NoNumbers::Failed(why)) => return Err(why),
        };
        status.set_number(block.next());
        let (blocks, more) = channel(WAITING);
        let (end, seen) = (block.end(), block.next());
        let (status, ahead, has_failed) = (status.clone(), FIRST / 2, false);
        let feed =
            Self { id, name, fingerprint, esn, status, blocks, end, seen, ahead, is_used_up, has_failed };
        if is_used_up {
            feed.say_used_up();
        }
        Ok((feed, SaNumbers { block, more, iv_mask }))
    }

    /// Called often: reserves the next numbers if the worker may soon need them.
    pub fn supply(&mut self, record: &mut Record) {
        let next = self.status.read().number.max(self.seen);
        // As many again as were sent since the last look, several times: looks may be late.
        self.ahead = self.ahead.max(8 * (next - self.seen)).min(BLOCK);
        self.seen = next;
        if self.is_used_up || self.end.saturating_sub(next) >= self.ahead {
            return;
        }
        if self.blocks.is_closed() || !self.blocks.has_room() {
            return;
        }
        match record.reserve(self.fingerprint, self.ahead.max(FIRST), self.esn) {
            Ok((block, _)) => {
                self.end = block.end();
                self.has_failed = false;
                // There is room; and if there were not, the numbers would return.
                drop(self.blocks.push(block));
            }
            Err(NoNumbers::UsedUp(_)) => {
                self.is_used_up = true;
                tracing::warn!(
                    "SA {} ({}): only {} sequence numbers are left: give it new keys on both ends",
                    self.name,
                    self.id,
                    self.end.saturating_sub(next)
                );
            }
            Err(NoNumbers::Failed(why)) if !self.has_failed => {
                self.has_failed = true;
                tracing::error!("SA {} ({}): cannot reserve sequence numbers: {why}", self.name, self.id);
            }
            Err(NoNumbers::Failed(_)) => {}
        }
    }

    fn say_used_up(&self) {
        let fix = if self.esn { "" } else { ", and esn = \"on\"" };
        tracing::error!(
            "SA {} ({}): all sequence numbers are used, so it sends nothing: give it new keys{fix} on both ends",
            self.name,
            self.id
        );
    }
}
