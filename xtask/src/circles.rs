//! Circular imports between source files of a crate.
//!
//! This module finds the imports of a text and the files that they refer to. A file is a module. A path that begins with `crate`, `self` or
//! `super` refers to the deepest file on it. A file's own children (`mod x;`) are part of it and not imports. Test modules in files of
//! their own are excluded. An inline test module counts as a part of its file in the search for circles.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::files::{Complaint, File, SHIPPED};

/// A module, as the names on its path below the crate. Empty for the crate itself.
type Module = Vec<String>;

/// The layers of a crate from top to bottom, by the first part of a file's path.
const LAYERS: [(&str, &[&str]); 2] = [
    (
        "crates/wheellock/src/",
        &[
            "testing", "blocking", "group", "manager", "kinds", "lock", "request", "wire", "table", "wait",
            "kind", "base",
        ],
    ),
    ("crates/wheellock-client/src/", &["client", "topology", "connection", "protocol", "config", "base"]),
];

/// Returns a complaint for every file that imports a file of a higher layer of its crate.
pub(crate) fn upward_arrows(files: &[File]) -> Vec<Complaint> {
    LAYERS.iter().flat_map(|(source, layers)| upward_arrows_below(files, source, layers)).collect()
}

fn upward_arrows_below(files: &[File], source: &str, layers: &[&str]) -> Vec<Complaint> {
    let modules = modules_below(files, source, without_tests);
    let layer = |module: &Module| {
        let first = module.first().map(String::as_str);
        layers.iter().position(|layer| first == Some(*layer))
    };
    let arrows = imports_of(&modules).into_iter().flat_map(|(module, imports)| {
        imports
            .into_iter()
            .filter(
                move |import| matches!((layer(import), layer(module)), (Some(to), Some(from)) if to < from),
            )
            .map(move |import| (module, import))
    });
    let complaint = |(module, import): (&Module, &Module)| {
        let what = format!("imports {}, which is of a layer above", import.join("/"));
        Complaint::of(format!("{source}{}.rs", module.join("/")), what)
    };
    arrows.map(complaint).collect()
}

/// Returns a complaint for every circle of files in a shipped crate or in these tools.
pub(crate) fn circles(files: &[File]) -> Vec<Complaint> {
    let crates = SHIPPED.iter().map(|(name, _)| format!("crates/{name}/src/"));
    crates.chain(["xtask/src/".to_owned()]).flat_map(|source| circles_below(files, &source)).collect()
}

fn circles_below(files: &[File], source: &str) -> Vec<Complaint> {
    let modules = modules_below(files, source, without_comments);
    let imports = imports_of(&modules);
    let mut complaints = Vec::new();
    let mut told: BTreeSet<&Module> = BTreeSet::new();
    for module in modules.keys() {
        let reached = reachable(module, &imports);
        if reached.contains(module) && !told.contains(module) {
            let circle = reached.into_iter().filter(|other| reachable(other, &imports).contains(module));
            let circle: Vec<&Module> = circle.collect();
            told.extend(&circle);
            let names: Vec<_> = circle.iter().map(|module| module.join("/")).collect();
            let what = format!("a circle of files: {}", names.join(", "));
            complaints.push(Complaint::of(source.trim_end_matches('/'), what));
        }
    }
    complaints
}

/// Returns the files below `source`, except the crate's own file, ordered so that no file imports a file above it.
pub(crate) fn from_top_to_bottom(files: &[File], source: &str) -> Vec<String> {
    let modules = modules_below(files, source, without_tests);
    let imports = imports_of(&modules);
    let mut named: Vec<_> = files
        .iter()
        .filter_map(|file| Some((module_of(file, source)?, file.path.strip_prefix(source)?)))
        .filter(|(module, _)| modules.contains_key(module))
        .collect();
    // A file that imports more files stands higher: an import includes everything that the imported file imports.
    let height = |module: &Module| reachable(module, &imports).len();
    named.sort_by_key(|(module, path)| (Reverse(height(module)), path.to_owned()));
    named.into_iter().map(|(_, path)| path.to_owned()).collect()
}

fn module_of(file: &File, source: &str) -> Option<Module> {
    let path = file.path.strip_prefix(source)?.strip_suffix(".rs")?;
    let mut module: Module = path.split('/').map(str::to_owned).collect();
    module.pop_if(|last| last == "mod" || last == "lib");
    Some(module)
}

fn modules_below(files: &[File], source: &str, code: fn(&str) -> String) -> BTreeMap<Module, String> {
    let is_test = |name: &String| ["model", "models", "oracle", "tests", "fuzzing"].contains(&name.as_str());
    let named = files.iter().filter_map(|file| Some((module_of(file, source)?, code(&file.text))));
    named.filter(|(module, _)| !module.is_empty() && !module.iter().any(is_test)).collect()
}

