//! XFRM messages of programs, from an IKE daemon or any other process that may connect.
//!
//! Checks: every message is answered or carried out; an SA is added once, and removed only if it is there; policies use
//! outbound SAs that are there; an SA that is given to workers can be built.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};

use bm_ipsec::{Direction, Inbound, Numbers, Outbound, Policies, Policy, SaId, SaList};
use bm_xfrm::{Answer, Change, Client, Context, Database, Messages, Now, Usage};

/// Has a database handle all messages.
pub fn run(bytes: &[u8]) {
    let (mut database, mut client, mut known) = (Database::default(), Client::default(), HashMap::new());
    let policies = RefCell::new(BTreeMap::new());
    for (at, raw) in Messages(bytes).enumerate() {
        client.process = u32::from(raw.port as u8 & 1);
        let usage = Usage {
            bytes: at as u64 * 1000,
            packets: at as u64,
            number: at as u64,
            failures: 0,
            first_ns: at as u64,
        };
        let random = || raw.sequence;
        let context = Context {
            is_configured: &|id| id.spi == 0x7777,
            has_room: &|_, gone| gone.is_some() || policies.borrow().len() < 8,
            now: Now { epoch_s: at as u64, ns: at as u64 * 1_000_000_000 },
            usage: &move |_| usage,
            is_local: &|address| address.is_ipv6(),
            random: &random,
        };
        let answer = database.handle(&mut client, &raw, &context);
        follow(&answer, &mut known, &policies);
        let answer = database.expire(&context);
        follow(&answer, &mut known, &policies);
    }
}

/// Carries out what workers would.
fn follow(answer: &Answer, known: &mut HashMap<SaId, Direction>, policies: &RefCell<BTreeMap<u64, Policy>>) {
    for message in answer.replies.iter().chain(answer.events.iter().map(|(_, event)| event)) {
        let bytes: usize = Messages(message).map(|raw| (16 + raw.body.len()).next_multiple_of(4)).sum();
        assert_eq!(bytes, message.len(), "whole messages");
    }
    for change in &answer.changes {
        let check = |sas: &SaList| {
            let mut all = sas.own.iter().chain(&sas.fallback);
            assert!(
                all.all(|id| known.get(id) == Some(&Direction::Out)),
                "policies use outbound SAs that are there"
            );
        };
        match change {
            Change::AddSa { sa, sent, received, .. } => {
                assert!(known.insert(sa.id(), sa.direction).is_none(), "it was there");
                let mut inbound = Inbound::new(sa, 0).expect("an SA without problems");
                inbound.resume(*received);
                if let Ok(numbers) = Numbers::after(*sent, sa.esn).reserve(1) {
                    assert!(Outbound::new(sa, numbers, 0, 0).is_ok());
                }
            }
            Change::RemoveSa(id) => assert!(known.remove(id).is_some(), "it was not there"),
            Change::AddPolicy { order, policy, sas } => {
                policies.borrow_mut().insert(*order, Policy::clone(policy));
                let all = policies
                    .borrow()
                    .iter()
                    .map(|(order, policy)| (*order, policy.clone()))
                    .collect::<Vec<_>>();
                assert!(Policies::with_orders(all).is_ok());
                check(sas);
            }
            Change::LeaveSa(..) => {}
            Change::RemovePolicy { order } => {
                assert!(policies.borrow_mut().remove(order).is_some(), "it was not there");
            }
            Change::RemoveAllPolicies => policies.borrow_mut().clear(),
            Change::Current { sas, .. } => check(sas),
        }
    }
}
