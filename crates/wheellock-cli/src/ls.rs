//! Lists the locks of a server, for people and for scripts.

use std::io::{IsTerminal, Write as _};
use std::time::Duration;

use wheellock::{Holder, Listed};

use crate::arguments::Ls;
use crate::end::{End, Failure, say};
use crate::{holder, json, time};

pub(crate) async fn list(options: &Ls) -> Result<End, Failure> {
    let locks = options.server.builder().connect().await?;
    let mut listing = locks.list(&options.pattern);
    let shows_progress = std::io::stderr().is_terminal();
    let mut listed = 0;
    while options.limit.is_none_or(|limit| listed < limit)
        && let Some(lock) = listing.next().await?
    {
        listed += 1;
        say(&if options.json { as_json(&lock) } else { as_text(&lock) });
        if shows_progress && listed % SHOWN_EACH == 0 {
            progress(&format!("{listed} locks among {} keys", listing.keys_seen()));
        }
    }
    if shows_progress {
        progress("");
    }
    Ok(if listed > 0 { End::Success } else { End::No })
}

/// Replaces the last line on the terminal.
fn progress(text: &str) {
    let mut terminal = std::io::stderr().lock();
    let _written = write!(terminal, "\r\x1b[K{text}").and_then(|()| terminal.flush());
}

const SHOWN_EACH: u64 = 100;

/// Returns a line for each holder.
fn as_text(lock: &Listed) -> String {
    let waiters = lock.waiters.map_or_else(String::new, |waiters| format!("  {waiters} waiting"));
    let head = format!("{}  {}", lock.name.escape_debug(), lock.kind);
    let holders = &lock.holders;
    let line = |holder| format!("{head}  {}  {}{waiters}\n", columns_of(holder), lease_left(holder));
    let mut lines: Vec<String> = holders.holders.iter().map(line).collect();
    if holders.beyond > 0 {
        let more = if holders.holders.is_empty() { "holders" } else { "more holders" };
        lines.push(format!("{head}  {} {more}{waiters}\n", holders.beyond));
    }
    lines.concat()
}

/// Returns a holder's label and owner, and the age of its hold if it is known.
pub(crate) fn columns_of(holder: &Holder) -> String {
    let label = holder.label.as_deref().unwrap_or("-");
    let more = match holder.held_for {
        _ if holder.is_spent() => "  has ended".to_owned(),
        Some(age) => format!("  granted {} ago", time::in_largest_unit(age)),
        None => String::new(),
    };
    format!("{}  [{}]{more}", label.escape_debug(), holder.owner.escape_debug())
}

pub(crate) fn lease_left(holder: &Holder) -> String {
    if holder.lease_left == Duration::MAX {
        "no end".to_owned()
    } else {
        format!("{:.1} s", holder.lease_left.as_secs_f64())
    }
}

fn as_json(lock: &Listed) -> String {
    format!(
        "{{\"name\":{},\"kind\":{},\"waiters\":{},\"holders\":[{}],\"beyond\":{}}}\n",
        json::string(&lock.name),
        json::string(lock.kind),
        lock.waiters.map_or_else(|| "null".to_owned(), |waiters| waiters.to_string()),
        holder::holders_as_json(&lock.holders),
        lock.holders.beyond
    )
}
