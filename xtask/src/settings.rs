//! `cargo xtask settings`: `docs/brickmoon.toml`, which shows every setting with its default, from the declarations in
//! `crates/control/src/config` (its `declare.rs` says how they look).
//!
//! ```text
//! settings! { .. } in FILES ─► Table, with a Key for each setting ─► docs/brickmoon.toml
//! ```
//!
//! The declarations are read as text, so nothing has to be compiled. A test of bm-control compares what the file says
//! with the defaults that the daemon uses.

#[cfg(test)]
mod tests;

use std::path::Path;

use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::{BinOp, Expr, Ident, Item, Lit, LitStr, Stmt, Token, braced};

const DOCUMENT: &str = "docs/brickmoon.toml";
const FOLDER: &str = "crates/control/src/config";
/// The modules with declarations, in the order of the document.
const FILES: [&str; 13] = [
    "daemon", "port", "switch", "ipsec", "cluster", "router", "filter", "firewall", "flows", "export", "lua",
    "hook", "app",
];
/// Longest line of the document.
const WIDTH: usize = 120;

const BEGIN: &str = "\
# Configuration of brickmoon: every key with its default. A file needs only the keys that differ.
# Routes, addresses and VRFs are not configured here; brickmoon uses those of Linux.
#
#   brickmoon check FILE     reports what is wrong with a file, in which line, and how to fix it
#   brickmoon reload         applies what has changed, while packets flow unless the comment of a key says otherwise
";

/// A table of the configuration.
struct Table {
    /// With its brackets.
    name: String,
    about: String,
    /// The pages about it.
    pages: Vec<String>,
    keys: Vec<Key>,
}

/// A key of a table.
struct Key {
    name: String,
    about: String,
    /// The default, or an example, as in the document.
    value: String,
    /// Whether the value is only an example.
    is_example: bool,
    /// The range of a number, and whether it must be a power of two.
    range: Option<(u64, u64, bool)>,
    /// What a change needs.
    effect: Option<String>,
}

/// Writes the document.
pub fn write(root: &Path) -> Result<String, Vec<String>> {
    let text = document(root)?;
    std::fs::write(root.join(DOCUMENT), text).map_err(|error| vec![format!("{DOCUMENT}: {error}")])?;
    Ok(format!("{DOCUMENT}: written"))
}

/// A finding if the document is out of date, or a declaration cannot be read.
pub fn check(root: &Path) -> Vec<String> {
    match document(root) {
        Ok(text) if std::fs::read_to_string(root.join(DOCUMENT)).is_ok_and(|there| there == text) => {
            Vec::new()
        }
        Ok(_) => vec![format!("{DOCUMENT}: out of date; run cargo xtask settings")],
        Err(errors) => errors,
    }
}

fn document(root: &Path) -> Result<String, Vec<String>> {
    let mut text = BEGIN.to_string();
    for file in FILES {
        let path = format!("{FOLDER}/{file}.rs");
        let source =
            std::fs::read_to_string(root.join(&path)).map_err(|error| vec![format!("{path}: {error}")])?;
        let tables = tables(&source).map_err(|error| vec![format!("{path}: {error}")])?;
        let mut pages = tables.iter().flat_map(|table| &table.pages);
        if let Some(page) = pages.find(|page| !root.join(page).exists()) {
            return Err(vec![format!("{path}: there is no page {page}")]);
        }
        tables.iter().for_each(|table| table.write(&mut text));
    }
    Ok(text)
}

/// The tables that a file declares.
fn tables(source: &str) -> syn::Result<Vec<Table>> {
    let file = syn::parse_file(source)?;
    let macros = file.items.into_iter().filter_map(|item| match item {
        Item::Macro(item) if item.mac.path.is_ident("settings") => Some(item.mac),
        _ => None,
    });
    macros.map(|declaration| declaration.parse_body()).collect()
}

