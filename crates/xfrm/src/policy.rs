//! Policies as IKE daemons add them: read from messages.

use bm_ipsec::{Action, Mark, Policy, Template, problems};

use crate::layout::{attribute, errno, policy as at, selector as selector_at, template};
use crate::mark::mark;
use crate::message::{attributes, big_u32, number, structure};
use crate::request_error::{RequestError, if_id, only_esp, refuse_unsupported};
use crate::sa::mode;
use crate::selector::{address, selector};

/// Directions of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PolicyDirection {
    In,
    Out,
    /// What is forwarded.
    Forward,
}

/// Which policy: by its index, or by direction and selector; and by its mark and interface.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PolicyKey {
    pub(crate) direction: PolicyDirection,
    /// 0 for none.
    pub(crate) index: u32,
    pub(crate) selector: [u8; selector_at::LENGTH],
    pub(crate) mark: Mark,
    /// 0 for none.
    pub(crate) if_id: u32,
}

/// A policy, read from a message.
#[derive(Clone, PartialEq, Eq)]
pub struct NewPolicy {
    pub(crate) direction: PolicyDirection,
    /// `struct xfrm_userpolicy_info`.
    pub(crate) info: [u8; at::LENGTH],
    /// `struct xfrm_user_tmpl`, or nothing.
    pub(crate) templates: Vec<u8>,
    /// With [`Action::Discard`] in place of a template.
    pub(crate) policy: Policy,
    pub(crate) template: Option<Template>,
}

impl PolicyDirection {
    pub fn read(direction: u8) -> Result<Self, RequestError> {
        match direction {
            0 => Ok(Self::In),
            1 => Ok(Self::Out),
            2 => Ok(Self::Forward),
            other => Err(RequestError::new(errno::INVALID, format!("policy direction {other}"))),
        }
    }

    /// For workers, what they forward and what is for this machine arrives alike.
    fn of_workers(self) -> bm_ipsec::Direction {
        match self {
            Self::Out => bm_ipsec::Direction::Out,
            Self::In | Self::Forward => bm_ipsec::Direction::In,
        }
    }
}

impl NewPolicy {
    /// Reads `struct xfrm_userpolicy_info` and its attributes.
    pub(crate) fn read(body: &[u8]) -> Result<Self, RequestError> {
        let info: &[u8; at::LENGTH] = structure(body)?;
        let attributes = attributes(body, at::LENGTH)?;
        refuse_unsupported(&attributes)?;
        let find = |kind| attributes.iter().find(|(found, _)| *found == kind).map(|(_, value)| *value);
        if find(attribute::POLICY_TYPE).is_some_and(|value| value.first() != Some(&0)) {
            return Err(RequestError::new(errno::NOT_SUPPORTED, "only policies of type main are supported"));
        }
        let has_lifetime = (0..8).any(|index| {
            let none = if index < 4 { u64::MAX } else { 0 };
            number::<u64>(info, at::LIMITS + index * 8) != none
        });
        if has_lifetime {
            return Err(RequestError::new(
                errno::NOT_SUPPORTED,
                "policies with a lifetime are not supported",
            ));
        }
        let direction = PolicyDirection::read(info[at::DIRECTION])?;
        let if_id = if_id(&attributes)?;
        let templates = find(attribute::TEMPLATES).unwrap_or_default();
        let template =
            if templates.is_empty() { None } else { Some(read_template(templates, direction, if_id)?) };
        let action = match (info[at::ACTION], template) {
            (1, _) | (0, Some(_)) => Action::Discard,
            (0, None) => Action::Bypass,
            (other, _) => return Err(RequestError::new(errno::INVALID, format!("policy action {other}"))),
        };
        let template = template.filter(|_| info[at::ACTION] == 0);
        let mut selector = selector(&info[..selector_at::LENGTH])?
            .ok_or_else(|| RequestError::new(errno::INVALID, "a selector without address family"))?;
        selector.mark = mark(&attributes);
        let priority = number(info, at::PRIORITY);
        let policy = Policy { at: 0, direction: direction.of_workers(), priority, if_id, selector, action };
        if let Some(problem) = problems(&[], std::slice::from_ref(&policy), &[]).first() {
            return Err(RequestError::new(errno::INVALID, problem.to_string()));
        }
        Ok(Self { direction, info: *info, templates: templates.to_vec(), policy, template })
    }

    pub(crate) fn selector(&self) -> &[u8] {
        &self.info[..selector_at::LENGTH]
    }

    /// Direction, selector, mark and interface, to look it up.
    pub(crate) fn key(&self) -> PolicyKey {
        let mut selector = [0; selector_at::LENGTH];
        selector.copy_from_slice(self.selector());
        PolicyKey {
            direction: self.direction,
            index: 0,
            selector,
            mark: self.mark(),
            if_id: self.policy.if_id,
        }
    }

    /// Which packets it is for, by their marks.
    pub(crate) fn mark(&self) -> Mark {
        self.policy.selector.mark
    }

    /// Whether a CPU without an SA of its own asks for one.
    pub(crate) fn asks(&self) -> bool {
        self.info[at::FLAGS] & at::CPU_ACQUIRE != 0
    }

    pub(crate) fn index(&self) -> u32 {
        number(&self.info, at::INDEX)
    }
}

fn read_template(value: &[u8], direction: PolicyDirection, if_id: u32) -> Result<Template, RequestError> {
    if value.len() > template::LENGTH {
        return Err(RequestError::new(
            errno::NOT_SUPPORTED,
            "policies with more than one template (tmpl) are not supported",
        ));
    }
    let value: &[u8; template::LENGTH] = structure(value)?;
    only_esp(value[template::PROTOCOL])?;
    if value[template::OPTIONAL] != 0 {
        let why = match direction {
            PolicyDirection::Out => {
                "templates of level use would send in clear without an SA: they are not supported"
            }
            _ => "templates of level use are not supported",
        };
        return Err(RequestError::new(errno::NOT_SUPPORTED, why));
    }
    let family = number(value, template::FAMILY);
    let [source, destination] = [template::SOURCE, template::DESTINATION]
        .map(|at| address(value, at, family).map(|end| Some(end).filter(|end| !end.is_unspecified())));
    let of = Template {
        source: source?,
        destination: destination?,
        mode: mode(value[template::MODE])?,
        reqid: number(value, template::REQID),
        spi: big_u32(value, template::SPI),
        if_id,
    };
    if direction == PolicyDirection::Out && of.destination.is_none() && of.reqid == 0 {
        let why = "a template with neither a destination nor a reqid: it would take any SA";
        return Err(RequestError::new(errno::NOT_SUPPORTED, why));
    }
    Ok(of)
}