fn imports_of(modules: &BTreeMap<Module, String>) -> BTreeMap<&Module, BTreeSet<&Module>> {
    modules.iter().map(|(module, text)| (module, imports(module, text, modules))).collect()
}

/// Returns all modules that `module` imports, directly or indirectly.
fn reachable<'a>(
    module: &Module,
    imports: &BTreeMap<&'a Module, BTreeSet<&'a Module>>,
) -> BTreeSet<&'a Module> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&Module> = imports.get(module).into_iter().flatten().copied().collect();
    while let Some(next) = open.pop() {
        if let Some((known, further)) = imports.get_key_value(next)
            && reached.insert(*known)
        {
            open.extend(further);
        }
    }
    reached
}

/// Returns the modules that `text` of `module` imports.
fn imports<'a>(module: &Module, text: &str, modules: &'a BTreeMap<Module, String>) -> BTreeSet<&'a Module> {
    let mut found = BTreeSet::new();
    let mut rest = text;
    while let Some((start, base, after)) = next_root(rest, module) {
        let mut paths = Vec::new();
        let used = paths_behind(after, &base, &mut paths);
        found.extend(paths.iter().filter_map(|path| meant(path, modules)).filter(|known| *known != module));
        rest = rest.get(start..).and_then(|_| after.get(used..)).unwrap_or_default();
    }
    found
}

/// Returns the file that defines the last name of a path. This is the deepest file on the path, or the child from which it re-exports the
/// name.
fn meant<'a>(path: &Module, modules: &'a BTreeMap<Module, String>) -> Option<&'a Module> {
    let known = |path: &[String]| modules.get_key_value(path);
    let (deepest, text) = (1..=path.len()).rev().find_map(|length| known(path.get(..length)?))?;
    let Some(name) = path.get(deepest.len()) else { return Some(deepest) };
    let has_from = |statement: &str| {
        let mut paths = Vec::new();
        paths_behind(statement, deepest, &mut paths);
        let named = paths.iter().filter(|path| path.last() == Some(name));
        named.filter_map(|path| known(path.get(..=deepest.len())?)).map(|(part, _)| part).next()
    };
    Some(text.split("use ").skip(1).find_map(has_from).unwrap_or(deepest))
}

/// Finds the next `crate::`, `self::` or `super::..`. Returns its position, the module that it refers to, and the text behind it.
fn next_root<'a>(text: &'a str, module: &Module) -> Option<(usize, Module, &'a str)> {
    let roots = ["crate::", "self::", "super::"];
    let stands_alone = |at: usize| {
        let before = text.get(..at).and_then(|before| before.chars().next_back());
        before.is_none_or(|before| !before.is_alphanumeric() && !['_', ':', '$'].contains(&before))
    };
    let first = |root: &&str| text.match_indices(root).map(|(at, _)| at).find(|at| stands_alone(*at));
    let (at, root) = roots.iter().filter_map(|root| Some((first(root)?, *root))).min()?;
    let mut after = text.get(at + root.len()..)?;
    let mut base = if root == "crate::" { Module::new() } else { module.clone() };
    if root == "super::" {
        base.pop();
        while let Some(further) = after.strip_prefix("super::") {
            base.pop();
            after = further;
        }
    }
    Some((at, base, after))
}

/// Collects the paths that continue behind `base`, including groups in braces. Returns the length of their text.
fn paths_behind(text: &str, base: &Module, paths: &mut Vec<Module>) -> usize {
    let mut path = base.clone();
    let mut at = 0;
    loop {
        let rest = text.get(at..).unwrap_or_default();
        if let Some(group) = rest.strip_prefix('{') {
            let mut inside = at + 1;
            let mut depth_text = group;
            loop {
                let skipped = depth_text.len() - depth_text.trim_start_matches([' ', '\n', ',']).len();
                (inside, depth_text) = (inside + skipped, depth_text.get(skipped..).unwrap_or_default());
                if depth_text.is_empty() || depth_text.starts_with('}') {
                    return inside + usize::from(!depth_text.is_empty());
                }
                let used = paths_behind(depth_text, &path, paths).max(1);
                (inside, depth_text) = (inside + used, depth_text.get(used..).unwrap_or_default());
            }
        }
        let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        at += name.len();
        if !name.is_empty() {
            path.push(name);
        }
        match text.get(at..).and_then(|rest| rest.strip_prefix("::")) {
            Some(_) => at += 2,
            None => {
                paths.push(path);
                return at;
            }
        }
    }
}

