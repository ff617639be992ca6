//! A table of the file: typed access to its keys, with an error that has the line for everything that does not fit.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{Key, Problem, ProblemKind};

pub(super) type Table<'t> = DeTable<'t>;

/// The errors that were found, and the lines of the text.
pub(super) struct Report {
    /// Offset of each line.
    lines: Vec<usize>,
    pub(super) problems: Vec<Problem>,
}

impl Report {
    pub(super) fn new(text: &str) -> Self {
        let line_ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let lines = std::iter::once(0).chain(line_ends.map(|(at, _)| at + 1)).collect();
        Self { lines, problems: Vec::new() }
    }

    /// The line, from 1, of an offset in the text.
    pub(super) fn line(&self, at: usize) -> usize {
        self.lines.partition_point(|start| *start <= at)
    }

    pub(super) fn add(&mut self, at: usize, kind: ProblemKind) {
        let line = self.line(at);
        self.problems.push(Problem { line, kind });
    }
}

/// A table of the file, and the keys that have been read.
pub(super) struct Section<'s, 't> {
    name: &'static str,
    pub(super) table: &'s Table<'t>,
    /// The keys that were read.
    known: Vec<&'static str>,
    pub(super) report: &'s mut Report,
}

impl<'s, 't> Section<'s, 't> {
    /// A table that has this name in messages.
    pub(super) fn new(name: &'static str, table: &'s Table<'t>, report: &'s mut Report) -> Self {
        Self { name, table, known: Vec::new(), report }
    }

