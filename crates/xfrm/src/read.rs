//! Requests: what a message asks for, checked, before anything is looked up or changed.

use std::net::IpAddr;

use bm_ipsec::{Mark, SaId};

use crate::layout::{
    ANY_PROTOCOL, ESP, errno, flag, hello, kind, policy_id, sa as at, sa_event, sa_id, selector,
};
use crate::mark::mark;
use crate::message::{Raw, attributes, big_u32, number, structure};
use crate::policy::{NewPolicy, PolicyDirection, PolicyKey};
use crate::request_error::{RequestError, if_id, only_esp, refuse_unsupported};
use crate::sa::NewSa;
use crate::selector::address;

/// What a program asks for, or says about itself.
pub enum Request {
    /// The preload library: groups as bits, its port, whether texts of errors are wanted.
    Hello {
        groups: u32,
        port: u32,
        texts: bool,
    },
    NewSa(Box<NewSa>),
    /// An SA for a reserved SPI.
    UpdateSa(Box<NewSa>),
    DeleteSa(SaQuery),
    GetSa(SaQuery),
    DumpSas,
    /// Whether ESP is concerned.
    FlushSas(bool),
    AllocateSpi(SpiRequest),
    NewPolicy(Box<NewPolicy>),
    UpdatePolicy(Box<NewPolicy>),
    DeletePolicy(PolicyKey),
    GetPolicy(PolicyKey),
    DumpPolicies,
    FlushPolicies,
    GetAe(SaQuery),
    SaInfo,
    PolicyInfo,
    Default,
}

/// Which SA: the one that packets with this mark have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaQuery {
    pub(crate) id: SaId,
    pub(crate) mark: u32,
}

/// A request for an SPI of an inbound SA.
pub struct SpiRequest {
    /// The SA as far as it is known: `struct xfrm_usersa_info`.
    pub(crate) info: [u8; at::LENGTH],
    pub(crate) destination: IpAddr,
    pub(crate) mark: Mark,
    pub(crate) least: u32,
    pub(crate) most: u32,
}

impl Request {
    /// Reads a message.
    ///
    /// # Errors
    /// What is wrong with it, or not supported.
    pub fn read(raw: &Raw<'_>) -> Result<Self, RequestError> {
        let body = raw.body;
        let is_dump = raw.flags & flag::DUMP != 0;
        Ok(match raw.kind {
            kind::HELLO => hello(structure(body)?),
            kind::NEW_SA => Self::NewSa(NewSa::read(body)?.into()),
            kind::UPDATE_SA => Self::UpdateSa(NewSa::read(body)?.into()),
            kind::DELETE_SA => Self::DeleteSa(sa::<{ sa_id::LENGTH }>(body)?),
            kind::GET_SA if is_dump => Self::DumpSas,
            kind::GET_SA => Self::GetSa(sa::<{ sa_id::LENGTH }>(body)?),
            kind::FLUSH_SAS => flush_sas(structure(body)?),
            kind::ALLOCATE_SPI => Self::AllocateSpi(spi_request(body)?),
            kind::NEW_POLICY => Self::NewPolicy(NewPolicy::read(body)?.into()),
            kind::UPDATE_POLICY => Self::UpdatePolicy(NewPolicy::read(body)?.into()),
            kind::DELETE_POLICY => Self::DeletePolicy(policy(body)?),
            kind::GET_POLICY if is_dump => Self::DumpPolicies,
            kind::GET_POLICY => Self::GetPolicy(policy(body)?),
            kind::FLUSH_POLICIES => Self::FlushPolicies,
            kind::GET_AE => Self::GetAe(sa::<{ sa_event::LENGTH }>(body)?),
            kind::GET_SA_INFO => Self::SaInfo,
            kind::GET_POLICY_INFO => Self::PolicyInfo,
            kind::GET_DEFAULT => Self::Default,
            kind::NEW_AE => {
                let why = "sequence numbers of a running SA cannot be set: brickmoon alone counts them";
                return Err(RequestError::new(errno::NOT_SUPPORTED, why));
            }
            other => {
                let why = format!("XFRM message type {other:#x} is not supported");
                return Err(RequestError::new(errno::NOT_SUPPORTED, why));
            }
        })
    }
}

fn hello(body: &[u8; hello::LENGTH]) -> Request {
    let word = |at| number::<u32>(body, at);
    Request::Hello {
        groups: word(hello::GROUPS),
        port: word(hello::PORT),
        texts: word(hello::OPTIONS) & hello::TEXTS != 0,
    }
}

/// Reads a structure of this length that begins with `struct xfrm_usersa_id`.
fn sa<const LENGTH: usize>(body: &[u8]) -> Result<SaQuery, RequestError> {
    let id: &[u8; LENGTH] = structure(body)?;
    let attributes = attributes(body, LENGTH)?;
    refuse_unsupported(&attributes)?;
    only_esp(id[sa_id::PROTOCOL])?;
    let destination = address(id, sa_id::DESTINATION, number(id, sa_id::FAMILY))?;
    let id = SaId { spi: big_u32(id, sa_id::SPI), destination };
    Ok(SaQuery { id, mark: mark(&attributes).lookup() })
}

fn flush_sas([protocol]: &[u8; 1]) -> Request {
    Request::FlushSas([0, ESP, ANY_PROTOCOL].contains(protocol))
}

fn spi_request(body: &[u8]) -> Result<SpiRequest, RequestError> {
    const RANGE: usize = at::LENGTH + 8;
    let whole: &[u8; RANGE] = structure(body)?;
    let attributes = attributes(body, RANGE)?;
    refuse_unsupported(&attributes)?;
    let mut info = [0; at::LENGTH];
    info.copy_from_slice(&whole[..at::LENGTH]);
    only_esp(info[at::PROTOCOL])?;
    let destination = address(&info, at::DESTINATION, number(&info, at::FAMILY))?;
    let (least, most) = (number(whole, at::LENGTH), number(whole, at::LENGTH + 4));
    if least < 256 || least > most {
        let why = format!("SPIs from {least:#x} to {most:#x}: the range must begin at 0x100 or higher");
        return Err(RequestError::new(errno::INVALID, why));
    }
    Ok(SpiRequest { info, destination, mark: mark(&attributes), least, most })
}

/// Reads `struct xfrm_userpolicy_id`.
fn policy(body: &[u8]) -> Result<PolicyKey, RequestError> {
    let id: &[u8; policy_id::LENGTH] = structure(body)?;
    let attributes = attributes(body, policy_id::LENGTH)?;
    refuse_unsupported(&attributes)?;
    let if_id = if_id(&attributes)?;
    let mut selector = [0; selector::LENGTH];
    selector.copy_from_slice(&id[..selector::LENGTH]);
    let direction = PolicyDirection::read(id[policy_id::DIRECTION])?;
    let (index, mark) = (number(id, policy_id::INDEX), mark(&attributes));
    Ok(PolicyKey { direction, index, selector, mark, if_id })
}
