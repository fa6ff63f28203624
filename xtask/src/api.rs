//! A listing of every public item of the shipped crates, one file per crate below `docs/api`.
//!
//! A change of the public API then shows in review. The listing is made from the sources: the compiler's lint `unreachable_pub` ensures that
//! an item that is `pub` can be reached from outside. Hidden items are left out.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use syn::spanned::Spanned;
use syn::{Attribute, Fields, ImplItem, Item, TraitItem, Visibility};

use crate::files::{Complaint, File, SHIPPED};

/// Returns the listings as files.
pub(crate) fn listings(files: &[File]) -> Result<Vec<File>> {
    SHIPPED.iter().map(|(package, _)| listing(files, package)).collect()
}

/// Returns a complaint for every listing that differs from the sources.
pub(crate) fn changed(files: &[File]) -> Vec<Complaint> {
    let listings = match listings(files) {
        Ok(listings) => listings,
        Err(error) => return vec![Complaint::of("docs/api", format!("{error:#}"))],
    };
    let complaint = |listing: File| {
        let kept = files.iter().find(|file| file.path == listing.path).map_or("", |file| &file.text);
        let place = kept.lines().zip(listing.text.lines()).take_while(|(kept, new)| kept == new).count();
        let is_same = kept == listing.text;
        let new = listing.text.lines().nth(place).unwrap_or("the end");
        let what = format!(
            "the public API has changed: now `{new}`; `cargo xtask tidy --write`, and say it in CHANGELOG.md"
        );
        (!is_same).then(|| Complaint::of(format!("{}:{}", listing.path, place + 1), what))
    };
    listings.into_iter().filter_map(complaint).collect()
}

fn listing(files: &[File], package: &str) -> Result<File> {
    let mut module = Module { files, source: format!("crates/{package}/src/"), lines: Vec::new() };
    module.read(&format!("crates/{package}/src/lib.rs"), "")?;
    let lines = std::mem::take(&mut module.lines);
    let is_impl = |line: &str| line.split_once(": ").is_some_and(|(_, item)| item.starts_with("impl"));
    let public: BTreeSet<&str> = lines
        .iter()
        .filter(|line| !is_impl(line))
        .filter_map(|line| Some(line.split_once(": ")?.0))
        .collect();
    // Blocks of private types implement traits, too.
    let is_shown =
        |line: &&String| !is_impl(line) || line.split_once(": ").is_some_and(|(of, _)| public.contains(of));
    let mut lines: Vec<String> = lines.iter().filter(is_shown).cloned().collect();
    lines.sort();
    lines.dedup();
    let head = format!("# Public items of {package}, written by `cargo xtask tidy --write`.\n\n");
    Ok(File { path: format!("docs/api/{package}.api"), text: head + &lines.join("\n") + "\n" })
}

/// The items found so far, and the crate's files.
struct Module<'a> {
    files: &'a [File],
    source: String,
    lines: Vec<String>,
}