fn without_comments(text: &str) -> String {
    let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    code.collect::<Vec<_>>().join("\n")
}

/// Returns the text without comments and without inline test modules, which are at the end of a file.
fn without_tests(text: &str) -> String {
    let code = without_comments(text);
    let tests = ["#[cfg(test)]\nmod ", "#[cfg(all(test"].iter().filter_map(|mark| {
        let at = code.find(mark)?;
        // `mod model;` is a separate file.
        code.get(at..)?.lines().nth(1)?.ends_with('{').then_some(at)
    });
    let end = tests.min().unwrap_or(code.len());
    code.get(..end).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let file = |(path, text): &(&str, &str)| File {
            path: format!("crates/wheellock/src/{path}"),
            text: (*text).to_owned(),
        };
        let files: Vec<_> = files.iter().map(file).collect();
        circles(&files).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn circle_is_found_in_every_notation() {
        let circle = "crates/wheellock/src: a circle of files: a, b";
        let back = [
            "use crate::a::X;",
            "use crate::{a::X, c};",
            "fn f(_: super::a::X) {}",
            "use crate::{\n    c,\n    a,\n};",
        ];
        for back in back {
            assert_eq!(found(&[("a.rs", "use crate::b::{self, Y};"), ("b.rs", back)]), [circle], "{back}");
        }
        let long = [("a.rs", "use crate::b::X;"), ("b.rs", "use crate::c;"), ("c.rs", "use crate::a;")];
        assert_eq!(found(&long), ["crates/wheellock/src: a circle of files: a, b, c"]);
        let shown = [
            ("a.rs", "mod b;\nmod c;\npub(crate) use b::X;\nuse c::{Y, Z};"),
            ("a/b.rs", "use super::Y;"),
            ("a/c.rs", "use super::X;"),
        ];
        assert_eq!(
            found(&shown),
            ["crates/wheellock/src: a circle of files: a/b, a/c"],
            "by the names of a parent"
        );
        let deep = [("a.rs", "use crate::b::c::X;"), ("b.rs", ""), ("b/c.rs", "use super::super::a;")];
        assert_eq!(found(&deep), ["crates/wheellock/src: a circle of files: a, b/c"]);
    }

    #[test]
    fn an_arrow_upwards_is_found() {
        let file = |path: &str, text: &str| File {
            path: format!("crates/wheellock/src/{path}"),
            text: text.to_owned(),
        };
        let files = [
            file("lock.rs", "use crate::request::acquire::X;"),
            file("request/acquire.rs", "use crate::wire;"),
            file("wire/mod.rs", "use crate::table::holds::X;"),
            file("table/holds.rs", ""),
            file("table/holds/hold.rs", "use crate::request::context::X;"),
            file("request/context.rs", "use crate::wire;"),
        ];
        let found: Vec<_> = upward_arrows(&files).iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            ["crates/wheellock/src/table/holds/hold.rs: imports request/context, which is of a layer above"]
        );
        let client = |path: &str, text: &str| File {
            path: format!("crates/wheellock-client/src/{path}"),
            text: text.to_owned(),
        };
        let files = [
            client("connection/open.rs", "use crate::topology::finder::X;"),
            client("topology/finder.rs", "use crate::base::pace::X;"),
            client("base/pace.rs", ""),
        ];
        let found: Vec<_> = upward_arrows(&files).iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "crates/wheellock-client/src/connection/open.rs: imports topology/finder, which is of a layer above"
            ]
        );
    }

    #[test]
    fn what_is_no_circle_is_none() {
        let tree = [("a.rs", "use crate::b;\nuse crate::c;"), ("b.rs", "use crate::c::d;"), ("c.rs", "")];
        assert_eq!(found(&tree), [""; 0]);
        let mention = [("a.rs", "use crate::b;"), ("b.rs", "//! See crate::a.\n// crate::a\n$crate::a;")];
        assert_eq!(found(&mention), [""; 0]);
        let tests = [("a.rs", "use crate::b;"), ("b.rs", "#[cfg(test)]\nmod tests {\n    use crate::a;\n}")];
        assert_eq!(found(&tests), ["crates/wheellock/src: a circle of files: a, b"], "by an inline test");
        let beside = [("a.rs", "use crate::b;"), ("b.rs", ""), ("b/tests.rs", "use crate::a;")];
        assert_eq!(found(&beside), [""; 0], "by a test beside it");
        let family = [("a.rs", "mod b;\nuse b::X;"), ("a/b.rs", "use super::Y;")];
        assert_eq!(found(&family), [""; 0], "a parent and its part");
    }
}
