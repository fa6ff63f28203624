//! Check for missing examples of public types.
//!
//! Every public type of the shipped crates needs an example. This module finds the public types in a text. It starts at each crate's
//! `lib.rs` and follows `pub use` and `pub mod` line by line. Types of other crates, functions, and items hidden from the documentation are
//! excluded.

use std::collections::BTreeSet;

use crate::files::{Complaint, File, SHIPPED};

/// Returns a complaint for every public type without an example, and for every type that this scanner cannot find.
pub(crate) fn missing(files: &[File]) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for (name, _) in SHIPPED {
        let source = format!("crates/{name}/src/");
        for (module, wanted) in public_types(files, &source, &[]) {
            let shown = [module.join("::"), wanted.clone()].join("::");
            match declarations(files, &source, &module, &wanted).next() {
                Some((file, line)) if has_example(&file.text, line) => {}
                Some((file, line)) => complaints.push(Complaint::of(
                    format!("{}:{}", file.path, line + 1),
                    format!("no example: {wanted}"),
                )),
                None if is_passed_on(files, &source, &module, &wanted) => {}
                None => complaints.push(Complaint::of(&*source, format!("there is no {shown}"))),
            }
        }
    }
    complaints
}

/// A module, as the names on its path below the crate.
type Module = Vec<String>;

/// Returns the public types of a module. Each comes with the module that declares it, or whose child declares it.
fn public_types(files: &[File], source: &str, module: &[String]) -> BTreeSet<(Module, String)> {
    let mut types = BTreeSet::new();
    let Some(file) = file_of(files, source, module) else { return types };
    let below = |path: &str| {
        let path: Module = path.split("::").map(str::to_owned).collect();
        [module, &path].concat()
    };
    for statement in statements(&file.text) {
        if let Some(child) = statement.strip_prefix("pub mod ") {
            types.extend(public_types(files, source, &below(child)));
        } else if let Some(path) = statement.strip_prefix("pub use ") {
            let (from, names) = path.rsplit_once("::").unwrap_or(("", path));
            let child = below(from);
            // Otherwise the type is from a different crate.
            if file_of(files, source, &child).is_some() {
                let names = names.trim_matches(['{', '}']).split(',').map(str::trim);
                let is_type = |name: &&str| name.starts_with(char::is_uppercase);
                types.extend(names.filter(is_type).map(|name| (child.clone(), name.to_owned())));
            }
        } else if let Some(name) = declared(&statement)
            && !module.is_empty()
        {
            types.insert((module.to_vec(), name.to_owned()));
        }
    }
    types
}

/// Returns the `pub` items at the beginning of a line, without attributes, each as one line. Hidden items are excluded.
fn statements(text: &str) -> impl Iterator<Item = String> {
    let mut lines = text.lines();
    let mut hidden = false;
    std::iter::from_fn(move || {
        loop {
            let line = lines.next()?;
            hidden |= line.starts_with("#[doc(hidden)]") || line.starts_with("#[cfg(fuzzing)]");
            if !line.starts_with("pub ") {
                hidden &= line.starts_with("#[") || line.starts_with("///");
                continue;
            }
            let mut statement = line.to_owned();
            while statement.starts_with("pub use ") && !statement.ends_with(';') {
                statement.push_str(lines.next()?.trim());
            }
            if !std::mem::take(&mut hidden) {
                return Some(statement.trim_end_matches(';').to_owned());
            }
        }
    })
}

/// Returns the name of the type that a line declares.
fn declared(line: &str) -> Option<&str> {
    let rest = ["struct", "enum", "union", "trait", "type"]
        .iter()
        .find_map(|word| line.strip_prefix("pub ")?.strip_prefix(word)?.strip_prefix(' '))?;
    rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

/// Returns the declarations of a type, in the module's file or in one of its children's files.
fn declarations<'a>(
    files: &'a [File],
    source: &str,
    module: &[String],
    wanted: &str,
) -> impl Iterator<Item = (&'a File, usize)> {
    let stem = format!("{source}{}", module.join("/"));
    let candidates = files
        .iter()
        .filter(move |file| file.path == format!("{stem}.rs") || file.path.starts_with(&format!("{stem}/")));
    candidates.flat_map(move |file| {
        let lines = file.text.lines().enumerate();
        lines.filter(move |(_, line)| declared(line) == Some(wanted)).map(move |(number, _)| (file, number))
    })
}