impl Module<'_> {
    /// Reads a file and its modules. `prefix` is the public module of its items.
    fn read(&mut self, path: &str, prefix: &str) -> Result<()> {
        let file = self.files.iter().find(|file| file.path == path).with_context(|| format!("no {path}"))?;
        let parsed = syn::parse_file(&file.text).with_context(|| format!("cannot parse {path}"))?;
        self.items(&parsed.items, &Text { text: &file.text, prefix }, path)
    }

    fn items(&mut self, items: &[Item], text: &Text<'_>, path: &str) -> Result<()> {
        for item in items.iter().filter(|item| !is_left_out(attributes(item))) {
            match item {
                Item::Mod(module) => match &module.content {
                    Some((_, items)) => self.items(items, text, path)?,
                    None => self.child(module, text.prefix, path)?,
                },
                Item::Impl(block) => self.block(block, text),
                item => self.lines.extend(text.item(item)),
            }
        }
        Ok(())
    }

    fn child(&mut self, module: &syn::ItemMod, prefix: &str, path: &str) -> Result<()> {
        let (name, folder) = (module.ident.to_string(), path.trim_end_matches(".rs"));
        let stem = Path::new(folder).file_name().unwrap_or_default();
        let folder = match path.strip_prefix(&self.source) {
            Some("lib.rs") => self.source.clone(),
            _ if stem == "mod" => folder.trim_end_matches("mod").to_owned(),
            _ => format!("{folder}/"),
        };
        let is_public = path == format!("{}lib.rs", self.source) && is_public(&module.vis);
        let prefix = if is_public { format!("{name}::") } else { prefix.to_owned() };
        let paths = [format!("{folder}{name}.rs"), format!("{folder}{name}/mod.rs")];
        match paths.iter().find(|path| self.files.iter().any(|file| file.path == **path)) {
            Some(path) => self.read(path, &prefix),
            // A module that is nothing but an included page.
            None => Ok(()),
        }
    }

    /// Lists the public methods of a block, or the trait that it implements.
    fn block(&mut self, block: &syn::ItemImpl, text: &Text<'_>) {
        let of = text.between(block.self_ty.span().byte_range().start, block.self_ty.span().byte_range().end);
        if block.trait_.is_some() {
            let brace = block.brace_token.span.open().byte_range().start;
            let head = text.between(block.impl_token.span.byte_range().start, brace);
            self.lines.push(format!("{}{}: {head}", text.prefix, bare(&of)));
            return;
        }
        for item in &block.items {
            let (attributes, vis, end) = match item {
                ImplItem::Fn(function) => {
                    (&function.attrs, &function.vis, function.sig.span().byte_range().end)
                }
                ImplItem::Const(value) => (&value.attrs, &value.vis, value.ty.span().byte_range().end),
                _ => continue,
            };
            if is_public(vis) && !is_left_out(attributes) {
                let item = text.between(vis.span().byte_range().start, end);
                self.lines.push(format!("{}{}: {}{item}", text.prefix, bare(&of), marks(attributes, text)));
            }
        }
    }
}

/// A source, and the public module of its items.
struct Text<'a> {
    text: &'a str,
    prefix: &'a str,
}

impl Text<'_> {
    /// Returns a part of the source in one line.
    fn between(&self, start: usize, end: usize) -> String {
        let part = self.text.get(start..end).unwrap_or_default();
        let code = part.lines().map(|line| line.split("//").next().unwrap_or_default());
        code.flat_map(str::split_whitespace)
            .collect::<Vec<_>>()
            .join(" ")
            .replace("( ", "(")
            .replace(", )", ")")
    }

    fn of(&self, part: &impl Spanned) -> String {
        self.between(part.span().byte_range().start, part.span().byte_range().end)
    }

    /// Returns the lines of a public item with its public fields, variants or methods.
    fn item(&self, item: &Item) -> Vec<String> {
        let Some((name, vis, head_ends)) = head(item) else { return Vec::new() };
        if !is_public(vis) {
            return Vec::new();
        }
        let attributes = attributes(item);
        let head = self.between(vis.span().byte_range().start, head_ends);
        let whole = format!("{}{name}: {}{head}", self.prefix, marks(attributes, self));
        let member = |attributes: &[Attribute], text: String| {
            format!("{}{name}: - {}{text}", self.prefix, marks(attributes, self))
        };
        let members: Vec<String> = match item {
            Item::Struct(item) => {
                let fields =
                    item.fields.iter().filter(|field| is_public(&field.vis) && !is_left_out(&field.attrs));
                fields.map(|field| member(&field.attrs, self.undocumented(field, &field.attrs))).collect()
            }
            Item::Enum(item) => {
                let variants = item.variants.iter().filter(|variant| !is_left_out(&variant.attrs));
                variants.map(|variant| member(&variant.attrs, self.variant(variant))).collect()
            }
            Item::Trait(item) => {
                let methods = item.items.iter().filter_map(|item| match item {
                    TraitItem::Fn(method) => Some(member(&method.attrs, self.of(&method.sig))),
                    _ => None,
                });
                methods.collect()
            }
            _ => Vec::new(),
        };
        std::iter::once(whole).chain(members).collect()
    }

    fn variant(&self, variant: &syn::Variant) -> String {
        let fields = variant.fields.iter().map(|field| self.undocumented(field, &field.attrs));
        let fields = fields.collect::<Vec<_>>().join(", ");
        match &variant.fields {
            Fields::Named(_) => format!("{} {{ {fields} }}", variant.ident),
            Fields::Unnamed(_) => format!("{}({fields})", variant.ident),
            Fields::Unit => variant.ident.to_string(),
        }
    }

    /// Returns a part without its attributes.
    fn undocumented(&self, part: &impl Spanned, attributes: &[Attribute]) -> String {
        let all = part.span().byte_range();
        let start = attributes.last().map_or(all.start, |last| last.span().byte_range().end);
        self.between(start, all.end)
    }
}

