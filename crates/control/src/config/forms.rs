//! The forms of values in the file, which declarations name.

use std::marker::PhantomData;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use bm_fib::structure::Structure;
use bm_wire::prefix::Address;

use super::declare::Form;
use super::error::ProblemKind;
use super::section::Section;

/// A whole number.
pub(super) struct Number {
    range: RangeInclusive<u64>,
    power_of_two: bool,
}

pub(super) fn number(range: RangeInclusive<u64>) -> Number {
    Number { range, power_of_two: false }
}

/// A power of two.
pub(super) fn power(range: RangeInclusive<u64>) -> Number {
    Number { range, power_of_two: true }
}

impl Form for Number {
    type Value = u32;
    type Literal = u32;

    fn default(&self, number: u32) -> u32 {
        number
    }

    fn read(&self, section: &mut Section<'_, '_>, key: &'static str, _: u32, target: &mut u32) {
        let before = *target;
        section.number(key, self.range.clone(), target);
        if self.power_of_two && !section.is_power_of_two(key, *target) {
            *target = before;
        }
    }
}

/// A whole number, or the word that is the default.
pub(super) struct WordOrNumber(Number);

pub(super) fn word_or_number(range: RangeInclusive<u64>) -> WordOrNumber {
    WordOrNumber(number(range))
}

/// A power of two, or the word that is the default.
pub(super) fn word_or_power(range: RangeInclusive<u64>) -> WordOrNumber {
    WordOrNumber(power(range))
}

impl Form for WordOrNumber {
    type Value = Option<u32>;
    type Literal = &'static str;

    fn default(&self, _: &'static str) -> Option<u32> {
        None
    }

    fn read(
        &self,
        section: &mut Section<'_, '_>,
        key: &'static str,
        word: &'static str,
        target: &mut Option<u32>,
    ) {
        section.number_or(key, word, self.0.range.clone(), target);
        if let Some(number) = *target
            && self.0.power_of_two
            && !section.is_power_of_two(key, number)
        {
            *target = None;
        }
    }
}

/// A duration as a whole number of a unit.
pub(super) struct WholeUnits {
    unit: fn(u64) -> Duration,
    range: RangeInclusive<u64>,
}

pub(super) fn seconds(range: RangeInclusive<u64>) -> WholeUnits {
    WholeUnits { unit: Duration::from_secs, range }
}

pub(super) fn milliseconds(range: RangeInclusive<u64>) -> WholeUnits {
    WholeUnits { unit: Duration::from_millis, range }
}

impl Form for WholeUnits {
    type Value = Duration;
    type Literal = u64;

    fn default(&self, number: u64) -> Duration {
        (self.unit)(number)
    }

    fn read(&self, section: &mut Section<'_, '_>, key: &'static str, _: u64, target: &mut Duration) {
        section.duration(key, self.unit, self.range.clone(), target);
    }
}

