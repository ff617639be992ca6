//! Messages between nodes that are not about their state: counts of frames, questions and answers.

use super::{Cluster, own_mac};
use crate::error::ClusterError;
use crate::message::{self, BYTES, Contents};
use crate::questions::{Next, Question};

/// A question of another node: its number, that of the question, the path.
pub type NodeRequest = (u16, u64, String);

impl Cluster {
    /// Handles a message from a link.
    pub(super) fn handle(&mut self, at: usize, contents: Contents, now_ns: u64) {
        match contents {
            Contents::Sent(sent) => {
                let link = &mut self.links[at];
                let ifindex = link.attached.as_ref().map(|attached| attached.ifindex);
                if let Some(counters) = ifindex.and_then(|ifindex| self.program.counters(ifindex)) {
                    link.account.note(sent, counters.received());
                }
            }
            Contents::Ask { id, first, path } => {
                let node = self.links[at].session.peer().number();
                match self.answers.asked(node, id, first, now_ns) {
                    Next::Send(parts) => self.send_parts(at, id, parts),
                    Next::Wait => {}
                    Next::Compute => {
                        // Without the thread that answers there is no answer, and the other node gives up.
                        let _not_answered = self.asked.as_ref().map(|asked| asked.send((node, id, path)));
                    }
                }
            }
            Contents::Answer { id, part, parts, bytes } => {
                if let Some(question) = self.questions.get_mut(&id) {
                    question.add(part, parts, bytes);
                }
            }
            Contents::Hello { .. } | Contents::Part { .. } => {}
        }
    }

    /// Sends all other nodes the number of frames that were sent to them.
    pub(super) fn send_counts(&mut self) {
        // Of this network namespace, wherever /sys comes from.
        let devices = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
        for at in 0..self.links.len() {
            if let Some(sent) = sent_by(&devices, &self.links[at].device) {
                self.send_message(at, Contents::Sent(sent));
            }
        }
    }

    fn send_parts(&mut self, at: usize, id: u64, parts: Vec<(u16, u16, Vec<u8>)>) {
        for (part, parts, bytes) in parts {
            self.send_message(at, Contents::Answer { id, part, parts, bytes });
        }
    }

    /// Sends a message if the link has an interface.
    fn send_message(&mut self, at: usize, contents: Contents) {
        let (own, link) = (own_mac(self.own), &mut self.links[at]);
        if let Some(attached) = &link.attached {
            let Some(message) = link.session.message(contents) else { return };
            attached.socket.send(&message::frame(&message, &self.key, own, link.session.peer()));
        }
    }

    /// Questions of other nodes go here.
    pub fn answer_with(&mut self, asked: std::sync::mpsc::Sender<NodeRequest>) {
        self.asked = Some(asked);
    }

    /// Sends the answer to a question.
    pub fn answer(&mut self, node: u16, id: u64, bytes: Vec<u8>) {
        let parts = self.answers.computed(node, id, bytes);
        if let Some(at) = self.links.iter().position(|link| link.session.peer().number() == node) {
            self.send_parts(at, id, parts);
        }
    }

    /// Begins a question.
    ///
    /// # Errors
    /// If there is no such node, or its daemon does not answer.
    pub(crate) fn begin_question(
        &mut self,
        name: &str,
        path: &str,
        now_ns: u64,
    ) -> Result<u64, ClusterError> {
        let link = self.links.iter().find(|link| link.peer == name);
        let link = link.ok_or_else(|| ClusterError::NoSuchNode(name.into()))?;
        if path.len() > BYTES {
            return Err(ClusterError::NoAnswer(name.into(), "the request is too long"));
        }
        if !link.session.hears(now_ns) {
            return Err(ClusterError::NoAnswer(
                name.into(),
                "its daemon cannot be reached over the fabric link",
            ));
        }
        let id = (self.nonce)();
        self.questions.insert(id, Question::default());
        Ok(id)
    }

    /// Asks for the first part that is missing. Returns its number.
    pub fn ask(&mut self, name: &str, id: u64, path: &str) -> u16 {
        let first = self.first_missing(id);
        if let Some(at) = self.links.iter().position(|link| link.peer == name) {
            self.send_message(at, Contents::Ask { id, first, path: path.into() });
        }
        first
    }

    /// The first part of an answer that is missing.
    pub(crate) fn first_missing(&self, id: u64) -> u16 {
        self.questions.get(&id).map_or(0, Question::first_missing)
    }

    /// The answer, if all of it is there.
    pub fn answered(&self, id: u64) -> Option<Vec<u8>> {
        self.questions.get(&id)?.whole()
    }

    /// Whatever still comes is ignored.
    pub(crate) fn end_question(&mut self, id: u64) {
        self.questions.remove(&id);
    }
}

/// The packets that an interface has sent, by the text of `/proc/net/dev`.
fn sent_by(devices: &str, name: &str) -> Option<u64> {
    let mut counts = devices.lines().filter_map(|line| line.split_once(':'));
    let (_, counts) = counts.find(|(device, _)| device.trim() == name)?;
    counts.split_whitespace().nth(9)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_packets_that_were_sent() {
        let text = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:     100       1    0    0    0     0          0         0      100       2    0    0    0     0       0          0
  fab1: 1234567   10001    0    0    0     0          0         0  7654321   20002    0    0    0     0       0          0
";
        assert_eq!(
            (sent_by(text, "fab1"), sent_by(text, "lo"), sent_by(text, "fab")),
            (Some(20002), Some(2), None)
        );
    }
}
