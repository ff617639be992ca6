//! Without the library: types of which there are no values.

use super::{Open, Seal};
use crate::library::Manager;

pub(crate) enum Engine {}

impl Engine {
    pub fn new(_: Manager) -> Option<Self> {
        None
    }
}

pub(crate) enum Gcm {}

impl Gcm {
    pub fn new(_: &mut Engine, _: &[u8]) -> Option<Self> {
        None
    }

    pub fn seal(&self, _: &mut [u8], _: &[u8; 12], _: &[u8], _: &mut [u8; 16]) {
        match *self {}
    }

    pub fn open(&self, _: &mut [u8], _: &[u8; 12], _: &[u8], _: [u8; 16]) -> bool {
        match *self {}
    }
}

pub(crate) enum MultiCbc {}

impl MultiCbc {
    pub fn new(_: &mut Engine, _: &[u8], _: &[u8], _: usize) -> Option<Self> {
        None
    }

    pub fn seal(&self, _: &mut Engine, _: &mut [Option<Seal<'_>>]) {
        match *self {}
    }

    pub fn open(&self, _: &mut Engine, _: &mut [Option<Open<'_>>]) {
        match *self {}
    }
}
