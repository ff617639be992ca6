//! Interfaces on top of ours that are in other network namespaces: they may take our frames, and no message has them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bm_fastpath::{UpperElsewhere, Uppers};
use bm_netlink::Upper;

/// How often they are listed anyway: Linux announces an interface above another one, but not always its end.
const EVERY: Duration = Duration::from_millis(200);
/// The largest share of the time for lists after messages: one part in this many.
const SHARE: u32 = 20;

/// Lists them.
pub(super) struct UppersElsewhere {
    /// `None` if the kernel cannot list them.
    program: Option<Uppers>,
    /// Next time, with or without a message.
    at: Instant,
    /// Not before this.
    rest_until: Instant,
    /// Whether a list has failed since the last good one.
    failed: bool,
    known: BTreeMap<u32, Vec<Upper>>,
}

impl UppersElsewhere {
    pub fn open(now: Instant) -> Self {
        let program = Uppers::load().inspect_err(
            |why| tracing::info!(%why, "interfaces in other network namespaces on top of ports are not seen"),
        );
        let known = BTreeMap::new();
        Self { program: program.ok(), at: now, rest_until: now, failed: false, known }
    }

    /// Lists those on top of `interfaces` if it is time, or if messages came. `None` if nothing has changed.
    pub fn look(
        &mut self,
        interfaces: impl Iterator<Item = u32>,
        came: bool,
    ) -> Option<BTreeMap<u32, Vec<Upper>>> {
        let program = self.program.as_mut()?;
        let begin = Instant::now();
        if begin < self.rest_until || begin < self.at && !came {
            return None;
        }
        let mut interfaces = interfaces.peekable();
        interfaces.peek()?;
        let listed: Result<Vec<_>, _> =
            interfaces.map(|ifindex| Ok((ifindex, program.of(ifindex)?))).collect();
        (self.at, self.rest_until) = (begin + EVERY, begin + begin.elapsed() * SHARE);
        let listed = match listed {
            Ok(listed) => listed,
            Err::<_, String>(why) => {
                if !std::mem::replace(&mut self.failed, true) {
                    tracing::warn!(%why, "cannot list interfaces in other network namespaces on top of ports");
                }
                return None;
            }
        };
        self.failed = false;
        let now: BTreeMap<u32, Vec<Upper>> = listed
            .into_iter()
            .filter(|(_, uppers)| !uppers.is_empty())
            .map(|(ifindex, uppers)| (ifindex, uppers.into_iter().map(upper).collect()))
            .collect();
        if now == self.known {
            return None;
        }
        self.known.clone_from(&now);
        Some(now)
    }
}

fn upper(of: UpperElsewhere) -> Upper {
    let UpperElsewhere { ifindex, namespace, kind, macvlan_mode, same_mac } = of;
    Upper { ifindex, namespace, kind, macvlan_mode, same_mac }
}
