//! The list of the members in the store, with numbers and epoch, and the registrations of running daemons.
//!
//! ```text
//! PREFIX/members         {"epoch":3,"members":[{"name":"a","node":0},{"name":"b","node":1}]}      changed by one node at a time
//! PREFIX/nodes/a         {"name":"a","node":0,"epoch":3,"behind":[],"ports":[…],"instance":"…"}   goes with a's lease
//! ```
//!
//! Each value is followed by a line with its tag, under the key that all members share, so that access to the store alone
//! does not make a node a member. A member that is not registered remains one: only [`MemberList::without`] removes it.
//!
//! The next epoch begins when all members that can be reached have the current one. So two nodes are never more than one
//! epoch apart, and accept each other's frames.
//!
//! Pure: no store and no clock.

use bm_vlb::address::Node;
use bm_vlb::membership::Epoch;
use serde_json::{Value, json};

use crate::message::Key;
use crate::settings::{ExternalPort, Limits, Member, ROOM_WITH_STORE};

/// The members, under an epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberList {
    pub epoch: Epoch,
    pub members: Vec<Member>,
}

/// A member whose daemon runs and reaches the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    pub name: String,
    pub node: Node,
    /// Drawn by the daemon at its start.
    pub instance: u64,
    /// Its current epoch.
    pub epoch: Epoch,
    /// The nodes that it receives messages from, and that do not have this epoch yet.
    pub behind: Vec<String>,
    pub ports: Vec<ExternalPort>,
}

/// Why a node cannot become a member, or leave.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoChange {
    #[error(
        "{name} has the number {}: choose another `node` in [cluster.store], or leave it out",
        .0.number(), name = .1
    )]
    Taken(Node, String),
    #[error(
        "this node is a member with the number {}: set `node` in [cluster.store] to that, or leave it out",
        .0.number()
    )]
    OtherNumber(Node),
    #[error("the cluster has {ROOM_WITH_STORE} members, and no number is free")]
    Full,
    #[error("{0} is not a member of the cluster")]
    NotAMember(String),
    #[error(
        "the members can only change when all nodes have the current epoch; waiting for {}: see `brickmoon \
         show cluster` there, or remove it",
        .0.join(", ")
    )]
    Behind(Vec<String>),
}

impl MemberList {
    pub fn has(&self, name: &str) -> bool {
        self.members.iter().any(|member| member.name == name)
    }

    /// The next list, with another member.
    ///
    /// # Errors
    /// If it cannot have the number that it asks for.
    pub fn with(&self, name: &str, wanted: Option<Node>) -> Result<Self, NoChange> {
        if let Some(member) = self.members.iter().find(|member| member.name == name) {
            return match wanted {
                Some(wanted) if wanted != member.node => Err(NoChange::OtherNumber(member.node)),
                _ => Ok(self.clone()),
            };
        }
        let owner = |node: Node| self.members.iter().find(|member| member.node == node);
        let node = match wanted {
            Some(node) => match owner(node) {
                Some(owner) => return Err(NoChange::Taken(node, owner.name.clone())),
                None => node,
            },
            None => {
                let mut nodes = (0..ROOM_WITH_STORE).filter_map(Node::new);
                nodes.find(|node| owner(*node).is_none()).ok_or(NoChange::Full)?
            }
        };
        let mut members = self.members.clone();
        members.push(Member { name: name.into(), node });
        members.sort_by_key(|member| member.node);
        Ok(Self { epoch: self.epoch.next(), members })
    }

    /// The next list, without a member.
    ///
    /// # Errors
    /// If it is none.
    pub fn without(&self, name: &str) -> Result<Self, NoChange> {
        if !self.has(name) {
            return Err(NoChange::NotAMember(name.into()));
        }
        let mut members = self.members.clone();
        members.retain(|member| member.name != name);
        Ok(Self { epoch: self.epoch.next(), members })
    }