/// One of several words, the default first.
pub(super) struct Choice<T: 'static>(pub(super) &'static [(&'static str, T)]);

impl<T: Copy> Form for Choice<T> {
    type Value = T;
    type Literal = &'static str;

    fn default(&self, default: &'static str) -> T {
        self.0.iter().find(|(word, _)| *word == default).unwrap_or(&self.0[0]).1
    }

    fn read(&self, section: &mut Section<'_, '_>, key: &'static str, _: &'static str, target: &mut T) {
        section.choice(key, self.0, target);
    }
}

/// One of several words; without the key something else decides.
pub(super) struct ChoiceIfSet<T: 'static>(pub(super) &'static [(&'static str, T)]);

impl<T: Copy> Form for ChoiceIfSet<T> {
    type Value = Option<T>;
    type Literal = &'static str;

    fn default(&self, _: &'static str) -> Option<T> {
        None
    }

    fn read(
        &self,
        section: &mut Section<'_, '_>,
        key: &'static str,
        _: &'static str,
        target: &mut Option<T>,
    ) {
        let mut choice = self.0[0].1;
        if section.choice(key, self.0, &mut choice) {
            *target = Some(choice);
        }
    }
}

/// A structure that could be chosen before.
const ONLY_IN_BENCH: &str = "dxr18";
const USE_ANOTHER: &str = "only `brickmoon bench lookup` still has this structure: delete the line, which means \"dir18\", or \
                           write \"chunk17\" if the cache is small";

/// The name of a lookup structure, the default first.
pub(super) struct Lookup<A: Address>(pub(super) &'static [Structure<A>]);

impl<A: Address> Form for Lookup<A> {
    type Value = Structure<A>;
    type Literal = &'static str;

    fn default(&self, default: &'static str) -> Structure<A> {
        *self.0.iter().find(|structure| structure.name == default).unwrap_or(&self.0[0])
    }

    fn read(
        &self,
        section: &mut Section<'_, '_>,
        key: &'static str,
        _: &'static str,
        target: &mut Structure<A>,
    ) {
        if let Some(value) = section.table.get(key)
            && value.get_ref().as_str() == Some(ONLY_IN_BENCH)
        {
            section.know(key);
            section.invalid(key, value.span().start, ONLY_IN_BENCH, USE_ANOTHER);
            return;
        }
        let choices: Vec<_> = self.0.iter().map(|structure| (structure.name, *structure)).collect();
        section.choice(key, &choices, target);
    }
}

/// A path.
pub(super) struct File;

impl Form for File {
    type Value = PathBuf;
    type Literal = &'static str;

    fn default(&self, path: &'static str) -> PathBuf {
        path.into()
    }

    fn read(&self, section: &mut Section<'_, '_>, key: &'static str, _: &'static str, target: &mut PathBuf) {
        section.file(key, target);
    }
}

/// Any text, such as a name, or the word that is the default; with an example for messages.
pub(super) struct WordOrText<T> {
    example: &'static str,
    value: PhantomData<T>,
}

pub(super) fn word_or_name(example: &'static str) -> WordOrText<String> {
    WordOrText { example, value: PhantomData }
}

pub(super) fn word_or_file(example: &'static str) -> WordOrText<PathBuf> {
    WordOrText { example, value: PhantomData }
}

impl<T: for<'t> From<&'t str>> Form for WordOrText<T> {
    type Value = Option<T>;
    type Literal = &'static str;

    fn default(&self, _: &'static str) -> Option<T> {
        None
    }

    fn read(
        &self,
        section: &mut Section<'_, '_>,
        key: &'static str,
        word: &'static str,
        target: &mut Option<T>,
    ) {
        if let Some((_, text)) = section.text(key, &format!("\"{}\"", self.example)) {
            *target = (text != word).then(|| text.into());
        }
    }
}

/// An address and port to listen on, or `off`.
pub(super) struct Listen;

impl Form for Listen {
    type Value = Option<SocketAddr>;
    type Literal = &'static str;

    fn default(&self, _: &'static str) -> Option<SocketAddr> {
        None
    }

    fn read(
        &self,
        section: &mut Section<'_, '_>,
        key: &'static str,
        word: &'static str,
        target: &mut Option<SocketAddr>,
    ) {
        let Some((at, text)) = section.text(key, "\"127.0.0.1:9473\"") else { return };
        match text.parse() {
            Ok(address) => *target = Some(address),
            Err(_) if text == word => *target = None,
            Err(_) => {
                let kind = ProblemKind::Address { key: section.key(key), found: text.into() };
                section.report.add(at, kind);
            }
        }
    }
}

/// An address of this router, or `auto`.
pub(super) struct OwnAddress;

impl Form for OwnAddress {
    type Value = Option<IpAddr>;
    type Literal = &'static str;

    fn default(&self, _: &'static str) -> Option<IpAddr> {
        None
    }

    fn read(
        &self,
        section: &mut Section<'_, '_>,
        key: &'static str,
        word: &'static str,
        target: &mut Option<IpAddr>,
    ) {
        let Some((at, text)) = section.text(key, "\"192.0.2.9\"") else { return };
        match text.parse() {
            Ok(address) => *target = Some(address),
            Err(_) if text == word => *target = None,
            Err(_) => {
                let hint = "write an IP address of this router, such as \"192.0.2.9\", or \"auto\"";
                section.invalid(key, at, text, hint);
            }
        }
    }
}

/// A list of whole numbers.
pub(super) struct Numbers {
    range: RangeInclusive<u64>,
    distinct: bool,
}

pub(super) fn numbers(range: RangeInclusive<u64>) -> Numbers {
    Numbers { range, distinct: false }
}

/// A list of whole numbers without duplicates.
pub(super) fn distinct_numbers(range: RangeInclusive<u64>) -> Numbers {
    Numbers { range, distinct: true }
}

impl Form for Numbers {
    type Value = Vec<u32>;
    type Literal = [u32; 0];

    fn default(&self, _: [u32; 0]) -> Vec<u32> {
        Vec::new()
    }

    fn read(&self, section: &mut Section<'_, '_>, key: &'static str, _: [u32; 0], target: &mut Vec<u32>) {
        section.list(key, self.range.clone(), self.distinct, target);
    }
}

/// A list of folders, with an example for messages.
pub(super) struct Folders(pub(super) &'static str);

impl Form for Folders {
    type Value = Vec<PathBuf>;
    type Literal = [&'static str; 0];

    fn default(&self, _: [&'static str; 0]) -> Vec<PathBuf> {
        Vec::new()
    }

    fn read(
        &self,
        section: &mut Section<'_, '_>,
        key: &'static str,
        _: [&'static str; 0],
        target: &mut Vec<PathBuf>,
    ) {
        if let Some((_, folders)) = section.texts(key, self.0) {
            *target = folders.into_iter().map(PathBuf::from).collect();
        }
    }
}
