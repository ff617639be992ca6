//! What the mirror may have wrong: messages that do not say which object they are about, and lifetimes.
//!
//! | in doubt | until |
//! |---|---|
//! | the routes to a prefix: a deletion that fits none or several, a place in the order that no message tells | they are read again |
//! | an IPv6 prefix with a route whose lifetime ends | it is read again and has a longer one, or is gone |
//! | the rules of a family, for the same reasons | they are read again |
//! | an IPv6 destination with another path MTU or gateway that Linux has learned | Linux forgets that |
//!
//! The mirror has no clock: it passes lifetimes on to the driver, which calls [`Mirror::doubt_prefix`] in time.
//! Only packets that an object in doubt concerns are left to Linux.

use super::change::Change;
use super::order::{FROM_ADVERTISEMENT, Fit};
use super::{Mirror, Touched};
use crate::hop::Via;
use crate::link::Link;
use crate::route::{RouteEvent, RouteMessage};
use bm_wire::Family;
use bm_wire::prefix::{Address, Ipv4Prefix, Ipv6Prefix, Prefix};
use std::collections::BTreeSet;

/// A prefix of an IPv6 table, and how long a route to it is valid, in hundredths of a second.
pub(crate) type Lifetime = (u32, Ipv6Prefix, i32);

/// What is to be done about doubts.
#[derive(Debug, Default)]
pub(super) struct Doubts {
    /// The tables should be read again at once.
    pub reread: bool,
    /// Linux may have copied the settings for new interfaces to others, which it does not announce.
    pub settings_copied: bool,
    /// Lifetimes heard of since they were last taken.
    lifetimes: Vec<Lifetime>,
}

/// What a message about a route concerns.
pub(super) struct Subject<A> {
    table: u32,
    prefix: Prefix<A>,
    /// The mirror has removed such routes by itself already, for example because their link is down.
    expected_gone: bool,
}

impl Mirror {
    /// Whether something is in doubt that reading the tables again resolves.
    pub fn take_reread_request(&mut self) -> bool {
        std::mem::take(&mut self.doubts.reread)
    }

    /// Whether the rules of a family may be others in the kernel, so that only Linux can forward its packets.
    pub fn rules_in_doubt(&self, family: Family) -> bool {
        self.rules_in_doubt[family as usize]
    }

    /// Lifetimes heard of since the last call.
    pub(crate) fn take_lifetimes(&mut self) -> Vec<Lifetime> {
        std::mem::take(&mut self.doubts.lifetimes)
    }

    /// A route to an IPv6 prefix may have ended without a message.
    pub(crate) fn doubt_prefix(&mut self, table: u32, prefix: Ipv6Prefix) {
        if !self.ipv6.get(table, prefix).is_empty() {
            self.ipv6.doubt(table, prefix, &mut self.changes);
        }
    }

    /// A new list replaces the mirror's, of which `touched` were changed while it was made: what was in doubt there
    /// stays so. Doubts of this list itself do not matter, since events were applied to it that it knew already.
    pub(crate) fn keep_doubts(&mut self, live: &Mirror, touched: &Touched, rules: [bool; 2]) {
        let (four, six) = touched;
        let changes = &mut self.changes;
        self.ipv4
            .doubt_only(four.iter().copied().filter(|&(t, p)| live.ipv4.in_doubt(t, p)).collect(), changes);
        self.ipv6
            .doubt_only(six.iter().copied().filter(|&(t, p)| live.ipv6.in_doubt(t, p)).collect(), changes);
        self.rules_in_doubt = rules;
        // Except that Linux may have copied settings after they were listed.
        self.doubts = Doubts { settings_copied: self.doubts.settings_copied, ..Doubts::default() };
    }

    /// Whether anything is in doubt.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.rules_in_doubt.contains(&true) || self.ipv4.has_doubts() || self.ipv6.has_doubts()
    }

    /// Sets the destinations for which the kernel has learned another path MTU or gateway; those of a family without any
    /// news stay.
    pub(crate) fn set_exceptions(
        &mut self,
        four: Option<BTreeSet<(u32, Ipv4Prefix)>>,
        six: Option<BTreeSet<(u32, Ipv6Prefix)>>,
    ) {
        if let Some(four) = four {
            self.ipv4.set_exceptions(four, &mut self.changes);
        }
        if let Some(six) = six {
            self.ipv6.set_exceptions(six, &mut self.changes);
        }
    }

    /// Forgets the rules of a family, which are listed again.
    pub(crate) fn forget_rules(&mut self, family: Family) {
        self.rules.retain(|rule| rule.family != family);
    }

    /// Takes over the rules of a family as `live` has them.
    pub(crate) fn copy_rules(&mut self, live: &Mirror, family: Family) {
        self.forget_rules(family);
        self.rules.extend(live.rules.iter().filter(|rule| rule.family == family).cloned());
        self.rules.sort_by_key(|rule| rule.family);
    }

    pub(super) fn doubt_rules(&mut self, family: Family) {
        self.set_rules_in_doubt(family, true);
        (self.doubts.reread, self.doubt) = (true, true);
    }

    pub(super) fn set_rules_in_doubt(&mut self, family: Family, now: bool) {
        if std::mem::replace(&mut self.rules_in_doubt[family as usize], now) != now {
            self.changes.push(Change::Rules(family));
        }
    }

    pub(super) fn subject<A: Address>(&self, route: &RouteMessage<A>) -> Subject<A> {
        let expected_gone = route.event == RouteEvent::Deleted
            && match &route.body.via {
                Via::Nowhere => false,
                Via::Object(id) => self.next_hop(*id).is_none(),
                via => via.hops().iter().all(|hop| {
                    self.link(hop.ifindex).is_none_or(|link: &Link| !link.up() || !link.carrier())
                }),
            };
        Subject { table: route.table, prefix: route.prefix, expected_gone }
    }

    pub(super) fn judge4(&mut self, about: Subject<u32>, fit: Fit) {
        self.doubt |= fit != Fit::Certain;
        if about.is_doubtful(fit) {
            self.ipv4.doubt(about.table, about.prefix, &mut self.changes);
        }
        // A change may have ended a doubt, too.
        self.doubts.reread |= self.ipv4.needs_reread(about.table, about.prefix);
    }

    pub(super) fn judge6(&mut self, about: Subject<u128>, fit: Fit) {
        self.doubt |= fit != Fit::Certain;
        if about.is_doubtful(fit) {
            self.ipv6.doubt(about.table, about.prefix, &mut self.changes);
        }
        self.doubts.reread |= self.ipv6.needs_reread(about.table, about.prefix);
    }

    pub(super) fn note_lifetime(&mut self, route: &RouteMessage<u128>) {
        if route.lifetime == 0 || route.event == RouteEvent::Deleted {
            return;
        }
        self.doubts.lifetimes.push((route.table, route.prefix, route.lifetime));
        // Linux announces such a route before it sets its new lifetime.
        let advertised = route.body.protocol == FROM_ADVERTISEMENT && route.event != RouteEvent::Listed;
        self.doubts.reread |= advertised;
    }
}

impl<A> Subject<A> {
    fn is_doubtful(&self, fit: Fit) -> bool {
        match fit {
            Fit::Certain => false,
            Fit::Unmatched => !self.expected_gone,
            Fit::Ambiguous => true,
        }
    }
}
