//! Templates of a kind that begins as a copy of another kind.
//!
//! The other kind's row, Lua, constructors and calls are read from today's sources, by the forms that these have.

use anyhow::{Context, Result, ensure};

use super::{Read, Refusal, SOURCE, known};

/// Returns the templates of a copy of the kind `like`, and the call that makes a plain lock of it. The copy has its own Lua for the scripts
/// `own`, or for all that `like` has.
pub(super) fn templates(read: Read<'_>, like: &str, own: &[String]) -> Result<(String, &'static str)> {
    let source = |path: &str| known(read, &format!("{SOURCE}{path}"));
    let upper = like.to_uppercase();
    let rows = source("kind/mod.rs")?;
    let declaration = format!("pub(crate) static {upper}: LazyLock<Kind> =");
    let row = block(&rows, &declaration, "\n});\n").unwrap_or_default();
    let has = |script: &&str| row.contains(&format!("\"{like}/{script}.lua\""));
    // A semaphore has permits, so the test of two locks does not suit it.
    let is_lock = has(&"acquire") && !row.contains("Kind::semaphore()");
    ensure!(is_lock, Refusal::NotLike(like.to_owned()));
    let is_own = |script: &&str| own.is_empty() || own.iter().any(|own| own == script);
    let scripts: Vec<_> = ["acquire", "release", "renew"].into_iter().filter(has).filter(is_own).collect();
    ensure!(!scripts.is_empty(), "`{like}` has none of these scripts of its own: {}", own.join(", "));

    let mut copy = row.replace(&format!("static {upper}:"), "static %NAME:");
    for script in &scripts {
        copy = copy.replace(&format!("{like}/{script}.lua"), &format!("%name/{script}.lua"));
    }
    let copy: Vec<_> = copy.lines().map(relabelled).collect();
    let mut all = format!(
        "== {SOURCE}kind/mod.rs above // new-kind: row\n/// The %words lock.\n// Stub of `%name`: set what differs \
         from `{like}`.\n{}\n\n",
        copy.join("\n")
    );
    for script in &scripts {
        let text = source(&format!("scripts/{like}/{script}.lua"))?;
        all += &format!("== {SOURCE}scripts/%name/{script}.lua new\n{}", stub_of(&text, like));
        all += &model(read, like, script)?;
    }
    let (constructors, as_lock) =
        constructors(&source("manager/mod.rs")?, &source("blocking/kinds.rs")?, &upper)
            .with_context(|| format!("`{like}` has no constructor that its copy could have"))?;
    Ok((all + &constructors + &effects(like, &scripts), as_lock))
}

/// Returns the row's line with the new label.
fn relabelled(line: &str) -> String {
    match line.trim_start().strip_prefix("label: ") {
        Some(_) => {
            line.split_once("label: ").map_or(String::new(), |(indent, _)| indent.to_owned())
                + "label: \"%name_lock\","
        }
        None => line.to_owned(),
    }
}

/// Returns a script with a further line in the comment at its head.
fn stub_of(script: &str, like: &str) -> String {
    let head = script.lines().take_while(|line| line.starts_with("--")).count();
    let mut lines: Vec<_> = script.lines().map(str::to_owned).collect();
    lines.splice(head..head, ["--".to_owned(), format!("-- Stub of `%name`: the script of `{like}`.")]);
    lines.join("\n") + "\n"
}

/// Returns the lines of the model's tables and of its test.
fn model(read: Read<'_>, like: &str, script: &str) -> Result<String> {
    let (like, script_name) = (capital(like), capital(script));
    let source = if script == "acquire" {
        "&kind::%NAME.acquire".to_owned()
    } else {
        format!("of(&kind::%NAME.{script})")
    };
    let calls = known(read, TEST)?;
    let call = format!("(Which::{like}{script_name}, ");
    let call = calls.lines().find_map(|line| line.trim().strip_prefix(&call)).unwrap_or_default();
    Ok(format!(
        "== {SOURCE}testing/server/scripts.rs above // new-kind: scripts\n%Name{script_name} => {source},\n\
         == {SOURCE}testing/server/store.rs above // new-kind: calls\n\
         (Which::%Name{script_name}, keys, args) => return self.%name_{script}(keys, args),\n\
         == {TEST} above // new-kind: calls\n(Which::%Name{script_name}, {call}\n"
    ))
}

/// Returns the file of the model. Each copied script has the effect of the other, under the other's name.
fn effects(like: &str, scripts: &[&str]) -> String {
    let effect = |script: &&str| {
        format!(
            "\n    pub(super) fn %name_{script}(&mut self, keys: &[&str], args: &[&str]) -> Result<Option<Answer>> {{\n        \
             self.ran(Which::{}{}, &keys.len().to_string(), &[keys, args].concat())\n    }}\n",
            capital(like),
            capital(script)
        )
    };
    let effects: String = scripts.iter().map(effect).collect();
    format!(
        "== {SOURCE}testing/server/store.rs among mod\nmod %name;\n\
         == {SOURCE}testing/server/store/%name.rs new\n//! Model of the scripts of %words locks.\n\n\
         use super::{{Answer, Result, Store, Which}};\n\n\
         // Stub of `%name`: do what the Lua files do, and note their effects under their own names.\n\
         impl Store {{{}}}\n",
        effects.trim_start_matches('\n').replacen("    pub", "\n    pub", 1)
    )
}

/// Returns the constructors of both managers, and the call that makes a plain lock of their results.
fn constructors(manager: &str, blocking: &str, kind: &str) -> Option<(String, &'static str)> {
    let used = [format!("&kind::{kind})"), format!("&kind::{kind}]")];
    let at = used.iter().find_map(|used| manager.find(used.as_str()))?;
    let method = "    pub fn ";
    let name = manager[manager[..at].rfind(method)? + method.len()..].split_once('(')?.0;
    let asynchronous = block(manager, &format!("{method}{name}("), "\n    }\n")?;
    let as_lock = if asynchronous.contains("-> ReadWriteLock") { ".write()" } else { "" };
    let asynchronous = asynchronous.replace(&format!("&kind::{kind}"), "&kind::%NAME");
    let threads = block(blocking, &format!("{method}{name}("), "\n    }\n")?;
    let renamed = |text: &str| {
        let lines = text.lines().map(|line| line.strip_prefix("    ").unwrap_or(line));
        lines.map(|line| line.replace(&format!("{name}("), "%name_lock(") + "\n").collect::<String>()
    };
    let text = format!(
        "== {SOURCE}manager/mod.rs above // new-kind: constructor\n/// Returns a %words lock, without I/O.\n\
         // Stub of `%name`: say what users get, and return a type that has it.\n{}\n\
         == {SOURCE}blocking/kinds.rs above // new-kind: constructor\n\
         /// Works like [`crate::LockManager::%name_lock`].\n// Stub of `%name`: return the same type.\n{}\n",
        renamed(&asynchronous),
        renamed(threads)
    );
    Some((text, as_lock))
}

fn capital(word: &str) -> String {
    word[..1].to_uppercase() + &word[1..]
}

/// Returns the text from `begin` up to and including the next `end`.
fn block<'a>(text: &'a str, begin: &str, end: &str) -> Option<&'a str> {
    let start = text.find(begin)?;
    let length = text[start..].find(end)? + end.len();
    text.get(start..start + length)
}

const TEST: &str = "tests/tests/it/model_server.rs";
