//! Code and comments that are harder to read than they need to be (docs/style.md): closures with a name that is used
//! once, tuples as parameters, comments that only make sense below another one, and names that say nothing.

use syn::visit::{self, Visit};

use super::names;
use super::place::{self, Place};
use crate::sources::{self, Source};

pub const CLOSURES: &str = "closures";
pub const TUPLES: &str = "tuples";
pub const LEANING: &str = "leaning";
pub const NAMES: &str = "names";
pub const WORDS: &str = "words";

const LEANING_STARTS: [&str; 3] = ["The same", "That of", "Those of"];

/// Words that do not say what a thing is. Any other word in -ed is one as well, except these.
const LOOSE: &str = "Built Bound Caught Chosen Cut Done Drawn Fate Found Given Gone Heard Held Hidden Kept Known Learnt Left \
    Lost Made Met Missing Occupant Put Read Running Said Seen Sent Shown Situation Sought Spent Split Spread Stuck Taken \
    Thought Told Trial Trouble Understood Waiting Way Withdrawn Work Working Worn Written";
const NOUNS: &str = "Bed Embed Feed Id Led Need Seed Shed Speed Thread Unused";

/// All such places in the crates, without their tests.
pub fn places(sources: &[Source]) -> Vec<Place> {
    sources.iter().filter(|source| place::of(source).is_some()).flat_map(of_file).collect()
}

fn of_file(source: &Source) -> Vec<Place> {
    let mut reader = Reader::default();
    if let Ok(file) = syn::parse_file(&source.text) {
        reader.visit_file(&file);
    }
    let mut found = reader.found;
    found.extend(of_text(&source.text));
    found.into_iter().map(|(kind, line, what)| Place::new(source, kind, line, &what)).collect()
}

/// A kind, a line and what it is.
type Found = (&'static str, usize, String);

/// What is in comments, and words anywhere.
fn of_text(text: &str) -> Vec<Found> {
    let code = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    let mut found = Vec::new();
    let mut is_first = true;
    for (index, line) in code.lines().enumerate() {
        let comment = ["///", "//!"].iter().find_map(|mark| line.trim().strip_prefix(mark)).map(str::trim);
        if is_first && comment.is_some_and(|text| LEANING_STARTS.iter().any(|start| text.starts_with(start)))
        {
            found.push((LEANING, index + 1, line.trim().to_string()));
        }
        is_first = comment.is_none_or(str::is_empty);
        if let Some(word) = names::private_word(line) {
            found.push((WORDS, index + 1, word.to_string()));
        }
    }
    found
}

fn is_loose(name: &str) -> bool {
    let one_word = name.chars().filter(|c| c.is_uppercase()).count() == 1;
    let listed = |list: &str| list.split_whitespace().any(|word| word == name);
    one_word && !listed(NOUNS) && (name.ends_with("ed") || listed(LOOSE))
}

#[derive(Default)]
struct Reader {
    found: Vec<Found>,
}

impl Reader {
    fn add(&mut self, kind: &'static str, name: &syn::Ident) {
        self.found.push((kind, name.span().start().line, name.to_string()));
    }

    fn type_name(&mut self, name: &syn::Ident) {
        if is_loose(&name.to_string()) {
            self.add(NAMES, name);
        }
    }

    fn signature(&mut self, signature: &syn::Signature) {
        let is_tuple = |input: &syn::FnArg| matches!(input, syn::FnArg::Typed(input) if matches!(*input.pat, syn::Pat::Tuple(_)));
        if signature.inputs.iter().any(is_tuple) {
            self.add(TUPLES, &signature.ident);
        }
    }
}

/// The name of a closure that a statement declares.
fn closure(statement: &syn::Stmt) -> Option<&syn::Ident> {
    let syn::Stmt::Local(local) = statement else { return None };
    if !matches!(*local.init.as_ref()?.expr, syn::Expr::Closure(_)) {
        return None;
    }
    match &local.pat {
        syn::Pat::Ident(name) => Some(&name.ident),
        syn::Pat::Type(typed) => match &*typed.pat {
            syn::Pat::Ident(name) => Some(&name.ident),
            _ => None,
        },
        _ => None,
    }
}

/// How often a name occurs.
struct Occurrences<'a> {
    name: &'a syn::Ident,
    number: usize,
}

impl Occurrences<'_> {
    fn tokens(&mut self, tokens: &proc_macro2::TokenStream) {
        for token in tokens.clone() {
            match token {
                proc_macro2::TokenTree::Ident(name) => self.number += usize::from(name == *self.name),
                proc_macro2::TokenTree::Group(group) => self.tokens(&group.stream()),
                _ => {}
            }
        }
    }
}

impl<'ast> Visit<'ast> for Occurrences<'_> {
    fn visit_ident(&mut self, name: &'ast syn::Ident) {
        self.number += usize::from(name == self.name);
    }

    fn visit_macro(&mut self, of: &'ast syn::Macro) {
        self.tokens(&of.tokens);
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !sources::is_test(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_block(&mut self, block: &'ast syn::Block) {
        for name in block.stmts.iter().filter_map(closure) {
            let mut occurrences = Occurrences { name, number: 0 };
            occurrences.visit_block(block);
            // Its declaration, and one use.
            if occurrences.number <= 2 {
                self.add(CLOSURES, name);
            }
        }
        visit::visit_block(self, block);
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        if !sources::is_test(&function.attrs) {
            self.signature(&function.sig);
            visit::visit_item_fn(self, function);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !sources::is_test(&function.attrs) {
            self.signature(&function.sig);
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.type_name(&item.ident);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.type_name(&item.ident);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.type_name(&item.ident);
        visit::visit_item_trait(self, item);
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.type_name(&item.ident);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(&'static str, usize)> {
        let (path, text) = ("crates/x/src/lib.rs".into(), text.to_string());
        let source = Source { path, text, lines: 0, functions: Vec::new(), is_test: false };
        let places = places(&[source]);
        places
            .iter()
            .map(|place| (place.kind, place.text.split(':').nth(1).unwrap().parse().unwrap()))
            .collect()
    }

    #[test]
    fn finds_closures_that_are_used_once() {
        assert_eq!(found("fn f() {\n let g = |a| a + 1;\n h.map(g) }"), [(CLOSURES, 2)]);
        assert_eq!(found("fn f() { let g = |a| a + 1; g(1) + g(2) }"), []);
        assert_eq!(found("fn f() { let g = |a| a + 1; g(1); assert!(g(2)) }"), []);
    }

    #[test]
    fn finds_tuples_and_types_without_a_noun() {
        assert_eq!(found("impl A {\n fn f((a, b): (u8, u8)) {} }\nfn g(a: (u8, u8)) {}"), [(TUPLES, 2)]);
        assert_eq!(
            found("struct Asked;\nenum Way {}\nstruct Speed;\nstruct AskedPort;"),
            [(NAMES, 1), (NAMES, 2)]
        );
        assert_eq!(found("#[cfg(test)]\nmod tests { struct Asked; }"), []);
    }

    #[test]
    fn finds_comments_that_lean_on_others() {
        let text = "/// The same for IPv6.\n///\n/// That of a port. And\n/// the same.\nfn f() {}";
        assert_eq!(found(text), [(LEANING, 1), (LEANING, 3)]);
    }

    #[test]
    fn finds_private_words() {
        assert_eq!(found("// The occupant\nlet occupants = 1;").len(), 1);
    }
}
