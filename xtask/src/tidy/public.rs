//! Public items that nothing uses: their names occur nowhere outside their crate.
//!
//! A type also counts as used if a public function, field or implementation names it, because then it must be public.

use std::collections::{HashMap, HashSet};

use syn::visit::{self, Visit};

use super::place::{self, Place};
use crate::sources::{self, Source};

pub const UNUSED: &str = "public";

/// All such items of the crates that are libraries.
pub fn places(sources: &[Source]) -> Vec<Place> {
    let words = words(sources);
    let mut named: HashSet<String> = HashSet::new();
    let mut items: Vec<(&Source, Item)> = Vec::new();
    let libraries = libraries(sources);
    for source in
        sources.iter().filter(|source| place::of(source).is_some() && libraries.contains(&unit(source)))
    {
        let mut reader = Reader::default();
        if let Ok(file) = syn::parse_file(&source.text) {
            reader.visit_file(&file);
        }
        let of = place::of(source).unwrap_or_default();
        named.extend(reader.named.into_iter().map(|name| format!("{of} {name}")));
        named.extend(of_macros(&source.text).map(|name| format!("{of} {name}")));
        items.extend(reader.items.into_iter().map(|item| (source, item)));
    }
    let is_unused = |(source, item): &&(&Source, Item)| {
        let of = place::of(source).unwrap_or_default();
        let elsewhere =
            words.get(item.name.as_str()).is_some_and(|units| units.iter().any(|unit| unit != of));
        !elsewhere && !named.contains(&format!("{of} {}", item.name))
    };
    items
        .iter()
        .filter(is_unused)
        .map(|(source, item)| Place::new(source, UNUSED, item.line, &item.name))
        .collect()
}

/// The names of the crates that have a library.
fn libraries(sources: &[Source]) -> HashSet<String> {
    sources.iter().filter(|source| source.path.ends_with("src/lib.rs")).map(unit).collect()
}

/// What is compiled together: the name of a crate for its library, and something else for its programs and tests.
fn unit(source: &Source) -> String {
    let path = source.path.to_string_lossy();
    let mut parts = path.split('/');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some("crates"), Some(name), Some("src"), Some(file)) if !["bin", "main.rs"].contains(&file) => {
            name.into()
        }
        (Some("crates"), Some(name), _, _) => format!("programs of {name}"),
        (Some(folder), ..) => format!("folder {folder}"),
        _ => String::new(),
    }
}

/// In which units each name occurs, outside comments.
fn words(sources: &[Source]) -> HashMap<&str, HashSet<String>> {
    let mut words: HashMap<&str, HashSet<String>> = HashMap::new();
    for source in sources {
        let unit = unit(source);
        let code = source.text.lines().filter(|line| !line.trim_start().starts_with("//"));
        for word in code.flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_')) {
            let units = words.entry(word).or_default();
            if !units.contains(&unit) {
                units.insert(unit.clone());
            }
        }
    }
    words
}

/// What macros name by `$crate::`.
fn of_macros(text: &str) -> impl Iterator<Item = &str> {
    let paths = text.split("$crate::").skip(1);
    paths.flat_map(|path| {
        let end = path.find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':').unwrap_or(path.len());
        path[..end].split("::")
    })
}

struct Item {
    name: String,
    line: usize,
}

#[derive(Default)]
struct Reader {
    items: Vec<Item>,
    /// What public items name, except themselves.
    named: HashSet<String>,
    /// The type whose methods these are.
    of: String,
}

impl Reader {
    fn item(
        &mut self,
        visibility: &syn::Visibility,
        name: &syn::Ident,
        attributes: &[syn::Attribute],
    ) -> bool {
        let is_public = matches!(visibility, syn::Visibility::Public(_));
        if is_public && !is_exported(attributes) {
            self.items.push(Item { name: name.to_string(), line: name.span().start().line });
        }
        is_public
    }

    /// Records what a public function names, except itself.
    fn signature(&mut self, signature: &syn::Signature) {
        self.names(|names| {
            signature.inputs.iter().for_each(|input| names.visit_fn_arg(input));
            names.visit_return_type(&signature.output);
            names.visit_generics(&signature.generics);
        });
    }

    /// Records what a part of a public item names.
    fn names(&mut self, visit: impl FnOnce(&mut Names)) {
        let mut names = Names::default();
        visit(&mut names);
        names.found.remove(&self.of);
        self.named.extend(names.found);
    }
}

