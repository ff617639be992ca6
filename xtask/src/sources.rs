//! The Rust files of the tree, parsed, without test code.

use std::path::{Path, PathBuf};

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// A function, its length, and how deep its blocks are.
pub struct Function {
    pub name: String,
    pub lines: usize,
    /// Blocks of conditions, loops and closures within each other; 0 for a sequence of statements.
    pub nesting: usize,
}

/// One file.
pub struct Source {
    /// From the root of the tree.
    pub path: PathBuf,
    pub text: String,
    /// Lines, without test modules.
    pub lines: usize,
    /// Functions outside tests.
    pub functions: Vec<Function>,
    /// Whether the whole file is a test, a bench or an example.
    pub is_test: bool,
}

/// All Rust files of the tree.
pub fn read(root: &Path) -> Result<Vec<Source>, Vec<String>> {
    let mut paths = Vec::new();
    for folder in ["crates", "xtask", "tests", "fuzz"] {
        walk(&root.join(folder), &["rs"], &mut paths);
    }
    paths.sort();
    let (sources, errors): (Vec<_>, Vec<_>) =
        paths.iter().map(|path| parse(root, path)).partition(Result::is_ok);
    if errors.is_empty() {
        Ok(sources.into_iter().flatten().collect())
    } else {
        Err(errors.into_iter().filter_map(Result::err).collect())
    }
}

/// The C files below `crates/`, except those of tests, relative to the root of the tree, with the number of lines of
/// each.
pub fn c_files(root: &Path) -> Vec<(PathBuf, usize)> {
    let mut paths = Vec::new();
    walk(&root.join("crates"), &["c", "h"], &mut paths);
    let of_file = |path: &PathBuf| {
        let short = path.strip_prefix(root).unwrap_or(path).to_path_buf();
        let text = std::fs::read_to_string(path).ok().filter(|_| !is_of_tests(&short))?;
        Some((short, text.lines().count()))
    };
    let mut files: Vec<_> = paths.iter().filter_map(of_file).collect();
    files.sort();
    files
}

fn is_of_tests(path: &Path) -> bool {
    let folders = ["tests", "benches", "examples"];
    path.components().any(|part| folders.iter().any(|folder| part.as_os_str() == *folder))
}

fn walk(folder: &Path, extensions: &[&str], paths: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && entry.file_name() != "target" {
            walk(&path, extensions, paths);
        } else if path.extension().is_some_and(|found| extensions.iter().any(|extension| found == *extension))
        {
            paths.push(path);
        }
    }
}

fn parse(root: &Path, path: &Path) -> Result<Source, String> {
    let short = path.strip_prefix(root).unwrap_or(path).to_path_buf();
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", short.display()))?;
    let file = syn::parse_file(&text).map_err(|error| format!("{}: {error}", short.display()))?;
    let mut finder = Finder::default();
    finder.visit_file(&file);
    let is_test = is_of_tests(&short)
        || short.file_name().is_some_and(|name| name == "tests.rs" || name == "testing.rs");
    let lines = text.lines().count() - finder.test_lines;
    Ok(Source { path: short, text, lines, functions: finder.functions, is_test })
}

#[derive(Default)]
struct Finder {
    functions: Vec<Function>,
    test_lines: usize,
}

fn length(span: Span) -> usize {
    span.end().line - span.start().line + 1
}

/// `#[cfg(test)]`, `#[cfg(all(test, ..))]` or `#[test]`.
pub fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || attribute.path().is_ident("cfg")
                && matches!(&attribute.meta, syn::Meta::List(list) if list.tokens.to_string().split(|c: char| !c.is_alphanumeric()).any(|word| word == "test"))
    })
}

impl<'ast> Visit<'ast> for Finder {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if is_test(&module.attrs) {
            self.test_lines += length(module.span());
        } else {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        if !is_test(&function.attrs) {
            self.add(&function.sig.ident, function.sig.span(), &function.block);
            visit::visit_item_fn(self, function);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.add(&function.sig.ident, function.sig.span(), &function.block);
        visit::visit_impl_item_fn(self, function);
    }
}

impl Finder {
    fn add(&mut self, name: &syn::Ident, signature: Span, block: &syn::Block) {
        let lines = block.span().end().line - signature.start().line + 1;
        let mut depth = Depth::default();
        depth.visit_block(block);
        self.functions.push(Function { name: name.to_string(), lines, nesting: depth.deepest });
    }
}

/// How deep blocks are in each other.
#[derive(Default)]
struct Depth {
    now: usize,
    deepest: usize,
}

impl<'ast> Visit<'ast> for Depth {
    fn visit_expr(&mut self, expression: &'ast syn::Expr) {
        use syn::Expr::{Block, Closure, ForLoop, If, Loop, Match, Unsafe, While};
        // An `else if` is no deeper than its `if`.
        if let If(condition) = expression
            && let Some((_, other)) = &condition.else_branch
            && matches!(**other, If(_))
        {
            self.deeper(|depth| {
                depth.visit_expr(&condition.cond);
                depth.visit_block(&condition.then_branch);
            });
            return self.visit_expr(other);
        }
        match expression {
            Closure(closure) if !matches!(*closure.body, Block(_)) => visit::visit_expr(self, expression),
            Closure(closure) => self.deeper(|depth| visit::visit_expr(depth, &closure.body)),
            ForLoop(_) | If(_) | Loop(_) | Match(_) | Unsafe(_) | While(_) => {
                self.deeper(|depth| visit::visit_expr(depth, expression));
            }
            _ => visit::visit_expr(self, expression),
        }
    }

    /// A function within a function is measured by itself.
    fn visit_item(&mut self, _: &'ast syn::Item) {}
}

impl Depth {
    fn deeper(&mut self, action: impl FnOnce(&mut Self)) {
        self.now += 1;
        self.deepest = self.deepest.max(self.now);
        action(self);
        self.now -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nesting(body: &str) -> usize {
        let mut finder = Finder::default();
        finder.visit_file(&syn::parse_file(&format!("fn f() {{ {body} }}")).expect("a function"));
        finder.functions[0].nesting
    }

    #[test]
    fn counts_blocks_within_blocks() {
        assert_eq!(nesting("let a = b.map(|c| c + 1); d(a);"), 0);
        assert_eq!(nesting("if a { b } else if c { d } else if e { f } else { g }"), 1);
        assert_eq!(nesting("for a in b { match a { C => { while d {} } } }"), 3);
        assert_eq!(nesting("fn g() { for a in b { if c {} } }"), 0);
    }
}
