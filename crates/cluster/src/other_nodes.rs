//! Asks other nodes over the fabric what they show, and answers them.
//!
//! ```text
//! GET /v1/nodes/b/v1/ports ─► OtherNodes ─► fabric link ─► bm-cluster on b ─► bm-answers: b's own control socket, only GET
//! ```

use std::sync::{Arc, Weak};
use std::time::Duration;

use bm_sys::Mutex;

use crate::clock::now_ns;
use crate::error::ClusterError;
use crate::node::{Cluster, NodeRequest};
use crate::questions::{ANSWER_MAX, WINDOW};
use crate::service::Service;

/// How long an answer may take, how long to wait before asking again for what is missing, and how often to look.
const ANSWER_TIME: Duration = Duration::from_secs(20);
const ASK_AGAIN: Duration = Duration::from_millis(200);
const LOOK_AGAIN: Duration = Duration::from_millis(2);

impl Service {
    /// Answers the questions of other nodes: `answer` gets the path of a GET request, and returns status and body.
    ///
    /// # Errors
    /// The system's error.
    pub fn answer_with(
        &self,
        answer: impl Fn(&str) -> (u16, Vec<u8>) + Send + 'static,
    ) -> Result<(), ClusterError> {
        let (sender, questions) = std::sync::mpsc::channel::<NodeRequest>();
        // It ends when the cluster does, and with it the sender.
        let cluster = Arc::downgrade(&self.cluster);
        let thread = std::thread::Builder::new().name("bm-answers".into());
        let started = thread.spawn(move || {
            for (node, id, path) in questions {
                let (mut status, mut body) = answer(&path);
                if body.len() > ANSWER_MAX {
                    (status, body) = (413, br#"{"message":"the reply is too long to be sent over the fabric","hint":"run the command on that node"}"#.to_vec());
                }
                let Some(cluster) = cluster.upgrade() else { return };
                cluster.lock().answer(node, id, [&status.to_be_bytes()[..], &body].concat());
            }
        });
        started.map_err(bm_bpf::Error::system("starting the thread that answers other nodes"))?;
        self.cluster.lock().answer_with(sender);
        Ok(())
    }

    /// What asks other nodes.
    pub fn other_nodes(&self) -> OtherNodes {
        OtherNodes(Arc::downgrade(&self.cluster))
    }
}

/// Asks other nodes, which may take a while.
pub struct OtherNodes(Weak<Mutex<Cluster>>);

impl OtherNodes {
    /// What the control socket of another node answers to a GET request: status and body.
    ///
    /// # Errors
    /// If there is no link to it, or it does not answer in time.
    pub fn ask(&self, name: &str, path: &str) -> Result<(u16, Vec<u8>), ClusterError> {
        let began = now_ns();
        let late = || ClusterError::NoAnswer(name.into(), "its daemon has not answered in time");
        // The cluster is let go of before the wait.
        let id = self.0.upgrade().ok_or_else(late)?.lock().begin_question(name, path, began)?;
        let answer = self.collect(name, id, path, began);
        if let Some(cluster) = self.0.upgrade() {
            cluster.lock().end_question(id);
        }
        let answer = answer.ok_or_else(late)?;
        let (status, body) = answer.split_first_chunk::<2>().ok_or_else(late)?;
        Ok((u16::from_be_bytes(*status), body.to_vec()))
    }

    fn collect(&self, name: &str, id: u64, path: &str, began: u64) -> Option<Vec<u8>> {
        let (mut asked, mut asked_ns) = (None, 0);
        while now_ns() < began + ANSWER_TIME.as_nanos() as u64 {
            let shared = self.0.upgrade()?;
            let mut cluster = shared.lock();
            if let Some(answer) = cluster.answered(id) {
                return Some(answer);
            }
            let is_next = asked.is_some_and(|asked: u16| cluster.first_missing(id) >= asked + WINDOW as u16);
            if asked.is_none() || is_next || now_ns() > asked_ns + ASK_AGAIN.as_nanos() as u64 {
                (asked, asked_ns) = (Some(cluster.ask(name, id, path)), now_ns());
            }
            drop(cluster);
            drop(shared);
            std::thread::sleep(LOOK_AGAIN);
        }
        None
    }
}