/// Whether C or Lua calls it by its name.
fn is_exported(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) => list.path.is_ident("unsafe"),
        meta => ["no_mangle", "export_name"].iter().any(|name| meta.path().is_ident(name)),
    })
}

#[derive(Default)]
struct Names {
    found: HashSet<String>,
}

impl<'ast> Visit<'ast> for Names {
    fn visit_ident(&mut self, name: &'ast syn::Ident) {
        self.found.insert(name.to_string());
    }

    fn visit_block(&mut self, _: &'ast syn::Block) {}

    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !sources::is_test(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !sources::is_test(&item.attrs) && self.item(&item.vis, &item.sig.ident, &item.attrs) {
            self.signature(&item.sig);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.item(&item.vis, &item.ident, &item.attrs);
        for field in item.fields.iter().filter(|field| matches!(field.vis, syn::Visibility::Public(_))) {
            self.names(|names| names.visit_type(&field.ty));
        }
        self.names(|names| names.visit_generics(&item.generics));
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        if self.item(&item.vis, &item.ident, &item.attrs) {
            let types = item.variants.iter().flat_map(|variant| &variant.fields).map(|field| &field.ty);
            types.for_each(|of| self.names(|names| names.visit_type(of)));
        }
    }

    fn visit_item_union(&mut self, item: &'ast syn::ItemUnion) {
        self.item(&item.vis, &item.ident, &item.attrs);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        if self.item(&item.vis, &item.ident, &item.attrs) {
            self.names(|names| {
                item.items.iter().for_each(|item| names.visit_trait_item(item));
                item.supertraits.iter().for_each(|bound| names.visit_type_param_bound(bound));
            });
        }
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        if self.item(&item.vis, &item.ident, &item.attrs) {
            self.names(|names| names.visit_type(&item.ty));
        }
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        if self.item(&item.vis, &item.ident, &item.attrs) {
            self.names(|names| names.visit_type(&item.ty));
        }
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        if self.item(&item.vis, &item.ident, &item.attrs) {
            self.names(|names| names.visit_type(&item.ty));
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if sources::is_test(&item.attrs) {
            return;
        }
        if let syn::Type::Path(path) = &*item.self_ty {
            self.of = path.path.segments.last().map(|name| name.ident.to_string()).unwrap_or_default();
        }
        if let Some((_, of, _)) = &item.trait_ {
            self.names(|names| {
                names.visit_path(of);
                names.visit_generics(&item.generics);
                item.items.iter().for_each(|item| names.visit_impl_item(item));
            });
        } else {
            visit::visit_item_impl(self, item);
        }
        self.of.clear();
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !sources::is_test(&item.attrs) && self.item(&item.vis, &item.sig.ident, &item.attrs) {
            self.signature(&item.sig);
        }
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        if self.item(&item.vis, &item.ident, &item.attrs) {
            self.names(|names| names.visit_type(&item.ty));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unused(files: &[(&str, &str)]) -> Vec<String> {
        let sources = files.iter().map(|(path, text)| Source {
            path: path.into(),
            text: text.to_string(),
            lines: 0,
            functions: Vec::new(),
            is_test: false,
        });
        let places = places(&sources.collect::<Vec<_>>());
        places.iter().map(|place| place.text.rsplit(' ').next().unwrap().to_string()).collect()
    }

    #[test]
    fn finds_public_items_that_nothing_names() {
        let lib = "pub fn a() {}\npub fn b() {}\npub(crate) fn c() {}\nimpl D { pub fn e() {} }\n#[unsafe(no_mangle)] pub fn f() {}";
        let other = ("crates/other/src/lib.rs", "// a, e\nuse one::b;");
        assert_eq!(unused(&[("crates/one/src/lib.rs", lib), other]), ["a", "e"]);
        // The programs and tests of a crate are outside.
        assert_eq!(
            unused(&[("crates/one/src/lib.rs", lib), other, ("crates/one/tests/t.rs", "a(); D::e()")]),
            [""; 0]
        );
    }

    #[test]
    fn a_type_is_used_where_something_public_names_it() {
        let lib = "pub struct A;\npub struct B;\npub struct C;\nimpl C { pub fn new() -> C { C } }\npub fn make() -> A { A }";
        assert_eq!(
            unused(&[("crates/one/src/lib.rs", lib), ("crates/other/src/lib.rs", "make(); new()")]),
            ["B", "C"]
        );
    }
}
