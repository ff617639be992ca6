//! The modules of a crate and the paths in their code, and to which module each path leads.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use syn::visit::{self, Visit};

use super::Imports;
use crate::sources::is_test;

/// A path as written, by segments.
type Segments = Vec<String>;

/// A module, in a file or inside another one.
#[derive(Default)]
struct Module {
    /// What it defines.
    items: BTreeSet<String>,
    /// Names that `use` brings into it, with the paths that they stand for.
    names: BTreeMap<String, Segments>,
    /// `use path::*`.
    globs: Vec<Segments>,
    /// Every path in its code.
    paths: Vec<Segments>,
}

/// By path; the root of the crate is empty.
type Modules = BTreeMap<Segments, Module>;

/// Which module of the crate imports which, from its files: their paths in `src`, and their text.
pub fn imports(files: &[(&Path, &str)]) -> Imports {
    let mut reader = Reader::default();
    for (path, text) in files {
        let Ok(file) = syn::parse_file(text) else { continue };
        reader.here = of_file(path);
        reader.modules.entry(reader.here.clone()).or_default();
        reader.visit_file(&file);
    }
    let Reader { mut modules, tests, .. } = reader;
    modules.retain(|path, _| !tests.iter().any(|test| path.starts_with(test)));
    let mut imports = Imports::new();
    for (from, module) in &modules {
        for path in &module.paths {
            let Some((to, name)) = resolve(&modules, from, path, 0) else { continue };
            if !to.starts_with(from) && !from.starts_with(&to) {
                let names = imports.entry(from.join("::")).or_default().entry(to.join("::")).or_default();
                names.insert(name);
            }
        }
    }
    imports
}

/// `a/b.rs` and `a/b/mod.rs` are module `a::b`.
fn of_file(path: &Path) -> Segments {
    let path = path.with_extension("");
    let mut segments: Segments = path.iter().filter_map(|part| part.to_str()).map(str::to_string).collect();
    let is_face = |name: &String| ["mod", "lib", "main"].contains(&name.as_str());
    segments.pop_if(|name| is_face(name));
    segments
}

/// The module in which the path's item is, and the item's name; none if it is not in this crate.
fn resolve(modules: &Modules, from: &Segments, path: &[String], depth: usize) -> Option<(Segments, String)> {
    let (first, mut rest) = path.split_first()?;
    if depth > 8 {
        return None;
    }
    let mut at = match first.as_str() {
        "crate" => Segments::new(),
        "self" => from.clone(),
        "super" => from[..from.len().checked_sub(1)?].to_vec(),
        _ => {
            rest = path;
            from.clone()
        }
    };
    while let Some((name, more)) = rest.split_first() {
        let child: Segments = at.iter().chain([name]).cloned().collect();
        if name == "super" {
            at.pop();
        } else if modules.contains_key(&child) {
            at = child;
        } else {
            return item(modules, from, at, name, more, depth);
        }
        rest = more;
    }
    let name = at.last().cloned().unwrap_or_default();
    (at != *from).then_some((at, name))
}

/// Where `name` comes from, which is no module inside `at`.
fn item(
    modules: &Modules,
    from: &Segments,
    at: Segments,
    name: &str,
    more: &[String],
    depth: usize,
) -> Option<(Segments, String)> {
    let module = modules.get(&at)?;
    if module.items.contains(name) {
        return (at != *from).then(|| (at, name.to_string()));
    }
    if let Some(path) = module.names.get(name) {
        let path: Segments = path.iter().chain(more).cloned().collect();
        return resolve(modules, &at, &path, depth + 1);
    }
    let through = |glob: &Segments| {
        let path: Segments = glob.iter().cloned().chain([name.to_string()]).collect();
        resolve(modules, &at, &path, depth + 1)
    };
    module.globs.iter().find_map(through)
}

/// Reads the files of a crate.
#[derive(Default)]
struct Reader {
    modules: Modules,
    /// Modules that only tests have.
    tests: Vec<Segments>,
    /// The module that is read now.
    here: Segments,
}

impl Reader {
    fn module(&mut self) -> &mut Module {
        self.modules.entry(self.here.clone()).or_default()
    }

    fn read_use(&mut self, tree: &syn::UseTree, path: &Segments) {
        let and = |name: &syn::Ident| path.iter().cloned().chain([name.to_string()]).collect::<Segments>();
        match tree {
            syn::UseTree::Path(part) => self.read_use(&part.tree, &and(&part.ident)),
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.read_use(tree, path)),
            syn::UseTree::Glob(_) => {
                self.module().globs.push(path.clone());
                self.module().paths.push(path.clone());
            }
            syn::UseTree::Name(name) if name.ident == "self" => {
                let last = path.last().cloned().unwrap_or_default();
                self.add_name(last, path.clone());
            }
            syn::UseTree::Name(name) => self.add_name(name.ident.to_string(), and(&name.ident)),
            syn::UseTree::Rename(name) => self.add_name(name.rename.to_string(), and(&name.ident)),
        }
    }

    fn add_name(&mut self, name: String, path: Segments) {
        self.module().paths.push(path.clone());
        // A path that starts with its own name is another crate's.
        if path.first() != Some(&name) {
            self.module().names.insert(name, path);
        }
    }
}

/// The attributes and the name of an item.
fn face(item: &syn::Item) -> Option<(&[syn::Attribute], &syn::Ident)> {
    match item {
        syn::Item::Const(item) => Some((&item.attrs, &item.ident)),
        syn::Item::Enum(item) => Some((&item.attrs, &item.ident)),
        syn::Item::Fn(item) => Some((&item.attrs, &item.sig.ident)),
        syn::Item::Static(item) => Some((&item.attrs, &item.ident)),
        syn::Item::Struct(item) => Some((&item.attrs, &item.ident)),
        syn::Item::Trait(item) => Some((&item.attrs, &item.ident)),
        syn::Item::Type(item) => Some((&item.attrs, &item.ident)),
        syn::Item::Union(item) => Some((&item.attrs, &item.ident)),
        _ => None,
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if let Some((attributes, name)) = face(item) {
            if is_test(attributes) {
                return;
            }
            self.module().items.insert(name.to_string());
        }
        visit::visit_item(self, item);
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        self.here.push(module.ident.to_string());
        if is_test(&module.attrs) {
            self.tests.push(self.here.clone());
        } else if module.content.is_some() {
            self.module();
            visit::visit_item_mod(self, module);
        }
        self.here.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_test(&item.attrs) {
            self.read_use(&item.tree, &Segments::new());
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if !is_test(&item.attrs) {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_test(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Segments = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if path.leading_colon.is_none() {
            self.module().paths.push(segments);
        }
        visit::visit_path(self, path);
    }
}
