//! Steps: what an administrator does to the router or to the other ends of its links, as lines for `ip`, `tc`, `nft` and
//! `/proc/sys`.
//!
//! A step does not depend on those before it: a list without some of its steps is a list that can be run, which is what
//! `shrink` relies on. What makes no sense at the moment is refused by Linux, and then by Linux of every lab.

use bm_tests::lab::Lab;
use std::fmt;

/// A sort of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Up and down, MTU, MAC, names, created again.
    Link,
    /// Devices above or beside ports: macvlan, bridge, ifb, VXLAN, TAP; masters.
    Device,
    /// A port that moves to another namespace and back.
    Moved,
    /// Carrier, MTU and MAC at the other end of a link.
    FarEnd,
    /// Addresses of both families.
    Address,
    /// Neighbors and proxies.
    Neighbor,
    /// IPv4 routes.
    Route4,
    /// IPv6 routes.
    Route6,
    /// Routes with several next hops.
    Multipath,
    /// Next-hop objects and groups.
    NextHop,
    /// Routing rules.
    Rule,
    /// Settings in `/proc/sys`.
    Setting,
    /// Tables of nftables.
    Ruleset,
    /// Qdiscs and filters.
    Traffic,
    /// IPsec policies.
    Policy,
    /// Filters of brickmoon's configuration.
    Filter,
    /// `brickmoon verify`: it must find no difference.
    Verify,
}

impl Kind {
    /// Whether the kernel does all of it before it answers and announces it, so that a router that has read all messages
    /// must do as Linux does.
    pub fn is_announced(self) -> bool {
        matches!(
            self,
            Self::Route4 | Self::Route6 | Self::Multipath | Self::NextHop | Self::Rule | Self::Neighbor
        )
    }
}

/// Where a step is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Router,
    /// The namespace of the source.
    Source,
    /// The namespace of the sink.
    Sink,
}

/// What takes a step in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// `ip -batch`.
    Ip,
    /// `ip -6 -batch`.
    Ip6,
    /// `tc -batch`.
    Tc,
    /// `nft -f`.
    Nft,
    /// A file below `/proc/sys`: the first word is its path there, the rest its value.
    Set,
    /// `brickmoon reload` with filters; in Linux alone nftables has the same ones (`filters`).
    Filter,
    /// Nothing in Linux: brickmoon is asked to compare its tables.
    Verify,
}

/// A change, small enough to be left out of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub kind: Kind,
    pub place: Place,
    pub tool: Tool,
    /// One line or several. `@src`, `@rtr` and `@snk` stand for the names of the namespaces.
    pub text: String,
    /// Words that may be left out, at the end of the last line.
    pub attributes: Vec<String>,
}

impl Step {
    /// A step in the router by lines of `ip`.
    pub fn ip(kind: Kind, text: impl Into<String>) -> Self {
        Self { kind, place: Place::Router, tool: Tool::Ip, text: text.into(), attributes: Vec::new() }
    }

    /// A step in the router by lines of another tool.
    pub fn by(kind: Kind, tool: Tool, text: impl Into<String>) -> Self {
        Self { tool, ..Self::ip(kind, text) }
    }

    /// With these attributes at the end of its line.
    pub fn with(self, attributes: Vec<String>) -> Self {
        Self { attributes, ..self }
    }

    /// At the other end of the link to the source.
    pub fn at_source(self) -> Self {
        Self { place: Place::Source, ..self }
    }

    /// At the other end of the links to the sink.
    pub fn at_sink(self) -> Self {
        Self { place: Place::Sink, ..self }
    }

    /// Whether Linux makes it at once, and no link changes: what a packet meets is the state before or the state after.
    pub fn is_atomic(&self) -> bool {
        let kinds = [Kind::Route4, Kind::Route6, Kind::Rule, Kind::NextHop];
        kinds.contains(&self.kind) && self.text.lines().count() == 1 && !self.text.contains("flush")
    }

    /// Its lines with the names of a lab's namespaces.
    pub fn lines(&self, lab: &Lab) -> String {
        let names = [("@src", lab.src.name()), ("@rtr", lab.rtr.name()), ("@snk", lab.snk.name())];
        names.iter().fold(self.whole(), |text, (word, name)| text.replace(word, name))
    }

    /// Its lines with their attributes.
    pub fn whole(&self) -> String {
        let mut text = self.text.clone();
        for attribute in &self.attributes {
            text += &format!(" {attribute}");
        }
        text
    }

    /// Simpler forms of it, each without one attribute or one line.
    pub fn simpler(&self) -> Vec<Self> {
        let without = |index: usize| {
            let mut step = self.clone();
            step.attributes.remove(index);
            step
        };
        let mut all: Vec<_> = (0..self.attributes.len()).map(without).collect();
        let lines: Vec<_> = self.text.lines().collect();
        if lines.len() > 1 && matches!(self.tool, Tool::Ip | Tool::Ip6 | Tool::Tc | Tool::Filter) {
            for index in 0..lines.len() {
                let mut rest = lines.clone();
                rest.remove(index);
                all.push(Self { text: rest.join("\n"), ..self.clone() });
            }
        }
        all
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match self.place {
            Place::Router => "",
            Place::Source => "at the source: ",
            Place::Sink => "at the sink: ",
        };
        write!(f, "{place}{:?}: {}", self.tool, self.whole().replace('\n', "; "))
    }
}
