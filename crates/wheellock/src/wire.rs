//! What goes over the wire: the parameters of every script and query, and the meaning of their replies. They are built and
//! read here only. Which scripts, keys and channels a kind of lock has is `kind`'s.

use std::time::Duration;

use wheellock_client::{Arg, Command, Value};

use crate::holds::{GrantReply, Renewal, RenewalReply, Renewed};
use crate::lease::Lease;
use crate::name::Name;
use crate::owner::OwnerText;

/// Keys of a script that is about one lock.
pub(crate) const KEYS: usize = 1;

/// Another holder has the lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refusal {
    /// For so long, unless the lease is renewed; `None`: for ever, by a foreign hand.
    pub(crate) lease_left: Option<Duration>,
}

impl Refusal {
    /// By the PTTL that the server told; -1: held without a TTL, which only a foreign hand can have done.
    fn of(pttl: i64) -> Self {
        Self { lease_left: u64::try_from(pttl).ok().map(Duration::from_millis) }
    }
}

/// For `acquire.lua`: asks that `owner` holds the lock `count` times.
pub(crate) fn acquire<'a>(name: &'a Name, lease: Lease, owner: &'a [u8], count: u32) -> [Arg<'a>; 4] {
    [name.key().into(), lease.millis().into(), owner.into(), count.into()]
}

/// What `acquire.lua` returns; `None` if it never does.
pub(crate) fn read_acquire(reply: &Value) -> Option<Result<GrantReply, Refusal>> {
    match reply {
        Value::Null => Some(Ok(GrantReply::Fresh)),
        Value::Integer(pttl) => Some(Err(Refusal::of(*pttl))),
        reply => (reply.as_bytes() == Some(b"AGAIN")).then_some(Ok(GrantReply::Again)),
    }
}

/// One of several locks that are asked for together.
pub(crate) struct Part<'a> {
    pub(crate) name: &'a Name,
    pub(crate) lease: Lease,
    pub(crate) owner: OwnerText,
    pub(crate) count: u32,
}

/// For `acquire_all.lua`.
pub(crate) fn acquire_all<'a>(locks: &'a [Part<'a>]) -> Vec<Arg<'a>> {
    let keys = locks.iter().map(|lock| Arg::from(lock.name.key()));
    let args = locks
        .iter()
        .flat_map(|lock| [lock.lease.millis().into(), lock.owner.as_bytes().into(), lock.count.into()]);
    keys.chain(args).collect()
}

/// What `acquire_all.lua` returns.
pub(crate) enum AllReply {
    Granted(Vec<GrantReply>),
    /// Another holder has the lock at this place.
    Refused(usize, Refusal),
    OtherData(usize),
}

/// What `acquire_all.lua` returns of so many locks; `None` if it never does.
pub(crate) fn read_acquire_all(reply: &Value, locks: usize) -> Option<AllReply> {
    let numbers: Vec<i64> = reply.as_array()?.iter().map(Value::as_i64).collect::<Option<_>>()?;
    let place = |place: i64| usize::try_from(place).ok()?.checked_sub(1).filter(|place| *place < locks);
    match *numbers {
        [1, ref statuses @ ..] if statuses.len() == locks => {
            let status = |status: &i64| match status {
                1 => Some(GrantReply::Fresh),
                2 => Some(GrantReply::Again),
                _ => None,
            };
            statuses.iter().map(status).collect::<Option<_>>().map(AllReply::Granted)
        }
        [0, at, pttl] => Some(AllReply::Refused(place(at)?, Refusal::of(pttl))),
        [-1, at] => place(at).map(AllReply::OtherData),
        _ => None,
    }
}

/// For `release.lua`: brings the hold count of `owner` down to `count`.
pub(crate) fn release<'a>(
    name: &'a Name,
    owner: &'a [u8],
    count: u32,
    publish: &'static str,
) -> [Arg<'a>; 5] {
    [name.key().into(), name.channel().into(), owner.into(), count.into(), publish.into()]
}

/// Whether the server knew the hold; `None` if `release.lua` never returns this.
pub(crate) fn read_release(reply: &Value) -> Option<bool> {
    match reply {
        Value::Integer(_) => Some(true),
        Value::Null => Some(false),
        _ => None,
    }
}

/// For `force_release.lua`.
pub(crate) fn force_release<'a>(name: &'a Name, publish: &'static str) -> [Arg<'a>; 3] {
    [name.key().into(), name.channel().into(), publish.into()]
}

/// For `renew.lua`: `owners` are those of `group`.
pub(crate) fn renew<'a>(group: &'a [Renewal], owners: &'a [OwnerText]) -> Vec<Arg<'a>> {
    let keys = group.iter().map(|renewal| Arg::from(renewal.name.key()));
    let args = group
        .iter()
        .zip(owners)
        .flat_map(|(renewal, owner)| [renewal.lease_to_set().into(), owner.as_bytes().into()]);
    keys.chain(args).collect()
}

/// What `renew.lua` returns of the locks in `group`; `None` if it never does.
pub(crate) fn read_renewal(reply: &Value, group: &[Renewal]) -> Option<RenewalReply> {
    let [seconds, micros, locks @ ..] = reply.as_array()? else { return None };
    let number = |value: &Value| value.as_i64().and_then(|number| u64::try_from(number).ok());
    let server = Duration::from_secs(number(seconds)?) + Duration::from_micros(number(micros)?);
    let lock = |(place, renewal): (usize, &Renewal)| {
        let Some(number) = locks.get(place).and_then(Value::as_i64) else { return Renewed::Failed };
        match (number, renewal.extend) {
            (0, _) => Renewed::NotOwner,
            (1, true) => Renewed::Extended,
            (-1, false) => Renewed::StillHeld { left: Duration::MAX },
            (left @ 1.., false) => Renewed::StillHeld { left: Duration::from_millis(left.unsigned_abs()) },
            _ => Renewed::Failed,
        }
    };
    Some(RenewalReply { server, locks: group.iter().enumerate().map(lock).collect() })
}

/// Asks whether the lock is held.
pub(crate) fn is_held(name: &Name) -> Command<'_> {
    Command::new("EXISTS").arg(name.key())
}

/// Asks how often `owner` holds the lock.
pub(crate) fn hold_count<'a>(name: &'a Name, owner: &'a str) -> Command<'a> {
    Command::new("HGET").arg(name.key()).arg(owner)
}

/// What [`hold_count`] is answered with; `None` if it never is.
pub(crate) fn read_hold_count(reply: &Value) -> Option<u64> {
    if reply.is_null() { Some(0) } else { reply.as_str()?.parse().ok() }
}

/// Asks whether `owner` holds the lock.
pub(crate) fn is_held_by<'a>(name: &'a Name, owner: &'a str) -> Command<'a> {
    Command::new("HEXISTS").arg(name.key()).arg(owner)
}

/// What a question is answered with that has only yes and no for an answer; `None` if it never is.
pub(crate) fn read_yes(reply: &Value) -> Option<bool> {
    reply.as_i64().map(|number| number != 0)
}

/// Asks how long the present lease still runs.
pub(crate) fn remaining_lease(name: &Name) -> Command<'_> {
    Command::new("PTTL").arg(name.key())
}

/// What [`remaining_lease`] is answered with: `None` if the lock is free, without an end if an operator has taken its TTL
/// away (source: the PTTL command's documentation). The outer `None` if it never is.
pub(crate) fn read_remaining_lease(reply: &Value) -> Option<Option<Duration>> {
    Some(match reply.as_i64()? {
        -2 => None,
        millis => Some(u64::try_from(millis).map_or(Duration::MAX, Duration::from_millis)),
    })
}
