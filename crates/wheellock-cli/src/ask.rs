//! Asks a lock's holders to release it.

use wheellock::{AskedHolders, Error, LockManager, Mode};

use crate::arguments::Ask;
use crate::end::{End, Failure, say};
use crate::holder;
use crate::kinds::Kind;
use crate::run::default_label;

pub(crate) async fn ask(options: &Ask) -> Result<End, Failure> {
    let label = default_label(&["wheellock".into()]);
    let locks = options.server.builder().label(label).connect().await?;
    let asked = find_and_ask(&locks, options).await?;
    say(&as_text(&asked));
    let is_told = !asked.told.is_empty() && asked.untold.is_empty() && asked.beyond == 0;
    Ok(if is_told { End::Success } else { End::No })
}

/// Asks the holders of the data under the name, of any kind.
async fn find_and_ask(locks: &LockManager, options: &Ask) -> Result<AskedHolders, Error> {
    let ask = async |kind: Kind| kind.lock(locks, &options.name).ask_to_release(&options.reason).await;
    if let Some(kind) = options.kind {
        return ask(kind).await;
    }
    let found = holder::find(locks, &options.name, None).await?;
    let mut modes = found.holders.iter().map(|holder| holder.mode);
    if modes.any(|mode| mode != Mode::Exclusive) {
        // A writer may read as well.
        let (mut both, readers) = (ask(Kind::Write).await?, ask(Kind::Read).await?);
        both.told.extend(readers.told);
        both.untold.extend(readers.untold);
        both.beyond += readers.beyond;
        return Ok(both);
    }
    match ask(Kind::Plain).await {
        Err(Error::OtherData { .. }) => ask(Kind::Simple).await,
        asked => asked,
    }
}

fn as_text(asked: &AskedHolders) -> String {
    if asked.is_free() {
        return "free\n".to_owned();
    }
    let told = asked.told.iter().map(|holder| format!("told: {holder}\n"));
    let untold = asked.untold.iter().map(|holder| format!("does not listen: {holder}\n"));
    let beyond = (asked.beyond > 0).then(|| format!("not asked: {} more\n", asked.beyond));
    told.chain(untold).chain(beyond).collect()
}
