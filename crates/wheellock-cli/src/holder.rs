//! Reports a lock's holders, for people and for scripts.

use std::time::Duration;

use wheellock::{Error, Holder, Holders, LockManager, Mode};

use crate::arguments;
use crate::end::{End, Failure, say};
use crate::json;
use crate::kinds::Kind;

pub(crate) async fn show(options: &arguments::Holder) -> Result<End, Failure> {
    let locks = options.server.builder().connect().await?;
    let found = find(&locks, &options.name, options.kind).await?;
    say(&if options.json {
        as_json(&options.server.full_name(&options.name), &found)
    } else {
        as_text(&found)
    });
    Ok(if found.is_empty() { End::No } else { End::Success })
}

/// Returns all holders of the data under the name, of any kind.
pub(crate) async fn find(locks: &LockManager, name: &str, kind: Option<Kind>) -> Result<Holders, Error> {
    if let Some(kind) = kind {
        return kind.lock(locks, name).holders().await;
    }
    let other_data = match Kind::Plain.lock(locks, name).holders().await {
        Err(error @ Error::OtherData { .. }) => error,
        found => return found,
    };
    match Kind::Write.lock(locks, name).holders().await {
        Err(Error::OtherData { .. }) => {}
        found => {
            let (mut both, readers) = (found?, Kind::Read.lock(locks, name).holders().await?);
            both.holders.extend(readers.holders);
            both.beyond += readers.beyond;
            return Ok(both);
        }
    }
    let found = Kind::Simple.lock(locks, name).holders().await?;
    // Any text may be a token, but a simple lock expires. A number of permits, or another program's data, does not
    // expire.
    let ends = found.holders.iter().all(|holder| holder.lease_left < Duration::MAX);
    if ends { Ok(found) } else { Err(other_data) }
}

fn as_text(found: &Holders) -> String {
    let mut lines: Vec<String> = found.holders.iter().map(ToString::to_string).collect();
    if found.is_empty() {
        lines.push("free".to_owned());
    } else if found.beyond > 0 {
        lines.push(format!("and {} more", found.beyond));
    }
    lines.join("\n") + "\n"
}

fn as_json(name: &str, found: &Holders) -> String {
    format!(
        "{{\"name\":{},\"held\":{},\"holders\":[{}],\"beyond\":{}}}\n",
        json::string(name),
        !found.is_empty(),
        holders_as_json(found),
        found.beyond
    )
}

/// Returns the holders as the elements of a list.
pub(crate) fn holders_as_json(found: &Holders) -> String {
    found.holders.iter().map(holder_as_json).collect::<Vec<_>>().join(",")
}

fn holder_as_json(holder: &Holder) -> String {
    let mode = match holder.mode {
        Mode::Read => "read",
        Mode::Write => "write",
        _ => "exclusive",
    };
    // A lease without an end has no number in the output.
    let millis = |time: Duration| u64::try_from(time.as_millis()).ok();
    let left = millis(holder.lease_left);
    let held = holder.held_for.and_then(millis);
    let number = |number: Option<u64>| number.map_or_else(|| "null".to_owned(), |number| number.to_string());
    format!(
        "{{\"owner\":{},\"process\":{},\"label\":{},\"mode\":\"{mode}\",\"hold_count\":{},\"held_ms\":{},\"has_ended\":{},\"lease_left_ms\":{}}}",
        json::string(&holder.owner),
        json::optional(holder.process()),
        json::optional(holder.label.as_deref()),
        holder.hold_count,
        number(held),
        holder.is_spent(),
        number(left),
    )
}
