//! Shows the waiters for a fair lock, for people and for scripts.

use wheellock::Waiter;

use crate::arguments::Queue;
use crate::end::{End, Failure, say};
use crate::json;

pub(crate) async fn show(options: &Queue) -> Result<End, Failure> {
    let locks = options.server.builder().connect().await?;
    let lock = locks.fair_lock(&options.name);
    let waiters = lock.waiters().await?.unwrap_or_default();
    let length = lock.queue_length().await?.unwrap_or_default();
    let beyond = length.saturating_sub(waiters.len() as u64);
    say(&if options.json {
        as_json(&options.server.full_name(&options.name), &waiters, beyond)
    } else {
        as_text(&waiters, beyond)
    });
    Ok(if waiters.is_empty() { End::No } else { End::Success })
}

fn as_text(waiters: &[Waiter], beyond: u64) -> String {
    let line = |(place, waiter): (usize, &Waiter)| {
        let label = waiter.label.as_deref().unwrap_or("-");
        format!("{}  {}  [{}]\n", place + 1, label.escape_debug(), waiter.owner.escape_debug())
    };
    let mut lines: String = waiters.iter().enumerate().map(line).collect();
    if waiters.is_empty() {
        lines.push_str("no queue: only fair locks have one, while processes wait\n");
    } else if beyond > 0 {
        lines.push_str(&format!("and {beyond} more\n"));
    }
    lines
}

fn as_json(name: &str, waiters: &[Waiter], beyond: u64) -> String {
    let waiter = |waiter: &Waiter| {
        let label = json::optional(waiter.label.as_deref());
        format!("{{\"owner\":{},\"label\":{label}}}", json::string(&waiter.owner))
    };
    let waiters: Vec<String> = waiters.iter().map(waiter).collect();
    format!("{{\"name\":{},\"waiters\":[{}],\"beyond\":{beyond}}}\n", json::string(name), waiters.join(","))
}
