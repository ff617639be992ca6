//! What the API server asks: a method for each request.

use bm_api::request::{ClearQuery, ExplainQuery, RouteQuery, StopQuery};
use bm_api::{
    Apps, Cleared, Cluster, Collectors, Drops, Error, Explanation, Filters, Hooks, IpsecPolicies, Links,
    Macs, Neighbors, NextHops, Ports, Reloaded, Routes, Sas, Status, Stopping, Switches, Verify, Workers,
};

/// What every process with a control socket answers.
pub trait Answers: Send + Sync + 'static {
    /// State of the process.
    ///
    /// # Errors
    /// If a thread does not answer.
    fn status(&self) -> Result<Status, Error>;
    /// Apps and their accounts.
    fn apps(&self) -> Apps;
    /// Links between apps.
    fn links(&self) -> Links;
    /// Workers with their state and frame memory.
    fn workers(&self) -> Workers;
    /// Dropped frames by reason.
    fn drops(&self) -> Drops;
    /// Metrics for Prometheus.
    fn metrics(&self) -> String;
    /// Makes the process end after this reply has been sent.
    ///
    /// # Errors
    /// Why it cannot end as the query says.
    fn stop(&self, query: &StopQuery) -> Result<Stopping, Error>;
    /// The error for a path that this process does not serve.
    fn no_such_path(&self) -> Error;
}

/// What only the daemon answers.
pub trait AnswersOfDaemon: Answers {
    /// Ports with their interfaces and accounts.
    ///
    /// # Errors
    /// If there are none at the moment: at the end, and while the data path starts again.
    fn ports(&self) -> Result<Ports, Error>;
    /// Routes, as the fast path uses them.
    ///
    /// # Errors
    /// What is wrong with the query, or that the control thread does not answer.
    fn routes(&self, query: &RouteQuery) -> Result<Routes, Error>;
    /// What becomes of one packet.
    ///
    /// # Errors
    /// What is wrong with the query, or that the control thread does not answer.
    fn explain(&self, query: &ExplainQuery) -> Result<Explanation, Error>;
    /// The kernel's neighbors on our ports.
    ///
    /// # Errors
    /// If the control thread does not answer.
    fn neighbors(&self) -> Result<Neighbors, Error>;
    /// Next hops and next-hop groups.
    ///
    /// # Errors
    /// If the control thread does not answer.
    fn next_hops(&self) -> Result<NextHops, Error>;
    /// Switches with their ports.
    fn switches(&self) -> Switches;
    /// The MAC addresses that switches have learned.
    fn macs(&self) -> Macs;
    /// This node of a cluster, with its links.
    fn cluster(&self) -> Cluster;
    /// Asks other nodes to send nothing over this one any more, or to do so again.
    ///
    /// # Errors
    /// If there is no cluster, or nodes do not confirm it in time.
    fn set_drained(&self, drained: bool) -> Result<Cluster, Error>;
    /// Removes a member from the store of the cluster's members.
    ///
    /// # Errors
    /// If there is no cluster or no store, or it stays a member.
    fn remove_member(&self, name: &str) -> Result<Cluster, Error>;
    /// What another node of the cluster answers to a GET request: status and body.
    ///
    /// # Errors
    /// If there is no cluster, or no such node, or it does not answer.
    fn of_node(&self, name: &str, path: &str) -> Result<(u16, Vec<u8>), Error>;
    /// Filter rules with their matches.
    ///
    /// # Errors
    /// If the control thread does not answer.
    fn filters(&self) -> Result<Filters, Error>;
    /// IPsec security associations.
    fn sas(&self) -> Sas;
    /// IPsec policies.
    fn policies(&self) -> IpsecPolicies;
    /// Collectors of sFlow and IPFIX, and what they have been told.
    fn collectors(&self) -> Collectors;
    /// Lua hooks with their counters.
    fn hooks(&self) -> Hooks;
    /// What the counters were when they were cleared last.
    fn cleared(&self) -> Cleared;
    /// Makes displays count from now on, or show all counts again.
    ///
    /// # Errors
    /// If the counters cannot be read at the moment.
    fn clear(&self, query: &ClearQuery) -> Result<Cleared, Error>;
    /// Compares all tables with the kernel's.
    ///
    /// # Errors
    /// If the control thread does not answer, or the kernel's tables cannot be read.
    fn verify(&self) -> Result<Verify, Error>;
    /// Reads the configuration file again and applies all changes that are possible while running.
    ///
    /// # Errors
    /// What is wrong with the file, or why it cannot be applied. Then nothing has changed, or the error says what has.
    fn reload(&self) -> Result<Reloaded, Error>;
}
