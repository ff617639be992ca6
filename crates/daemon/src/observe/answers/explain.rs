//! `explain`: what the control thread says about a packet, completed by hooks, apps, IPsec and its flow.

mod flow;

use std::sync::MutexGuard;

use bm_api::request::ExplainQuery;
use bm_api::{Error, Explanation, Fate, Step};

use super::Daemon;
use crate::ipsec::{Ipsec, Protection};
use crate::lock;

impl Daemon {
    /// What is known of IPsec, with the names that its interfaces have now.
    pub(super) fn ipsec(&self) -> MutexGuard<'_, Ipsec> {
        let interfaces = self.control().ask(|control| control.ipsec_interfaces());
        let mut ipsec = lock(&self.forwarder.context.ipsec);
        // Without an answer they keep the names that they had.
        interfaces.into_iter().for_each(|interfaces| ipsec.name_interfaces(interfaces));
        ipsec
    }

    /// What becomes of a packet.
    pub(super) fn explain(&self, query: ExplainQuery) -> Result<Explanation, Error> {
        let mut explained = self.control().try_ask(move |control| control.explain(&query))?;
        let frame = bytes(&explained.frame);
        let path = format!(
            "{}; arrives on {} ({} path)",
            bm_capture::summary(&frame),
            explained.interface,
            explained.path
        );
        explained.steps.insert(0, step("packet", path));
        if explained.path == "user" {
            self.add_hooks_and_apps(&mut explained);
            let ipsec = self.ipsec();
            // What the program on the port gives to Linux is not decrypted, but for ESP, which it hands over.
            let is_steered = explained.fate != Fate::Linux || explained.reason.is_none();
            let arriving = ipsec.on_arrival(&frame).filter(|protection| is_steered || protection.is_esp);
            let leaving = explained.sent.first().filter(|_| explained.fate == Fate::Sent);
            let leaving = leaving.and_then(|sent| ipsec.on_departure(&bytes(&sent.frame), &sent.port));
            if let Some(protection) = arriving {
                apply(&mut explained, protection, 1);
            } else if let Some(protection) = leaving {
                let before_result = explained.steps.len() - 1;
                apply(&mut explained, protection, before_result);
            }
        }
        if let Some(of) = flow::OfConnection::read(&frame).filter(|_| explained.path == "kernel") {
            let flows = self.control().flows(of.query())?;
            if of.explain(&flows.flows, &mut explained) {
                explained.fate = Fate::Sent;
            }
        }
        let error = explained.sent.first().filter(|_| explained.fate == Fate::Dropped);
        let error = error.map(|sent| step("icmp", bm_capture::summary(&bytes(&sent.frame))));
        let before_result = explained.steps.len().saturating_sub(1);
        error.into_iter().for_each(|error| explained.steps.insert(before_result, error));
        Ok(explained)
    }

    /// Hooks and apps may do anything with a packet; they are named, not run.
    fn add_hooks_and_apps(&self, explained: &mut Explanation) {
        let hooks = self.forwarder.context.hooks.get().map(|hooks| hooks.report()).unwrap_or_default();
        let named = hooks.iter().map(|hook| {
            let stages: Vec<&str> = hook.stages.iter().map(|stage| stage.name()).collect();
            format!("{} ({})", hook.name, stages.join(", "))
        });
        let named = named.collect::<Vec<_>>().join(", ");
        let before_result = explained.steps.len() - 1;
        if self.forwarder.setup().config.has_apps_behind(&explained.port) {
            let text = "apps on the port get the packet first, and may change or drop it".to_string();
            explained.steps.insert(before_result, step("apps", text));
        }
        if !named.is_empty() {
            let text = format!("{named}: not run here, may change the result");
            explained.steps.insert(before_result, step("hooks", text));
        }
    }
}

/// Adds what IPsec does with a packet, at this place of the steps; nothing is known of it afterwards but its peer.
fn apply(explained: &mut Explanation, protection: Protection, at: usize) {
    let Protection { text, result, .. } = protection;
    explained.steps.insert(at, step("ipsec", text));
    let Some((fate, reason, result)) = result else { return };
    if at == 1 {
        // Before the router: it does not get the packet as it is.
        explained.steps.truncate(2);
        explained.steps.push(step("result", result));
        explained.route = None;
    } else if let Some(last) = explained.steps.last_mut() {
        last.text = result;
    }
    (explained.fate, explained.reason) = (fate, reason);
    explained.sent.clear();
}

fn step(step: &str, text: String) -> Step {
    Step { step: step.into(), text }
}

/// The bytes of a frame in a reply.
fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u32> = hex.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits.chunks_exact(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}