    /// Whether the next epoch can begin, according to the registrations. That of `leaving` does not matter.
    ///
    /// # Errors
    /// The nodes that are behind.
    pub fn may_change(&self, registered: &[Registration], leaving: &str) -> Result<(), NoChange> {
        let mut behind: Vec<String> = Vec::new();
        for registration in registered.iter().filter(|registration| self.has(&registration.name)) {
            if registration.epoch != self.epoch {
                behind.push(registration.name.clone());
            }
            behind.extend(registration.behind.iter().filter(|name| self.has(name)).cloned());
        }
        behind.retain(|name| name != leaving);
        behind.sort_unstable();
        behind.dedup();
        if behind.is_empty() { Ok(()) } else { Err(NoChange::Behind(behind)) }
    }

    pub(crate) fn to_text(&self, path: &str, key: &Key) -> Vec<u8> {
        let members: Vec<_> = self
            .members
            .iter()
            .map(|member| json!({ "name": member.name, "node": member.node.number() }))
            .collect();
        signed(path, &json!({ "epoch": self.epoch.number(), "members": members }), key)
    }

    /// `None` if it is malformed, or the tag is of another key.
    pub fn from_text(path: &str, text: &[u8], key: &Key) -> Option<Self> {
        let value = verified(path, text, key)?;
        let members: Option<Vec<_>> = value["members"]
            .as_array()?
            .iter()
            .map(|value| {
                Some(Member {
                    name: value["name"].as_str()?.into(),
                    node: number(&value["node"]).and_then(Node::new)?,
                })
            })
            .collect();
        Some(Self { epoch: Epoch::new(number(&value["epoch"])?), members: members? })
    }
}

impl Registration {
    pub(crate) fn to_text(&self, path: &str, key: &Key) -> Vec<u8> {
        let ports = self.ports.iter().map(
            |port| json!({ "device": port.device, "number": port.number.number(), "speed": port.speed }),
        );
        let value = json!({
            "name": self.name,
            "node": self.node.number(),
            "instance": format!("{:016x}", self.instance),
            "epoch": self.epoch.number(),
            "behind": self.behind,
            "ports": ports.collect::<Vec<_>>(),
        });
        signed(path, &value, key)
    }

    /// `None` if it is malformed, or the tag is of another key.
    pub fn from_text(path: &str, text: &[u8], key: &Key) -> Option<Self> {
        let value = verified(path, text, key)?;
        let ports = value["ports"].as_array()?.iter().map(|value| {
            Some(ExternalPort {
                device: value["device"].as_str()?.into(),
                number: number(&value["number"]).and_then(bm_vlb::address::Port::new)?,
                speed: number(&value["speed"])?,
                // Only that node itself needs them.
                limits: Limits::default(),
            })
        });
        let behind = value["behind"].as_array()?.iter().map(|name| Some(name.as_str()?.to_string()));
        Some(Self {
            name: value["name"].as_str()?.into(),
            node: number(&value["node"]).and_then(Node::new)?,
            instance: u64::from_str_radix(value["instance"].as_str()?, 16).ok()?,
            epoch: Epoch::new(number(&value["epoch"])?),
            behind: behind.collect::<Option<_>>()?,
            ports: ports.collect::<Option<_>>()?,
        })
    }
}

fn number<T: TryFrom<u64>>(value: &Value) -> Option<T> {
    T::try_from(value.as_u64()?).ok()
}

/// The tag is also over the path, so that no value can stand for another one.
fn signed(path: &str, value: &Value, key: &Key) -> Vec<u8> {
    let text = value.to_string();
    let tag = key.sign(format!("{path}\n{text}").as_bytes());
    format!("{text}\n{tag}\n").into_bytes()
}

