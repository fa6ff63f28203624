//! The manual, generated from the help. It is the last part of `docs/tables/manual.md`.

use clap::CommandFactory;

use crate::arguments::{Arguments, WIDTH};

/// Returns the help of every verb, in Markdown.
pub(crate) fn page() -> String {
    let mut program = Arguments::command().bin_name("wheellock").term_width(WIDTH);
    program.build();
    let own =
        format!("## `wheellock`\n\n```text\n{}\n```\n", trimmed(&program.render_long_help().to_string()));
    let verbs = program.get_subcommands().filter(|verb| !verb.is_hide_set() && verb.get_name() != "help");
    let verbs = verbs.map(|verb| {
        let help = verb.clone().term_width(WIDTH).render_long_help().to_string();
        format!("\n## `wheellock {}`\n\n```text\n{}\n```\n", verb.get_name(), trimmed(&help))
    });
    std::iter::once(own).chain(verbs).collect()
}

/// Removes spaces at the ends of lines.
fn trimmed(text: &str) -> String {
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n").trim_end().to_owned()
}