    /// A table of an array in this one.
    pub(super) fn element<'a>(&'a mut self, name: &'static str, table: &'a Table<'t>) -> Section<'a, 't> {
        Section::new(name, table, self.report)
    }

    /// Notes that a key may be in this table.
    pub(super) fn know(&mut self, key: &'static str) {
        self.known.push(key);
    }

    /// The tables of an array, with their positions.
    pub(super) fn tables(&mut self, key: &'static str, example: &str) -> Vec<(usize, &'s Table<'t>)> {
        let Some(value) = self.value(key) else { return Vec::new() };
        let mut found = Vec::new();
        let DeValue::Array(list) = value.get_ref() else {
            self.wrong_type(self.key(key), value, "an array of tables", example.into());
            return found;
        };
        for item in list {
            match item.get_ref() {
                DeValue::Table(table) => found.push((item.span().start, table)),
                _ => self.wrong_type(self.key(key), item, "an array of tables", example.into()),
            }
        }
        found
    }

    pub(super) fn key(&self, key: &'static str) -> Key {
        Key { section: if self.name.is_empty() { "this file" } else { self.name }, key }
    }

    pub(super) fn value(&mut self, key: &'static str) -> Option<&'s Spanned<DeValue<'t>>> {
        self.known.push(key);
        self.table.get(key)
    }

    pub(super) fn section<'a>(&'a mut self, key: &'static str, name: &'static str) -> Option<Section<'a, 't>>
    where
        's: 'a,
    {
        let value = self.value(key)?;
        match value.get_ref() {
            DeValue::Table(table) => Some(Section::new(name, table, self.report)),
            _ => {
                self.wrong_type(self.key(key), value, "a table", format!("{name} on a line of its own"));
                None
            }
        }
    }

    /// Reads a section, if there is one.
    pub(super) fn read(
        &mut self,
        key: &'static str,
        name: &'static str,
        read: impl FnOnce(&mut Section<'_, '_>),
    ) {
        if let Some(mut section) = self.section(key, name) {
            read(&mut section);
            section.finish();
        }
    }

    /// Reports unknown keys.
    pub(super) fn finish(self) {
        for key in self.table.keys().filter(|key| !self.known.contains(&key.get_ref().as_ref())) {
            let (key, at) = (key.get_ref().to_string(), key.span().start);
            let known = self.known.clone();
            self.report.add(at, ProblemKind::UnknownKey { key, section: self.name, known });
        }
    }

    pub(super) fn report(&mut self, key: &'static str, kind: ProblemKind) {
        let at = self.table.get(key).map_or(0, |value| value.span().start);
        self.report.add(at, kind);
    }

    pub(super) fn invalid(&mut self, key: &'static str, at: usize, found: &str, hint: &'static str) {
        let kind = ProblemKind::Text { key: self.key(key), found: found.into(), hint };
        self.report.add(at, kind);
    }

    pub(super) fn wrong_type(
        &mut self,
        key: Key,
        value: &Spanned<DeValue<'_>>,
        wants: &'static str,
        example: String,
    ) {
        let found = described(value.get_ref());
        self.report.add(value.span().start, ProblemKind::Type { key, wants, found, example });
    }

    pub(super) fn text(&mut self, key: &'static str, example: &str) -> Option<(usize, &'s str)> {
        let value = self.value(key)?;
        match value.get_ref() {
            DeValue::String(text) => Some((value.span().start, text)),
            _ => {
                let example = format!("{key} = {example}");
                self.wrong_type(self.key(key), value, "a string", example);
                None
            }
        }
    }

    /// A list of strings and its position.
    pub(super) fn texts(&mut self, key: &'static str, example: &str) -> Option<(usize, Vec<&'s str>)> {
        const WANTS: &str = "a list of strings";
        let (value, example) = (self.value(key)?, format!("{key} = {example}"));
        let DeValue::Array(items) = value.get_ref() else {
            self.wrong_type(self.key(key), value, WANTS, example);
            return None;
        };
        let mut texts = Vec::new();
        for item in items {
            match item.get_ref() {
                DeValue::String(text) => texts.push(text.as_ref()),
                _ => self.wrong_type(self.key(key), item, WANTS, example.clone()),
            }
        }
        Some((value.span().start, texts))
    }

    pub(super) fn file(&mut self, key: &'static str, target: &mut PathBuf) {
        if let Some((_, text)) = self.text(key, &format!("\"{}\"", target.display())) {
            *target = text.into();
        }
    }

    /// One of several words; whether there is one.
    pub(super) fn choice<T: Copy>(
        &mut self,
        key: &'static str,
        choices: &[(&'static str, T)],
        target: &mut T,
    ) -> bool {
        let example = format!("\"{}\"", choices[0].0);
        let Some((at, text)) = self.text(key, &example) else { return false };
        match choices.iter().find(|(word, _)| *word == text) {
            Some((_, choice)) => *target = *choice,
            None => {
                let known = choices.iter().map(|(word, _)| *word).collect();
                self.report.add(at, ProblemKind::Choice { key: self.key(key), found: text.into(), known });
            }
        }
        true
    }

    pub(super) fn number(&mut self, key: &'static str, range: RangeInclusive<u64>, target: &mut u32) {
        let example = format!("{key} = {target}");
        let value = self.value(key);
        if let Some(number) = self.in_range(key, value, range, "a whole number", example) {
            *target = number as u32;
        }
    }

    pub(super) fn number_or(
        &mut self,
        key: &'static str,
        word: &'static str,
        range: RangeInclusive<u64>,
        target: &mut Option<u32>,
    ) {
        let value = self.value(key);
        if let Some(DeValue::String(text)) = value.map(Spanned::get_ref)
            && text == word
        {
            *target = None;
            return;
        }
        let example = format!("{key} = \"{word}\" or {key} = {}", range.start().max(&1));
        if let Some(number) = self.in_range(key, value, range, "a whole number or a keyword", example) {
            *target = Some(number as u32);
        }
    }

    /// Whether a number is a power of two; reports it if not.
    pub(super) fn is_power_of_two(&mut self, key: &'static str, number: u32) -> bool {
        if !number.is_power_of_two() {
            let kind = ProblemKind::PowerOfTwo { key: self.key(key), found: number.into() };
            self.report(key, kind);
        }
        number.is_power_of_two()
    }

    pub(super) fn duration(
        &mut self,
        key: &'static str,
        unit: fn(u64) -> Duration,
        range: RangeInclusive<u64>,
        target: &mut Duration,
    ) {
        let value = self.value(key);
        let example = format!("{key} = {}", target.as_nanos() / unit(1).as_nanos());
        if let Some(number) = self.in_range(key, value, range, "a whole number", example) {
            *target = unit(number);
        }
    }

    /// A list of numbers, which may have to be `distinct`.
    pub(super) fn list(
        &mut self,
        key: &'static str,
        range: RangeInclusive<u64>,
        distinct: bool,
        target: &mut Vec<u32>,
    ) {
        const WANTS: &str = "a list of whole numbers";
        let Some(value) = self.value(key) else { return };
        let example = format!("{key} = [0, 1]");
        let DeValue::Array(items) = value.get_ref() else {
            self.wrong_type(self.key(key), value, WANTS, example);
            return;
        };
        for item in items {
            let number = self.in_range(key, Some(item), range.clone(), WANTS, example.clone());
            match number.map(|number| number as u32) {
                Some(number) if distinct && target.contains(&number) => {
                    let kind = ProblemKind::Twice { key: self.key(key), found: u64::from(number) };
                    self.report.add(item.span().start, kind);
                }
                number => target.extend(number),
            }
        }
    }

    pub(super) fn in_range(
        &mut self,
        key: &'static str,
        value: Option<&Spanned<DeValue<'_>>>,
        range: RangeInclusive<u64>,
        wants: &'static str,
        example: String,
    ) -> Option<u64> {
        let (value, key) = (value?, self.key(key));
        let DeValue::Integer(integer) = value.get_ref() else {
            self.wrong_type(key, value, wants, example);
            return None;
        };
        let number = u64::from_str_radix(integer.as_str(), integer.radix()).ok();
        let number = number.filter(|number| range.contains(number));
        if number.is_none() {
            let (least, most) = (*range.start(), *range.end());
            let kind = ProblemKind::Range { key, found: integer.to_string(), least, most };
            self.report.add(value.span().start, kind);
        }
        number
    }
}

fn described(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("the string \"{text}\""),
        DeValue::Integer(number) => format!("the number {number}"),
        DeValue::Float(number) => format!("the number {number}"),
        DeValue::Boolean(truth) => format!("the boolean {truth}"),
        DeValue::Datetime(time) => format!("the time {time}"),
        DeValue::Array(_) => "a list".into(),
        DeValue::Table(_) => "a table".into(),
    }
}

/// Whether a name may contain a character: a letter, a digit, `-` or `_`.
pub(super) fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}
