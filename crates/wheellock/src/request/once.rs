//! Requests that take effect once and are not holds.
//!
//! Each takes effect once, however often it is sent.

use std::sync::LazyLock;
use std::task::Waker;
use std::time::Duration;

use wheellock_client::layer::Retry;
use wheellock_client::{Arg, Script};

use crate::base::error::Error;
use crate::base::owner::OwnerText;
use crate::base::request_slots::RequestSlot;
use crate::kind::lua;
use crate::request::context::Context;
use crate::request::retry::retry;
use crate::wait::name::Name;
use crate::wire;

pub(crate) static SET_PERMITS: LazyLock<Script> =
    LazyLock::new(|| Script::new(lua!("once.lua", "semaphore/try_set.lua"), 1, 7));
pub(crate) static ADD_PERMITS: LazyLock<Script> =
    LazyLock::new(|| Script::new(lua!("once.lua", "number.lua", "semaphore/add.lua"), 1, 7));
pub(crate) static DRAIN: LazyLock<Script> =
    LazyLock::new(|| Script::new(lua!("once.lua", "number.lua", "semaphore/drain.lua"), 1, 6));
pub(crate) static CHANGE_PERMITS: LazyLock<Script> =
    LazyLock::new(|| Script::new(lua!("once.lua", "number.lua", "permit/reap.lua", "permit/set.lua"), 1, 7));
pub(crate) static GIVE_BACK: LazyLock<Script> = LazyLock::new(|| {
    Script::new(lua!("once.lua", "number.lua", "permit/reap.lua", "permit/give_back.lua"), 1, 7)
});
pub(crate) static GIVE_BACK_MANY: LazyLock<Script> = LazyLock::new(|| {
    Script::new(lua!("once.lua", "number.lua", "permit/reap.lua", "permit/give_back_many.lua"), 1, 7)
});
pub(crate) static SET_LATCH: LazyLock<Script> =
    LazyLock::new(|| Script::new(lua!("once.lua", "latch/try_set.lua"), 1, 7));
pub(crate) static COUNT_DOWN: LazyLock<Script> = LazyLock::new(|| {
    Script::new(lua!("once.lua", "number.lua", "latch/ended.lua", "latch/count_down.lua"), 1, 6)
});
pub(crate) static DELETE_LATCH: LazyLock<Script> =
    LazyLock::new(|| Script::new(lua!("once.lua", "latch/ended.lua", "latch/delete.lua"), 1, 6));

/// Runs a script that replies to a repeated request with the first reply. Repeats the request until the response timeout if the reply was
/// lost. Returns the number in the reply.
pub(crate) async fn once(
    context: &Context,
    name: &Name,
    script: &Script,
    verb: &str,
    more: Option<Arg<'_>>,
) -> Result<i64, Error> {
    // Keep the slot until the reply. A later request in a slot that was freed earlier would overwrite the remembered
    // reply, and a repetition of this request would not find it.
    let slot = RequestSlot::take(&context.slots);
    once_at(&slot, context, name, script, verb, more).await
}

/// Does the same as [`once`], in a slot that the caller keeps.
pub(crate) async fn once_at(
    slot: &RequestSlot,
    context: &Context,
    name: &Name,
    script: &Script,
    verb: &str,
    more: Option<Arg<'_>>,
) -> Result<i64, Error> {
    let (at, serial) = (OwnerText::new(&context.uuid, slot.number, ""), slot.next_serial());
    // No repetition arrives after this time, wherever it was delayed.
    let memory = 2 * context.client.config().response_timeout + MEMORY;
    let ask = |learnt: &Retry, start, waker: &Waker| {
        let publish = context.client.publish_verb();
        let params = wire::once(name, &at, serial, memory, publish, more);
        context.client.start_eval(script, wire::KEYS, &params, learnt, start, waker)
    };
    let operation = || format!("{verb} {}", name.display_name());
    let reply = retry(context, ask, None).await.result;
    let reply = reply.map_err(|source| Error::of_lock(name.text(), operation(), source))?;
    reply.as_i64().ok_or_else(|| context.unexpected(name, operation(), &reply))
}

/// Time for which a request is remembered after its last possible repetition. It is longer than any request stays unread by a server.
const MEMORY: Duration = Duration::from_secs(60);