fn verified(path: &str, text: &[u8], key: &Key) -> Option<Value> {
    let (text, tag) = std::str::from_utf8(text).ok()?.trim_end().rsplit_once('\n')?;
    if !key.is_signed(format!("{path}\n{text}").as_bytes(), tag) {
        return None;
    }
    serde_json::from_str(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bm_vlb::address::Port;

    fn node(number: u16) -> Node {
        Node::new(number).expect("small")
    }

    fn names(list: &MemberList) -> Vec<(&str, u16)> {
        list.members.iter().map(|member| (member.name.as_str(), member.node.number())).collect()
    }

    fn registration(name: &str, epoch: u8, behind: &[&str]) -> Registration {
        Registration {
            name: name.into(),
            node: node(1),
            instance: 0xfeed,
            epoch: Epoch::new(epoch),
            behind: behind.iter().map(ToString::to_string).collect(),
            ports: vec![ExternalPort {
                device: "eth0".into(),
                number: Port::new(3).expect("small"),
                speed: 25_000,
                limits: Limits::default(),
            }],
        }
    }

    #[test]
    fn members_get_numbers_that_are_free() {
        let list = MemberList::default().with("a", None).and_then(|list| list.with("c", Some(node(7))));
        let list = list.and_then(|list| list.with("b", None)).expect("free numbers");
        assert_eq!((names(&list), list.epoch), (vec![("a", 0), ("b", 1), ("c", 7)], Epoch::new(3)));
        assert_eq!(list.with("a", None), Ok(list.clone()), "it is a member already");
        assert_eq!(list.with("a", Some(node(2))), Err(NoChange::OtherNumber(node(0))));
        assert_eq!(list.with("d", Some(node(7))), Err(NoChange::Taken(node(7), "c".into())));
        let rest = list.without("a").expect("a member");
        assert_eq!((names(&rest), rest.epoch), (vec![("b", 1), ("c", 7)], Epoch::new(4)));
        assert_eq!(rest.without("a"), Err(NoChange::NotAMember("a".into())));
        let names = (0..ROOM_WITH_STORE).map(|number| format!("n{number}"));
        let full = names.fold(MemberList::default(), |list, name| list.with(&name, None).expect("room"));
        assert_eq!(full.with("a", None), Err(NoChange::Full));
    }

    #[test]
    fn the_next_epoch_waits_for_those_who_are_behind() {
        let list = ["a", "b", "c"]
            .iter()
            .fold(MemberList::default(), |list, name| list.with(name, None).expect("room"));
        assert_eq!(list.may_change(&[registration("a", 3, &[]), registration("b", 3, &[])], ""), Ok(()));
        let late = [registration("a", 3, &["c"]), registration("b", 2, &[]), registration("x", 1, &["y"])];
        assert_eq!(list.may_change(&late, ""), Err(NoChange::Behind(vec!["b".into(), "c".into()])));
        assert_eq!(list.may_change(&late[..1], "c"), Ok(()), "it leaves");
    }

    #[test]
    fn only_values_with_the_right_tag_are_read() {
        let (key, other) = (Key::new(b"0123456789abcdef"), Key::new(b"another key"));
        let list = MemberList::default().with("a", Some(node(7))).expect("room");
        let text = list.to_text("/x/members", &key);
        assert!(text.starts_with(br#"{"epoch":1,"members":[{"name":"a","node":7}]}"#));
        assert_eq!(MemberList::from_text("/x/members", &text, &key), Some(list));
        assert_eq!(MemberList::from_text("/x/members", &text, &other), None);
        assert_eq!(MemberList::from_text("/y/members", &text, &key), None);
        let at = text.iter().position(|byte| *byte == b'7').expect("its number");
        let changed = [&text[..at], b"8", &text[at + 1..]].concat();
        assert_eq!(MemberList::from_text("/x/members", &changed, &key), None);
        assert_eq!(MemberList::from_text("/x/members", b"", &key), None);
        // An etcd that lies: no other bit, and no part of it.
        for at in 0..text.len() - 1 {
            let mut lie = text.clone();
            lie[at] ^= 1;
            assert_eq!(MemberList::from_text("/x/members", &lie, &key), None, "{at}");
            assert_eq!(MemberList::from_text("/x/members", &text[..at], &key), None, "{at}");
            assert_eq!(Registration::from_text("/x/members", &lie, &key), None, "{at}");
        }
        assert_eq!(Registration::from_text("/x/members", &text, &key), None, "a list is no registration");
        let registration = registration("b", 9, &["c"]);
        let text = registration.to_text("/x/nodes/b", &key);
        assert_eq!(Registration::from_text("/x/nodes/b", &text, &key), Some(registration));
        assert_eq!(Registration::from_text("/x/nodes/b", &text, &other), None);
    }
}