/// Returns the name and the visibility of an item, and where its head ends in the source.
fn head(item: &Item) -> Option<(String, &Visibility, usize)> {
    Some(match item {
        Item::Fn(item) => (item.sig.ident.to_string(), &item.vis, end(&item.sig)),
        Item::Struct(item) => (item.ident.to_string(), &item.vis, end(&item.ident).max(end(&item.generics))),
        Item::Enum(item) => (item.ident.to_string(), &item.vis, end(&item.ident).max(end(&item.generics))),
        Item::Trait(item) => {
            (item.ident.to_string(), &item.vis, item.brace_token.span.open().byte_range().start)
        }
        Item::Type(item) => (item.ident.to_string(), &item.vis, end(item)),
        Item::Const(item) => (item.ident.to_string(), &item.vis, end(&*item.ty)),
        Item::Static(item) => (item.ident.to_string(), &item.vis, end(&*item.ty)),
        Item::Use(item) => ("use".to_owned(), &item.vis, end(item)),
        _ => return None,
    })
}

fn end(part: &impl Spanned) -> usize {
    part.span().byte_range().end
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Fn(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Const(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        _ => &[],
    }
}

fn is_public(vis: &Visibility) -> bool {
    matches!(vis, Visibility::Public(_))
}

/// Returns true for items that users cannot see, and for tests.
fn is_left_out(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let inside =
            attribute.meta.require_list().map_or_else(|_| String::new(), |list| list.tokens.to_string());
        let is_for_tests = ["test", "fuzzing", "loom"].contains(&&*inside) || inside.starts_with("all (test");
        (attribute.path().is_ident("doc") && inside == "hidden")
            || (attribute.path().is_ident("cfg") && is_for_tests)
    })
}

/// Returns the attributes that belong to the API.
fn marks(attributes: &[Attribute], text: &Text<'_>) -> String {
    let shown = ["derive", "non_exhaustive", "cfg", "cfg_attr"];
    let marks = attributes.iter().filter_map(|attribute| {
        if attribute.path().is_ident("must_use") {
            return Some("#[must_use] ".to_owned());
        }
        let is_shown = shown.iter().any(|name| attribute.path().is_ident(name));
        is_shown.then(|| text.of(attribute) + " ")
    });
    marks.collect()
}

/// Returns the name of a type without its generics.
fn bare(of: &str) -> &str {
    of.split('<').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File { path: path.into(), text: text.into() }
    }

    #[test]
    fn listing_has_public_items_only() {
        let lib = "//! Lib.\nmod a;\npub mod b;\n#[doc(hidden)]\npub mod c;\npub use a::A;\n";
        let a = "/// Doc.\n#[derive(Debug)]\n#[non_exhaustive]\npub struct A {\n    /// Field.\n    pub one: u8,\n    two: u8,\n}\n\
                 impl A {\n    /// Doc.\n    #[must_use = \"x\"]\n    pub fn get(\n        &self,\n        more: u8, // why\n    ) -> u8 {\n        1\n    }\n    \
                 pub(crate) fn hidden(&self) {}\n}\nimpl Clone for A {\n    fn clone(&self) -> Self { todo() }\n}\nstruct Private;\nimpl Clone for Private {}\n";
        let b = "pub enum B {\n    /// Doc.\n    #[non_exhaustive]\n    One { a: u8 },\n    Two(u8),\n}\npub(crate) struct No;\n";
        let files = [
            file("crates/wheellock-resp/src/lib.rs", lib),
            file("crates/wheellock-resp/src/a.rs", a),
            file("crates/wheellock-resp/src/b.rs", b),
            file("crates/wheellock-resp/src/c.rs", "pub struct C;"),
        ];
        let listing = listing(&files, "wheellock-resp").unwrap();
        let lines: Vec<&str> = listing.text.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "A: #[derive(Debug)] #[non_exhaustive] pub struct A",
                "A: #[must_use] pub fn get(&self, more: u8) -> u8",
                "A: - pub one: u8",
                "A: impl Clone for A",
                "b::B: - #[non_exhaustive] One { a: u8 }",
                "b::B: - Two(u8)",
                "b::B: pub enum B",
                "use: pub use a::A;",
            ]
        );
    }
}
