//! Documentation: public types and traits have it, and none of it only repeats the name of its item.
//!
//! rustc's `missing_docs` is off: it demands a line for every public field, variant and constant, even if the name says
//! everything (decision 37).

use std::path::Path;

use syn::visit::{self, Visit};

use crate::sources::{self, Source};

/// Words that say nothing by themselves.
const FILLERS: [&str; 29] = [
    "a", "all", "an", "and", "are", "as", "at", "by", "each", "every", "for", "from", "get", "gets", "has",
    "is", "it", "its", "of", "on", "one", "returns", "set", "sets", "that", "the", "this", "to", "which",
];

/// Public types and traits without documentation, and documentation that only repeats a name.
pub fn check(sources: &[Source]) -> Vec<String> {
    let product = sources.iter().filter(|source| !source.is_test && is_product(&source.path));
    product.flat_map(check_file).collect()
}

/// Help texts of the command line are documentation of fields, whatever the fields are called.
fn is_product(path: &Path) -> bool {
    path.starts_with("crates")
        && path.components().any(|part| part.as_os_str() == "src")
        && path.file_name().is_none_or(|name| name != "args.rs")
}

fn check_file(source: &Source) -> Vec<String> {
    let mut reader = Reader::default();
    if let Ok(file) = syn::parse_file(&source.text) {
        reader.visit_file(&file);
    }
    let path = source.path.display();
    reader.findings.into_iter().map(|(line, finding)| format!("{path}:{line}: {finding}")).collect()
}

#[derive(Default)]
struct Reader {
    findings: Vec<(usize, String)>,
}

impl Reader {
    /// Looks at an item's documentation; `must` says whether it has to have any.
    fn item(&mut self, name: &syn::Ident, attributes: &[syn::Attribute], must: bool) {
        let docs: Vec<String> = attributes.iter().filter_map(doc).collect();
        let line = name.span().start().line;
        match docs.as_slice() {
            [] if must => self.findings.push((line, format!("{name} is public and has no documentation"))),
            [doc] if repeats(doc, &name.to_string()) => self.findings.push((
                line,
                format!("the documentation of {name} only repeats its name: say what the name does not, or delete it"),
            )),
            _ => {}
        }
    }
}

fn is_public(visibility: &syn::Visibility) -> bool {
    matches!(visibility, syn::Visibility::Public(_))
}

/// The text of a `///` line.
fn doc(attribute: &syn::Attribute) -> Option<String> {
    let syn::Meta::NameValue(meta) = &attribute.meta else { return None };
    let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) = &meta.value else { return None };
    attribute.path().is_ident("doc").then(|| text.value())
}

/// Whether all words of a line are fillers or in the name.
fn repeats(doc: &str, name: &str) -> bool {
    let parts: Vec<String> = parts(name).iter().map(|part| stem(part)).collect();
    let mut words =
        doc.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).map(str::to_lowercase);
    words.all(|word| FILLERS.contains(&word.as_str()) || parts.contains(&stem(&word)))
}

/// `SourcePort` and `source_port` as words in lower case.
fn parts(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut before = '_';
    for c in name.chars() {
        if c == '_' || c.is_uppercase() && before.is_lowercase() {
            parts.push(String::new());
        }
        if c != '_' {
            parts.last_mut().expect("there is one").extend(c.to_lowercase());
        }
        before = c;
    }
    parts
}

fn stem(word: &str) -> String {
    let word = word.to_lowercase();
    word.strip_suffix("es").or(word.strip_suffix('s')).unwrap_or(&word).to_string()
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !sources::is_test(&module.attrs) {
            self.item(&module.ident, &module.attrs, false);
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.item(&item.ident, &item.attrs, is_public(&item.vis));
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.item(&item.ident, &item.attrs, is_public(&item.vis));
        visit::visit_item_enum(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.item(&item.ident, &item.attrs, is_public(&item.vis));
        visit::visit_item_trait(self, item);
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.item(&item.ident, &item.attrs, is_public(&item.vis));
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.item(&item.ident, &item.attrs, false);
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.item(&item.ident, &item.attrs, false);
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        self.item(&variant.ident, &variant.attrs, false);
        visit::visit_variant(self, variant);
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if let Some(name) = &field.ident {
            self.item(name, &field.attrs, false);
        }
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        if !sources::is_test(&function.attrs) {
            self.item(&function.sig.ident, &function.attrs, false);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if !sources::is_test(&item.attrs) {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.item(&function.sig.ident, &function.attrs, false);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        self.item(&function.sig.ident, &function.attrs, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(text: &str) -> Vec<String> {
        let source = Source {
            path: "crates/x/src/lib.rs".into(),
            text: text.into(),
            lines: 0,
            functions: Vec::new(),
            is_test: false,
        };
        check(&[source])
    }

    #[test]
    fn finds_documentation_that_repeats_a_name() {
        let text = "/// A source port.\npub struct SourcePort;";
        assert_eq!(
            findings(text),
            ["crates/x/src/lib.rs:2: the documentation of SourcePort only repeats its name: \
              say what the name does not, or delete it"]
        );
        assert_eq!(findings("/// The UDP port that a packet comes from.\npub struct SourcePort;"), [""; 0]);
    }

    #[test]
    fn finds_public_types_without_documentation() {
        let text = "pub struct Link { pub name: String }\nimpl Link { pub fn up(&self) {} pub fn set(&self, mtu: u32) {} }";
        assert_eq!(findings(text), ["crates/x/src/lib.rs:1: Link is public and has no documentation"]);
        assert_eq!(findings("#[cfg(test)]\nmod tests { pub struct Link; }\npub(crate) struct Hop;"), [""; 0]);
    }
}
