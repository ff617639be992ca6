//! Arguments of `brickmoon cluster`.

use bm_cluster::RelayLink;
use clap::{Args, Subcommand};

use super::PassedOn;
use crate::query::Query;

const RELAY_EXAMPLES: &str = "\
Examples:
  brickmoon cluster relay up --link eth0 --link eth1 --link eth2=0-3 --link eth3=4-7
                                           frames for nodes 0 to 3 leave through eth2, those for 4 to 7 through eth3
  brickmoon cluster relay up --link eth1=0,1,3 --link eth2 --own 2 --end r0=0 --end r1=1 --end r3=3
                                           node 2, whose fabric links are the other ends of r0, r1 and r3";

/// `brickmoon cluster`.
#[derive(Debug, Args)]
#[command(infer_subcommands = true)]
pub struct ClusterArgs {
    /// What to do.
    #[command(subcommand)]
    pub what: ClusterCommand,
}

/// What to do with this node of a cluster.
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Show this node and its links, as `brickmoon show cluster` does.
    Status(Query),
    /// Make other nodes send nothing over this one any more, so that no packet is lost when it ends. Its own ports go on.
    Drain(Query),
    /// Let other nodes send packets over this one again.
    Join(Query),
    /// Remove a node from the members in etcd. Move its traffic away and stop it first.
    Remove(RemoveMember),
    /// Make this server a relay: forward frames between nodes that have no link to each other, as in an n-fly.
    #[command(subcommand)]
    Relay(RelayCommand),
    /// Run four nodes in network namespaces, or eight in an n-fly: loads under several traffic matrices, then losses while a
    /// daemon is killed, a link is cut, a node is switched off and a neighbor moves.
    #[command(disable_help_flag = true, disable_version_flag = true)]
    Demo(PassedOn),
}

/// `brickmoon cluster remove`.
#[derive(Debug, Args)]
pub struct RemoveMember {
    /// Name of the node.
    pub name: String,
    #[command(flatten)]
    pub query: Query,
}

/// `brickmoon cluster relay`.
#[derive(Debug, Subcommand)]
pub enum RelayCommand {
    /// Start the relay, or change its links. It runs in the kernel until `stop` or a restart of the machine.
    #[command(after_help = RELAY_EXAMPLES)]
    Up(RelayUp),
    /// Show what was received from each interface since the last `up`.
    Show {
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Stop the relay.
    Stop,
}

/// `brickmoon cluster relay up`.
#[derive(Debug, Args)]
pub struct RelayUp {
    /// An interface to another server, with the numbers of the nodes to which frames leave through it, if any. May be repeated.
    #[arg(long = "link", value_name = "DEVICE[=NODES]", required = true)]
    pub links: Vec<RelayLink>,
    /// The number of the cluster's node on this server, if there is one.
    #[arg(long, value_name = "NODE", requires = "ends")]
    pub own: Option<u16>,
    /// With --own: the other end of the veth pair that is the fabric link to this node. May be repeated.
    #[arg(long = "end", value_name = "DEVICE=NODE", requires = "own")]
    pub ends: Vec<RelayLink>,
}
