//! Which modules of its own crate a file names.

use proc_macro2::{TokenStream, TokenTree};
use syn::{ItemMod, ItemUse, Macro, Path, UseTree, spanned::Spanned, visit::Visit};

use super::source::Source;

/// A module named by another one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Import {
    /// The top module that is named.
    pub(super) module: String,
    pub(super) line: usize,
}

/// The top module that the file at `path` belongs to: `engine` for `relay/src/engine/copy.rs`.
pub(super) fn top(path: &str) -> Option<&str> {
    let inner = path.strip_prefix("relay/src/")?;
    let first = inner.split('/').next()?;
    Some(first.strip_suffix(".rs").unwrap_or(first))
}

/// What `source` names, `main.rs` by the name of the library and all others by `crate` and `super`.
pub(super) fn imports(source: &Source) -> Vec<Import> {
    let mut visitor = Visitor {
        module: module(&source.path),
        library: top(&source.path) == Some("main"),
        imports: Vec::new(),
    };
    visitor.visit_file(&source.syntax);
    visitor.imports
}

/// `engine`, `copy` for `relay/src/engine/copy.rs`.
fn module(path: &str) -> Vec<String> {
    let inner = path.strip_prefix("relay/src/").unwrap_or(path);
    let mut module = Vec::from_iter(inner.trim_end_matches(".rs").split('/').map(str::to_owned));
    if module.last().is_some_and(|last| last == "mod") {
        module.pop();
    }
    module
}

struct Visitor {
    /// Where the visitor is, modules within the file included.
    module: Vec<String>,
    /// Whether the crate's modules are reached by `relay::`.
    library: bool,
    imports: Vec<Import>,
}

impl Visitor {
    fn name(&mut self, segments: &[String], line: usize) {
        let Some(first) = segments.first() else {
            return;
        };
        let outer = segments
            .iter()
            .take_while(|segment| *segment == "super")
            .count();
        let module = match first.as_str() {
            "crate" => segments.get(1),
            "relay" if self.library => segments.get(1),
            // Above the file's own top module lies the crate.
            "super" if outer >= self.module.len() => segments.get(outer),
            _ => None,
        };
        if let Some(module) = module {
            self.imports.push(Import {
                module: module.clone(),
                line,
            });
        }
    }

    fn tree(&mut self, tree: &UseTree, before: &mut Vec<String>) {
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.tree(&path.tree, before);
                before.pop();
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.tree(tree, before);
                }
            }
            UseTree::Name(name) => self.leaf(&name.ident, before),
            UseTree::Rename(rename) => self.leaf(&rename.ident, before),
            UseTree::Glob(_) => self.name(before, tree.span().start().line),
        }
    }

    fn leaf(&mut self, ident: &proc_macro2::Ident, before: &[String]) {
        let mut segments = before.to_vec();
        segments.push(ident.to_string());
        self.name(&segments, ident.span().start().line);
    }

    /// The paths in the arguments of a macro, which are no syntax yet.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut segments: Vec<String> = Vec::new();
        let mut line = 0;
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.name(&segments, line);
                        segments.clear();
                    }
                    line = ident.span().start().line;
                    segments.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                other => {
                    self.name(&segments, line);
                    segments.clear();
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.tokens(group.stream());
                    }
                }
            }
        }
        self.name(&segments, line);
    }
}

impl<'ast> Visit<'ast> for Visitor {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        self.module.push(item.ident.to_string());
        syn::visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.tree(&item.tree, &mut Vec::new());
    }

    fn visit_path(&mut self, path: &'ast Path) {
        let segments = path
            .segments
            .iter()
            .map(|segment| segment.ident.to_string());
        self.name(&Vec::from_iter(segments), path.span().start().line);
        syn::visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, macro_call: &'ast Macro) {
        self.tokens(macro_call.tokens.clone());
        syn::visit::visit_macro(self, macro_call);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(path: &str, text: &str) -> Vec<String> {
        let source = Source::parse(path, text).unwrap();
        Vec::from_iter(imports(&source).into_iter().map(|import| import.module))
    }

    #[test]
    fn every_way_to_name_a_module_is_seen() {
        for text in [
            "use crate::serve;",
            "use crate::serve as s;",
            "use crate::serve::*;",
            "use crate::{serve::{A, B as C}};",
            "fn f(a: crate::serve::A) {}",
            "fn f() { println!(\"{}\", g(crate::serve::A)) }",
            "fn f() { crate::serve::f() }",
            "use super::serve;",
            "mod inner { use super::super::serve; }",
        ] {
            let named = named("relay/src/pair.rs", text);
            assert!(
                named.iter().all(|module| module == "serve"),
                "{text}: {named:?}"
            );
            assert!(!named.is_empty(), "{text}");
        }
    }

    #[test]
    fn a_file_in_a_directory_has_more_above_it() {
        let path = "relay/src/engine/splice/mod.rs";
        assert_eq!(top(path), Some("engine"));
        assert!(named(path, "use super::duplex;").is_empty());
        assert_eq!(named(path, "use super::super::serve;"), ["serve"]);
        assert!(named(path, "mod tests { use super::*; }").is_empty());
    }

    #[test]
    fn the_program_names_the_library() {
        assert_eq!(named("relay/src/main.rs", "use relay::cli::Cli;"), ["cli"]);
        assert!(named("relay/src/serve.rs", "use relay_common::names;").is_empty());
    }
}
