//! How a setting is declared: once, with everything that has to be known about it.
//!
//! ```text
//!                                                      ┌─► Default      what a file without the key means
//! settings! { doc, key, default, form, effect, field } ┼─► read         the table of a file, with errors by line
//!                                                      ├─► settings     what `diff` compares, and what a change needs
//!                                                      └─► docs/brickmoon.toml, which `cargo xtask settings` writes
//! ```
//!
//! A declaration looks like a struct whose fields have an attribute:
//!
//! ```text
//! settings! {
//!     /// Limits of the slow path.                                   the comment at the top of the table
//!     #[table("[slow_path]", "docs/guide.md")]                       its name, and the page about it, if there is one
//!     pub struct SlowPath {
//!         /// Frames that may wait between a worker and the slow path.   the comment above the key
//!         #[setting(ring = 4096, power(64..=1 << 20), Workers)]      key, default, form with range, effect of a change
//!         pub ring: u32,
//!     }
//! }
//! ```
//!
//! The form says how the value is written in the file ([`Form`]; `forms.rs` has all of them). A key that a form
//! cannot read, since it is required or has to fit others, is marked `#[by_hand(key = EXAMPLE)]`, and code in `read`
//! reads it. With `impl TYPE` in place of `pub struct NAME` the fields are those of a type that stands
//! elsewhere; with `by_hand` all keys of a table are, and `KEY = EXAMPLE` stands for each. Defaults and ranges are
//! literals, since xtask reads them without compiling this crate.

use std::fmt::Debug;

use super::section::Section;

/// What it takes to apply a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// Applied at once, without losing packets.
    Live,
    /// Workers must be restarted; Linux forwards meanwhile.
    Workers,
    /// The daemon must be restarted.
    Daemon,
}

/// How a value is written in the file.
pub(super) trait Form {
    /// What the field holds.
    type Value;
    /// The default as the declaration writes it.
    type Literal;

    /// The value of a file without the key.
    fn default(&self, literal: Self::Literal) -> Self::Value;

    /// Reads the key if the table has it, and reports what is wrong with it.
    fn read(
        &self,
        section: &mut Section<'_, '_>,
        key: &'static str,
        literal: Self::Literal,
        target: &mut Self::Value,
    );
}

/// A setting of a configuration, for comparison with another configuration.
pub(super) struct Setting {
    pub key: &'static str,
    /// As text.
    pub value: String,
    /// What it takes to apply a change.
    pub effect: Effect,
}

impl Setting {
    pub(super) fn new(key: &'static str, value: &dyn Debug, effect: Effect) -> Self {
        Self { key, value: format!("{value:?}"), effect }
    }
}

/// A table of the file whose settings are declared with `settings!`.
pub(super) trait Declared {
    /// Reads all settings except those that are read by hand.
    fn read(&mut self, section: &mut Section<'_, '_>);

    /// All settings except those that are read by hand.
    fn settings(&self) -> Vec<Setting>;
}

macro_rules! settings {
    (
        $(#[doc = $about:literal])*
        #[table($($table:literal),+)]
        pub struct $name:ident {
            $(
                $(#[doc = $doc:literal])*
                $(#[setting($key:ident = $default:expr, $form:expr, $effect:ident)])?
                $(#[by_hand($($by_hand:tt)*)])?
                pub $field:ident: $type:ty,
            )*
        }
    ) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[doc = $doc])* pub $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: settings!(@default $($default, $form)?),)* }
            }
        }

        settings! { @declared $name { $($([$key = $default, $form, $effect, $field])?)* } }
    };
    (
        $(#[doc = $about:literal])*
        #[table($($table:literal),+)]
        impl $name:path { $($field:tt)* }
    ) => {
        settings! { @fields $name {} $($field)* }
    };
    (
        $(#[doc = $about:literal])*
        #[table($($table:literal),+)]
        by_hand { $($(#[doc = $doc:literal])* $key:ident = $example:expr,)* }
    ) => {};
    // The fields of a type that stands elsewhere, one after the other: those with a form are kept.
    (@fields $name:path { $($kept:tt)* } #[doc = $doc:literal] $($rest:tt)*) => {
        settings! { @fields $name { $($kept)* } $($rest)* }
    };
    (@fields $name:path { $($kept:tt)* } #[by_hand($($by_hand:tt)*)] $field:ident, $($rest:tt)*) => {
        settings! { @fields $name { $($kept)* } $($rest)* }
    };
    (
        @fields $name:path { $($kept:tt)* }
        #[setting($key:ident = $default:expr, $form:expr, $effect:ident)] $($field:ident).+,
        $($rest:tt)*
    ) => {
        settings! { @fields $name { $($kept)* [$key = $default, $form, $effect, $($field).+] } $($rest)* }
    };
    (@fields $name:path { $($kept:tt)* }) => {
        settings! { @declared $name { $($kept)* } }
    };
    (@declared $name:path { $([$key:ident = $default:expr, $form:expr, $effect:ident, $($field:ident).+])* }) => {
        impl $crate::config::declare::Declared for $name {
            fn read(&mut self, section: &mut $crate::config::section::Section<'_, '_>) {
                use $crate::config::declare::Form;
                $($form.read(section, stringify!($key), $default, &mut self.$($field).+);)*
            }

            fn settings(&self) -> Vec<$crate::config::declare::Setting> {
                use $crate::config::declare::{Effect, Setting};
                vec![$(Setting::new(stringify!($key), &self.$($field).+, Effect::$effect),)*]
            }
        }
    };
    (@default) => { Default::default() };
    (@default $default:expr, $form:expr) => { $crate::config::declare::Form::default(&$form, $default) };
}