impl Table {
    /// Whether the document shows the table as a comment: there can be several, or keys without a default.
    fn is_comment(&self) -> bool {
        self.name.starts_with("[[") || self.keys.iter().any(|key| key.is_example)
    }

    fn write(&self, text: &mut String) {
        let pages = self.pages.join(" and ");
        let about =
            if pages.is_empty() { self.about.clone() } else { format!("{} See {pages}.", self.about) };
        text.push('\n');
        if self.is_comment() {
            comment(&about, text);
            text.push_str(&format!("# {}\n", self.name));
        } else {
            text.push_str(&format!("{}\n", self.name));
            comment(&about, text);
            text.push_str("#\n");
        }
        for key in &self.keys {
            comment(&key.comment(), text);
            let mark = if self.is_comment() { "# " } else { "" };
            text.push_str(&format!("{mark}{} = {}\n", key.name, key.value));
        }
    }
}

impl Key {
    fn comment(&self) -> String {
        let mut sentences = vec![self.about.clone()];
        if let Some((least, most, is_power)) = self.range {
            let power = if is_power { "A power of two, from" } else { "From" };
            sentences.push(format!("{power} {least} to {most}."));
        }
        match self.effect.as_deref() {
            Some("Workers") => sentences.push("A change restarts the workers.".into()),
            Some("Daemon") => sentences.push("A change needs a restart of the daemon.".into()),
            _ => {}
        }
        sentences.retain(|sentence| !sentence.is_empty());
        sentences.join(" ")
    }
}

/// Writes a text as lines of a comment.
fn comment(about: &str, text: &mut String) {
    let mut line = String::from("#");
    for word in about.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > WIDTH {
            text.push_str(&format!("{line}\n"));
            line = String::from("#");
        }
        line = format!("{line} {word}");
    }
    if line.len() > 1 {
        text.push_str(&format!("{line}\n"));
    }
}

/// What stands before a table, a field or a key: comments and attributes.
struct Attributes {
    about: String,
    others: Vec<syn::Attribute>,
}

impl Parse for Attributes {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let (mut about, mut others) = (String::new(), Vec::new());
        for attribute in input.call(syn::Attribute::parse_outer)? {
            match &attribute.meta {
                syn::Meta::NameValue(pair) if pair.path.is_ident("doc") => match &pair.value {
                    Expr::Lit(syn::ExprLit { lit: Lit::Str(line), .. }) => about.push_str(&line.value()),
                    other => return Err(syn::Error::new_spanned(other, "expected a comment")),
                },
                _ => others.push(attribute),
            }
        }
        Ok(Self { about: about.trim().to_string(), others })
    }
}

impl Parse for Table {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let Attributes { about, others } = input.parse()?;
        let [attribute] = others.as_slice() else { return Err(input.error("expected #[table(..)]")) };
        let words =
            attribute.parse_args_with(syn::punctuated::Punctuated::<LitStr, Token![,]>::parse_terminated)?;
        let mut words = words.iter().map(LitStr::value);
        let name = words.next().ok_or_else(|| input.error("expected the name of the table"))?;
        let form: Ident = if input.peek(Token![pub]) {
            input.parse::<Token![pub]>()?;
            input.call(Ident::parse_any)?
        } else {
            input.call(Ident::parse_any)?
        };
        if form != "by_hand" {
            input.parse::<syn::Path>()?;
        }
        let body;
        braced!(body in input);
        let mut keys = Vec::new();
        while !body.is_empty() {
            let Attributes { about, others } = body.parse()?;
            if form == "by_hand" {
                keys.push(Key { about, ..body.call(Key::by_hand)? });
            } else {
                skip_field(&body)?;
                if let [attribute] = others.as_slice() {
                    keys.push(Key { about, ..Key::of_attribute(attribute)? });
                }
            }
            body.parse::<Token![,]>()?;
        }
        Ok(Self { name, about, pages: words.collect(), keys })
    }
}

