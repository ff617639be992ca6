//! Memory that C, Lua, the kernel or another process also accesses: its declaration must say with whom it is shared,
//! when, and how the compiler knows (docs/decisions/0020-memory-that-others-see.md).
//!
//! - Every `#[repr(C)]` type has a comment with "Shared with" or "Not shared".
//! - Every field of a type that Lua sees (`unsafe impl LuaSees for`) is a cell, an atomic, a raw pointer or a function.

use syn::visit::{self, Visit};

use crate::sources::Source;

/// Fields of these types may change at any time, and the compiler knows.
const CELLS: [&str; 2] = ["Cell", "UnsafeCell"];

pub fn check(sources: &[Source]) -> Vec<String> {
    sources.iter().filter(|source| !source.is_test).flat_map(of_file).collect()
}

fn of_file(source: &Source) -> Vec<String> {
    if !["repr(C", "LuaSees"].iter().any(|word| source.text.contains(word)) {
        return Vec::new();
    }
    // A file that does not parse was reported when it was read.
    let Ok(file) = syn::parse_file(&source.text) else { return Vec::new() };
    let mut finder = Finder::default();
    finder.visit_file(&file);
    let path = source.path.display();
    let lines: Vec<&str> = source.text.lines().collect();
    let mut findings = Vec::new();
    for structure in &finder.structures {
        let (name, line) = (&structure.ident, structure.struct_token.span.start().line);
        if is_repr_c(&structure.attrs) && !says_who(&lines, line) {
            findings.push(format!(
                "{path}:{line}: {name} is #[repr(C)]: say \"Shared with\" whom, and why the compiler knows, or \"Not shared\""
            ));
        }
        if finder.seen.contains(&name.to_string()) {
            let plain = structure.fields.iter().filter(|field| !may_change(&field.ty));
            findings.extend(plain.filter_map(|field| field.ident.as_ref()).map(|field| {
                format!("{path}:{line}: Lua sees {name}, so its field {field} must be a cell or an atomic")
            }));
        }
    }
    findings
}

/// Structures outside tests, and the names of those that Lua sees.
#[derive(Default)]
struct Finder {
    structures: Vec<syn::ItemStruct>,
    seen: Vec<String>,
}

impl<'ast> Visit<'ast> for Finder {
    fn visit_item_struct(&mut self, structure: &'ast syn::ItemStruct) {
        self.structures.push(structure.clone());
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let of = item.trait_.as_ref().and_then(|(_, path, _)| path.segments.last());
        if of.is_some_and(|name| name.ident == "LuaSees")
            && let syn::Type::Path(path) = &*item.self_ty
            && let Some(name) = path.path.segments.last()
        {
            self.seen.push(name.ident.to_string());
        }
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if module.ident != "tests" {
            visit::visit_item_mod(self, module);
        }
    }
}

fn is_repr_c(attributes: &[syn::Attribute]) -> bool {
    let mut found = false;
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("repr")) {
        // The argument of `align(64)` does not matter.
        let _whole = attribute.parse_nested_meta(|meta| {
            found |= meta.path.is_ident("C");
            meta.input.parse::<Option<proc_macro2::Group>>().map(drop)
        });
    }
    found
}

/// Whether the comments and attributes right above `line` say who shares the memory.
fn says_who(lines: &[&str], line: usize) -> bool {
    let above = lines[..line.saturating_sub(1)].iter().rev().map(|line| line.trim());
    let mut above = above.take_while(|line| line.starts_with("//") || line.starts_with("#["));
    above.any(|line| ["Shared with", "Not shared"].iter().any(|word| line.contains(word)))
}

fn may_change(of: &syn::Type) -> bool {
    match of {
        syn::Type::Array(array) => may_change(&array.elem),
        syn::Type::Ptr(_) | syn::Type::BareFn(_) => true,
        syn::Type::Path(path) => path.path.segments.last().is_some_and(|name| {
            let name = name.ident.to_string();
            CELLS.contains(&name.as_str()) || name.starts_with("Atomic")
        }),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(text: &str) -> Vec<String> {
        let (path, text) = ("a.rs".into(), text.to_string());
        of_file(&Source { path, text, lines: 0, functions: Vec::new(), is_test: false })
    }

    #[test]
    fn a_shared_layout_needs_a_comment() {
        let plain = findings("/// A word.\n#[repr(C, align(64))]\nstruct Word(u32);");
        assert!(plain[0].starts_with("a.rs:3: Word is #[repr(C)]"), "{plain:?}");
        assert!(findings("/// Shared with the kernel for a call.\n#[repr(C)]\nstruct Word(u32);").is_empty());
        assert!(
            findings("/// A word.\n#[repr(C)]\n// Not shared: for vectors.\nstruct Word(u32);").is_empty()
        );
        assert!(findings("/// A word.\n#[repr(align(64))]\nstruct Word(u32); // repr(C").is_empty());
        // A comment above another item does not count.
        let other = "/// Shared with C.\n#[repr(C)]\nstruct A(u8);\n\n#[repr(C)]\nstruct B(u8);";
        assert_eq!(findings(other).len(), 1);
    }

    #[test]
    fn fields_that_lua_sees_must_be_cells() {
        let text = "/// Shared with Lua.\n#[repr(C)]\nstruct Seen { a: Cell<u32>, b: [AtomicU8; 4], c: *const u8, \
            d: extern \"C\" fn(), e: UnsafeCell<[u8; 4]>, f: u32 }\nunsafe impl LuaSees for Seen {}";
        let found = findings(text);
        assert_eq!(found, ["a.rs:3: Lua sees Seen, so its field f must be a cell or an atomic"]);
    }
}
