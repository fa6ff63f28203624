//! The page of error texts, `docs/tables/errors.md`.
//!
//! Each row is a situation and the text that it produces.
//!
//! To add a row, produce the error in a section, then run `cargo xtask errors`, which writes the page anew.

mod calls;
mod connecting;
mod locks;
mod settings;
mod tls;

use std::fmt::{Display, Write};
use std::path::Path;

use wheellock_tests::wire::difference;

/// A situation and the text that it produces.
struct Row {
    situation: &'static str,
    text: String,
}

/// Makes a row. `server` is an address that differs in each run; the page shows `db:6379`.
fn row(situation: &'static str, server: impl Display, error: impl Display) -> Row {
    Row { situation, text: error.to_string().replace(&server.to_string(), "db:6379") }
}

/// Makes a row of an error that does not name a server.
fn fixed(situation: &'static str, error: impl Display) -> Row {
    Row { situation, text: error.to_string() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn error_texts_match_page() {
    let sections = [
        ("URLs", settings::urls()),
        ("Settings", settings::values()),
        ("Connecting", connecting::rows().await),
        ("Connecting with TLS", tls::rows().await),
        ("Calls", calls::rows().await),
        ("Commands that a shared connection does not send", calls::refused_commands().await),
        ("Locks", locks::rows().await),
        ("Lost locks", locks::losses()),
        ("Findings of `diagnostics` and `wheellock doctor`", locks::findings()),
    ];
    let mut page = String::from(HEAD);
    for (title, rows) in sections {
        write!(page, "\n## {title}\n\n| situation | text |\n|---|---|\n").unwrap();
        for Row { situation, text } in rows {
            writeln!(page, "| {situation} | {} |", code(&text)).unwrap();
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/tables/errors.md");
    if std::env::var_os(BLESS).is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    if let Some(difference) = difference(&std::fs::read_to_string(&path).unwrap_or_default(), &page) {
        panic!("docs/tables/errors.md is out of date; `cargo xtask errors` writes it anew:\n{difference}");
    }
}

/// Returns `text` as code in a cell of a Markdown table.
fn code(text: &str) -> String {
    let fence = if text.contains('`') { "``" } else { "`" };
    let pad = if text.starts_with('`') || text.ends_with('`') { " " } else { "" };
    format!("{fence}{pad}{}{pad}{fence}", text.replace('|', "\\|"))
}

/// Writes the page anew.
const BLESS: &str = "WHEELLOCK_BLESS";
const HEAD: &str = "\
# Error texts

Each text that this library's errors print, with a situation that produces it. Each says what was tried, on which server, why it failed,
and, for a call, whether it may have run. Where a remedy exists, the text names it.

<!-- The test `error_texts` produces each of these errors. `cargo xtask errors` writes this page anew. -->
";