/// Returns true if the module re-exports the type from a different crate.
fn is_passed_on(files: &[File], source: &str, module: &[String], wanted: &str) -> bool {
    let statement = |file: &File| statements(&file.text).any(|statement| passes_on(&statement, wanted));
    file_of(files, source, module).is_some_and(statement)
}

fn passes_on(statement: &str, wanted: &str) -> bool {
    let names =
        statement.strip_prefix("pub use wheellock_").map(|path| path.split([':', '{', '}', ',', ' ']));
    names.into_iter().flatten().any(|name| name == wanted)
}

/// Returns true if the documentation above the line contains Rust code.
fn has_example(text: &str, line: usize) -> bool {
    let above: Vec<&str> = text.lines().take(line).collect();
    let documented = above.iter().rev().take_while(|line| !line.is_empty() && **line != "}");
    let mut fences =
        documented.filter_map(|line| line.strip_prefix("/// ```")).collect::<Vec<_>>().into_iter().rev();
    let is_rust = |language: &str| {
        let words = ["", "rust", "no_run", "should_panic", "compile_fail"];
        language.split(',').all(|word| words.contains(&word.trim()))
    };
    while let Some(begin) = fences.next() {
        if is_rust(begin) {
            return true;
        }
        fences.next();
    }
    false
}

fn file_of<'a>(files: &'a [File], source: &str, module: &[String]) -> Option<&'a File> {
    let path = module.join("/");
    let paths = match path.as_str() {
        "" => vec![format!("{source}lib.rs")],
        path => vec![format!("{source}{path}.rs"), format!("{source}{path}/mod.rs")],
    };
    files.iter().find(|file| paths.contains(&file.path))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = "/// Is told.\n///\n/// ```no_run\n/// use_it();\n/// ```\n#[derive(Debug)]\n";

    fn crate_of(texts: &[(&str, &str)]) -> Vec<File> {
        let path = |name: &str| format!("crates/wheellock-resp/src/{name}");
        texts.iter().map(|(name, text)| File { path: path(name), text: (*text).into() }).collect()
    }

    fn complaints(texts: &[(&str, &str)]) -> Vec<String> {
        missing(&crate_of(texts)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn public_type_without_example_is_found() {
        let lib = "mod a;\n\npub use a::{\n    One, Two,\n    three,\n};\npub use bytes::Bytes;\npub(crate) use a::Four;\n";
        let two = "/// ```text\n/// no Rust\n/// ```\n#[derive(Debug)]\npub enum Two {\n    A,\n}\n";
        let a = format!("{EXAMPLE}pub struct One(u8);\n\n{two}\n/// Nobody's.\npub(crate) struct Four;\n");
        assert_eq!(
            complaints(&[("lib.rs", lib), ("a.rs", &a)]),
            ["crates/wheellock-resp/src/a.rs:13: no example: Two"]
        );
        assert_eq!(
            complaints(&[("lib.rs", lib), ("a.rs", "mod b;\n"), ("a/b.rs", &a)]),
            ["crates/wheellock-resp/src/a/b.rs:13: no example: Two"]
        );
    }

    #[test]
    fn hidden_types_need_no_example() {
        let lib = "pub mod a;\n#[doc(hidden)]\npub mod b;\nmod c;\n#[doc(hidden)]\npub use c::C;\n";
        let texts = [("lib.rs", lib), ("a.rs", "pub trait A {}\n"), ("b.rs", "pub struct B;\n")];
        assert_eq!(complaints(&texts), ["crates/wheellock-resp/src/a.rs:1: no example: A"]);
    }

    #[test]
    fn missing_exported_type_is_reported() {
        let lib = "mod a;\npub use a::{Passed, Strange};\n";
        assert_eq!(
            complaints(&[
                ("lib.rs", lib),
                ("a.rs", "pub use wheellock_client::Passed;\nmade_by_macro!(Strange);\n")
            ]),
            ["crates/wheellock-resp/src/: there is no a::Strange"]
        );
    }
}