/// Skips `pub NAME: TYPE`, or `NAME.NAME`.
fn skip_field(body: ParseStream<'_>) -> syn::Result<()> {
    if body.peek(Token![pub]) {
        body.call(syn::Field::parse_named)?;
    } else {
        syn::punctuated::Punctuated::<Ident, Token![.]>::parse_separated_nonempty(body)?;
    }
    Ok(())
}

impl Key {
    /// `KEY = EXAMPLE`.
    fn by_hand(input: ParseStream<'_>) -> syn::Result<Self> {
        let name = input.call(Ident::parse_any)?.to_string();
        input.parse::<Token![=]>()?;
        let value = value(&input.parse()?)?;
        Ok(Self { name, about: String::new(), value, is_example: true, range: None, effect: None })
    }

    /// `#[by_hand(KEY = EXAMPLE)]` or `#[setting(KEY = DEFAULT, FORM, EFFECT)]`.
    fn of_attribute(attribute: &syn::Attribute) -> syn::Result<Self> {
        if attribute.path().is_ident("by_hand") {
            return attribute.parse_args_with(Self::by_hand);
        }
        let setting = |input: ParseStream<'_>| {
            let key = input.call(Self::by_hand)?;
            input.parse::<Token![,]>()?;
            let form: Expr = input.parse()?;
            input.parse::<Token![,]>()?;
            let effect = input.parse::<Ident>()?.to_string();
            Ok(Self { is_example: false, range: range(&form)?, effect: Some(effect), ..key })
        };
        attribute.parse_args_with(setting)
    }
}

/// A value as TOML: a literal, a list, or a table in braces.
fn value(expression: &Expr) -> syn::Result<String> {
    match expression {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Str(text) => Ok(format!("{:?}", text.value())),
            Lit::Int(number) => Ok(number.base10_digits().into()),
            other => Err(syn::Error::new_spanned(other, "expected a string or a whole number")),
        },
        Expr::Array(list) => {
            let items: syn::Result<Vec<_>> = list.elems.iter().map(value).collect();
            Ok(format!("[{}]", items?.join(", ")))
        }
        Expr::Block(block) => match block.block.stmts.as_slice() {
            [Stmt::Expr(Expr::Assign(pair), _)] => match &*pair.left {
                Expr::Path(key) if key.path.get_ident().is_some() => {
                    let key = key.path.get_ident().map(Ident::to_string).unwrap_or_default();
                    Ok(format!("{{ {key} = {} }}", value(&pair.right)?))
                }
                other => Err(syn::Error::new_spanned(other, "expected a key")),
            },
            _ => Err(syn::Error::new_spanned(block, "expected one key and its value")),
        },
        other => Err(syn::Error::new_spanned(other, "expected a literal, which xtask can read")),
    }
}

/// The range in a form such as `power(64..=1 << 20)`, and whether it is of powers of two.
fn range(form: &Expr) -> syn::Result<Option<(u64, u64, bool)>> {
    let Expr::Call(call) = form else { return Ok(None) };
    let Some(Expr::Range(range)) = call.args.first() else { return Ok(None) };
    let (Some(least), Some(most)) = (&range.start, &range.end) else {
        return Err(syn::Error::new_spanned(range, "expected both ends of the range"));
    };
    let is_power = matches!(&*call.func, Expr::Path(name) if name.path.segments.iter().any(|part| part.ident.to_string().contains("power")));
    Ok(Some((number(least)?, number(most)?, is_power)))
}

/// A whole number, or a power of two written as a shift.
fn number(expression: &Expr) -> syn::Result<u64> {
    match expression {
        Expr::Lit(syn::ExprLit { lit: Lit::Int(number), .. }) => number.base10_parse(),
        Expr::Binary(shift) if matches!(shift.op, BinOp::Shl(_)) => {
            Ok(number(&shift.left)? << number(&shift.right)?)
        }
        other => Err(syn::Error::new_spanned(other, "expected a literal or a shift, which xtask can read")),
    }
}
