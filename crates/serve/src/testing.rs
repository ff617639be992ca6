//! A daemon without ports, tables or packets: it answers every request at once.

use bm_api::request::{ClearQuery, ExplainQuery, RouteQuery, StopQuery};
use bm_api::{
    Apps, Cleared, Cluster, Collectors, Drops, Error, Explanation, Filters, Hooks, IpsecPolicies, Links,
    Macs, Neighbors, NextHops, Ports, Reloaded, Routes, Sas, Status, Stopping, Switches, Verify, Workers,
};

use crate::{Answers, AnswersOfDaemon};

pub struct Nothing;

impl Answers for Nothing {
    fn status(&self) -> Result<Status, Error> {
        Ok(Status::default())
    }

    fn apps(&self) -> Apps {
        Apps::default()
    }

    fn links(&self) -> Links {
        Links::default()
    }

    fn workers(&self) -> Workers {
        Workers::default()
    }

    fn drops(&self) -> Drops {
        Drops::default()
    }

    fn metrics(&self) -> String {
        String::new()
    }

    fn stop(&self, _query: &StopQuery) -> Result<Stopping, Error> {
        Ok(Stopping::default())
    }

    fn no_such_path(&self) -> Error {
        Error::new("no such path")
    }
}

impl AnswersOfDaemon for Nothing {
    fn ports(&self) -> Result<Ports, Error> {
        Ok(Ports::default())
    }

    fn routes(&self, _query: &RouteQuery) -> Result<Routes, Error> {
        Ok(Routes::default())
    }

    fn explain(&self, _query: &ExplainQuery) -> Result<Explanation, Error> {
        Ok(Explanation::default())
    }

    fn neighbors(&self) -> Result<Neighbors, Error> {
        Ok(Neighbors::default())
    }

    fn next_hops(&self) -> Result<NextHops, Error> {
        Ok(NextHops::default())
    }

    fn switches(&self) -> Switches {
        Switches::default()
    }

    fn macs(&self) -> Macs {
        Macs::default()
    }

    fn cluster(&self) -> Cluster {
        Cluster::default()
    }

    fn set_drained(&self, _drained: bool) -> Result<Cluster, Error> {
        Ok(Cluster::default())
    }

    fn remove_member(&self, _name: &str) -> Result<Cluster, Error> {
        Ok(Cluster::default())
    }

    fn of_node(&self, _name: &str, _path: &str) -> Result<(u16, Vec<u8>), Error> {
        Ok((200, Vec::new()))
    }

    fn filters(&self) -> Result<Filters, Error> {
        Ok(Filters::default())
    }

    fn sas(&self) -> Sas {
        Sas::default()
    }

    fn policies(&self) -> IpsecPolicies {
        IpsecPolicies::default()
    }

    fn collectors(&self) -> Collectors {
        Collectors::default()
    }

    fn hooks(&self) -> Hooks {
        Hooks::default()
    }

    fn cleared(&self) -> Cleared {
        Cleared::default()
    }

    fn clear(&self, _query: &ClearQuery) -> Result<Cleared, Error> {
        Ok(Cleared::default())
    }

    fn verify(&self) -> Result<Verify, Error> {
        Ok(Verify::default())
    }

    fn reload(&self) -> Result<Reloaded, Error> {
        Ok(Reloaded::default())
    }
}
