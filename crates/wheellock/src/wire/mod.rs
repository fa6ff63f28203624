//! Parameters of scripts and queries, and the meaning of replies.
//!
//! Only this module builds parameters and reads replies. The scripts, keys and channels of a lock's kind belong to `kind`.

pub(crate) mod holder;
pub(crate) mod release_request;
pub(crate) mod starts;

use std::borrow::Cow;
use std::num::NonZeroU64;
use std::ops::Deref;
use std::time::Duration;

use wheellock_client::layer::Retry;
use wheellock_client::{Arg, Command, Value};

use crate::base::fleet::Fleet;
use crate::base::fleet_key::FleetKey;
use crate::base::fleet_terms::Terms;
use crate::base::lease::Lease;
use crate::base::owner::{Owner, OwnerText};
use crate::kind::{self, Companions, GrantForm, Holders, Kind};
use crate::table::holds::{CheckIn, GrantReply, Reclaim, Refresh, Refreshed, Renewal, RenewalReply, Renewed};
use crate::wait::name::Name;
use crate::wait::turns::{Contenders, Opening};
use crate::wire::holder::{Holder, Label, Listed, Mode, Waiter};

/// Number of keys of a script for one lock.
pub(crate) const KEYS: usize = 1;

/// Returns the command that runs a script, for messages.
pub(crate) fn verb(retry: &Retry) -> &'static str {
    if retry.is_in_full() { "EVAL" } else { "EVALSHA" }
}

/// A refusal: another holder has the lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refusal {
    /// Remaining lease, unless the holder renews it. `None` if the lock is held without an end, which only a foreign client can cause.
    pub(crate) lease_left: Option<Duration>,
    /// The release of this holder sends no message.
    pub(crate) is_silent: bool,
    /// An earlier request of this caller has had no reply, and the server may still execute it.
    pub(crate) may_arrive_late: bool,
    /// Number of listeners to the lock's releases, if the script has counted them.
    pub(crate) listeners: Option<u32>,
    /// Time between the request and this reply.
    pub(crate) trip: Duration,
}

impl Refusal {
    /// A refusal with an unknown end. No later reply reports the end.
    pub(crate) const UNBOUNDED: Self = Self {
        lease_left: None,
        is_silent: false,
        may_arrive_late: false,
        listeners: None,
        trip: Duration::ZERO,
    };

    /// Reads the PTTL of the server's reply. -1 means held without a TTL, which only a foreign client can cause.
    fn of(pttl: i64) -> Self {
        Self { lease_left: u64::try_from(pttl).ok().map(Duration::from_millis), ..Self::UNBOUNDED }
    }
}

/// Parameters of a script for one lock, on the stack. The parameters that every kind needs come first.
pub(crate) struct Params<'a> {
    all: [Arg<'a>; 8],
    len: usize,
}

impl<'a> Deref for Params<'a> {
    type Target = [Arg<'a>];

    fn deref(&self) -> &[Arg<'a>] {
        self.all.get(..self.len).unwrap_or_default()
    }
}

impl<'a> Params<'a> {
    /// Adds parameters behind those of a kind, whose number differs. `poll.lua` and `hot_release.lua` find theirs at the end.
    fn and(mut self, more: [Arg<'a>; 2]) -> Self {
        for (place, arg) in self.all.iter_mut().skip(self.len).zip(more) {
            *place = arg;
        }
        self.len += 2;
        self
    }
}

/// Returns the parameters of a kind's `acquire`. After it, `holder` holds the lock `count` times.
pub(crate) fn acquire<'a>(
    name: &'a Name,
    lease: Lease,
    holder: &'a [u8],
    count: u32,
    precedence: Precedence,
    publish: &'static str,
) -> Params<'a> {
    let none = || Arg::from("");
    let (key, lease, holder, count) = (name.key().into(), lease.millis().into(), holder.into(), count.into());
    let (rest, len) = match name.kind().companions {
        Companions::None => ([none(), none(), none(), none()], 4),
        Companions::Token => ([name.tag().into(), none(), none(), none()], 5),
        Companions::ReadLeases => ([name.tag().into(), precedence.0.into(), none(), none()], 6),
        Companions::Queue => {
            ([precedence.0.into(), name.channel().into(), publish.into(), name.tag().into()], 8)
        }
        Companions::Permits | Companions::Ended => ([name.tag().into(), none(), none(), none()], 5),
        Companions::PermitLeases => ([name.tag().into(), name.channel().into(), publish.into(), none()], 7),
    };
    let [one, two, three, four] = rest;
    Params { all: [key, lease, holder, count, one, two, three, four], len }
}

/// Returns the parameters of a kind's `poll`: those of its `acquire`, and how to count the listeners.
pub(crate) fn poll<'a>(name: &'a Name, acquire: Params<'a>, publish: &'static str) -> Params<'a> {
    // `NUMSUB` does not count the subscribers of sharded channels.
    let count = if publish == "SPUBLISH" { "SHARDNUMSUB" } else { "NUMSUB" };
    acquire.and([name.channel().into(), count.into()])
}

/// The precedence of a request.
///
/// - For a reader: 1 if the reader yields to waiting writers.
/// - For a writer: for how many milliseconds later readers queue behind the writer, should the writer have to wait.
/// - For a fair lock: 1 if the caller joins the queue, should the caller have to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Precedence(i64);

impl Precedence {
    /// No precedence: the first request is served first.
    pub(crate) const NONE: Self = Self(0);

    /// Precedence of a reader that yields to writers.
    pub(crate) const YIELDS_TO_WRITERS: Self = Self(1);

    /// Precedence of a waiter for a fair lock.
    pub(crate) const STANDS_IN_THE_QUEUE: Self = Self(1);

    /// Returns the precedence of a writer that waits for `wait` and polls again from time to time.
    pub(crate) fn before_readers(wait: Duration) -> Self {
        // A dead writer's mark keeps readers out for this time only.
        Self(i64::try_from(wait.min(MARK).as_millis()).unwrap_or_default())
    }
}

/// Longest precedence of a writer. A waiting writer always polls again within this time.
const MARK: Duration = Duration::from_secs(6);

/// A grant by the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Grant {
    pub(crate) reply: GrantReply,
    /// Fencing token, if the kind has tokens.
    pub(crate) token: Option<NonZeroU64>,
    /// Number of further permits or holds that the server can grant now.
    pub(crate) room: u32,
}

/// Reads the reply of a kind's `acquire`; `None` for a reply that the script never returns.
pub(crate) fn read_acquire(name: &Name, reply: &Value) -> Option<Result<Grant, Refusal>> {
    let kind = name.kind();
    // Any number of readers may hold the lock together.
    let room = if kind.is_shared() { u32::MAX } else { 0 };
    let grant = |reply| Some(Ok(Grant { reply, token: None, room }));
    match (reply, kind.grant) {
        (Value::Integer(pttl), _) => Some(Err(Refusal::of(*pttl))),
        (Value::Array(_), form) => match (reply.as_array()?, form) {
            // A number alone in a list belongs to a holder whose release sends no message.
            ([pttl], _) => Some(Err(Refusal { is_silent: true, ..Refusal::of(pttl.as_i64()?) })),
            // A fencing token is text, so two numbers are a refusal with a count of listeners.
            ([Value::Integer(pttl), Value::Integer(listeners)], _) if kind.poll.is_some() => {
                let listeners = Some(u32::try_from(*listeners).unwrap_or_default());
                Some(Err(Refusal { listeners, ..Refusal::of(*pttl) }))
            }
            ([how, token], GrantForm::Token) => {
                let (reply, token) = (read_how(how)?, token.as_str()?.parse().ok()?);
                Some(Ok(Grant { reply, token: Some(token), room }))
            }
            ([how, free], GrantForm::Permits) => {
                // A caller may have taken away more permits than were free.
                let room = u32::try_from(free.as_i64()?.max(0)).unwrap_or(u32::MAX);
                Some(Ok(Grant { reply: read_how(how)?, token: None, room }))
            }
            _ => None,
        },
        // A grant of these kinds is a list, so any other reply may belong to another call.
        (_, GrantForm::Token | GrantForm::Permits) => None,
        (Value::Null, _) => grant(GrantReply::Fresh),
        (reply, _) if reply.as_bytes() == Some(b"AGAIN") => grant(GrantReply::Again),
        _ => None,
    }
}

fn read_how(how: &Value) -> Option<GrantReply> {
    match how.as_i64()? {
        1 => Some(GrantReply::Fresh),
        2 => Some(GrantReply::Again),
        _ => None,
    }
}

/// One of several locks that are requested together.
pub(crate) struct Part<'a> {
    pub(crate) name: &'a Name,
    pub(crate) lease: Lease,
    pub(crate) owner: OwnerText,
    pub(crate) count: u32,
}

/// Returns the parameters of `acquire_all.lua`.
pub(crate) fn acquire_all<'a>(locks: &'a [Part<'a>]) -> Vec<Arg<'a>> {
    let keys = locks.iter().map(|lock| Arg::from(lock.name.key()));
    let args = locks
        .iter()
        .flat_map(|lock| [lock.lease.millis().into(), lock.owner.as_bytes().into(), lock.count.into()]);
    keys.chain(args).collect()
}

/// The reply of `acquire_all.lua`.
pub(crate) enum AllReply {
    Granted(Vec<GrantReply>),
    /// Another holder has the lock at this index.
    Refused(usize, Refusal),
    OtherData(usize),
}

/// Reads the reply of `acquire_all.lua` for `locks` locks; `None` for a reply that the script never returns.
pub(crate) fn read_acquire_all(reply: &Value, locks: usize) -> Option<AllReply> {
    let numbers: Vec<i64> = reply.as_array()?.iter().map(Value::as_i64).collect::<Option<_>>()?;
    // Lua counts from one. A place beyond the request shows that the reply belongs to another call.
    let place = |place: i64| usize::try_from(place).ok()?.checked_sub(1).filter(|place| *place < locks);
    match *numbers {
        [1, ref statuses @ ..] if statuses.len() == locks => {
            let status = |status: &i64| read_how(&Value::Integer(*status));
            statuses.iter().map(status).collect::<Option<_>>().map(AllReply::Granted)
        }
        [0, at, pttl] => Some(AllReply::Refused(place(at)?, Refusal::of(pttl))),
        [-1, at] => place(at).map(AllReply::OtherData),
        _ => None,
    }
}

/// Returns the parameters of a kind's `release`, which lowers the hold count of `holder` to `count`.
pub(crate) fn release<'a>(name: &'a Name, holder: &'a [u8], count: u32, publish: &'static str) -> Params<'a> {
    let none = || Arg::from("");
    let (tag, len) = if release_has_tag(name) { (name.tag().into(), 6) } else { (none(), 5) };
    let (key, channel) = (name.key().into(), name.channel().into());
    Params { all: [key, channel, holder.into(), count.into(), publish.into(), tag, none(), none()], len }
}

/// Returns the parameters of a kind's `retire`, by which the owner `spent` keeps the lock for `left`.
pub(crate) fn retire<'a>(
    name: &'a Name,
    [holder, spent]: [&'a [u8]; 2],
    left: Duration,
    publish: &'static str,
) -> Params<'a> {
    let (key, channel, left) = (name.key().into(), name.channel().into(), Lease::millis_of(left).into());
    let all = [key, channel, holder.into(), spent.into(), left, publish.into(), name.tag().into(), "".into()];
    Params { all, len: 7 }
}

/// Returns the parameters of a kind's `adopt`, by which `holder` takes the place of the owner `giver`.
pub(crate) fn adopt<'a>(name: &'a Name, lease: Lease, holder: &'a [u8], giver: &'a [u8]) -> Params<'a> {
    let none = || Arg::from("");
    let (tag, len) =
        if name.kind().companions == Companions::Token { (name.tag().into(), 5) } else { (none(), 4) };
    let (key, lease) = (name.key().into(), lease.millis().into());
    Params { all: [key, lease, holder.into(), giver.into(), tag, none(), none(), none()], len }
}

/// Returns the parameters of a kind's `hot_release`.
pub(crate) fn hot_release<'a>(
    name: &'a Name,
    holder: &'a [u8],
    publish: &'static str,
    opening: Opening,
) -> Params<'a> {
    let opening = match opening {
        Opening::Not => "0",
        Opening::Published => "1",
        Opening::Silent => "2",
    };
    release(name, holder, 0, publish).and([name.tag().into(), opening.into()])
}

/// Returns the parameters of `mark.lua`.
pub(crate) fn mark(name: &Name) -> [Arg<'_>; 3] {
    [name.key().into(), name.tag().into(), MARK_LASTS.into()]
}

/// Returns true if the lock has more keys than its own, which need the same slot.
pub(crate) fn has_companions(name: &Name) -> bool {
    name.kind().companions != Companions::None
}

/// Milliseconds for which a polling contender's mark lasts. The contender renews its mark several times within this time.
const MARK_LASTS: u64 = 1000;

/// Returns the parameters of `tell.lua`.
pub(crate) fn tell<'a>(name: &'a Name, publish: &'static str) -> [Arg<'a>; 3] {
    [name.key().into(), name.channel().into(), publish.into()]
}

fn release_has_tag(name: &Name) -> bool {
    use Companions::{PermitLeases, Permits, Queue, ReadLeases};
    matches!(name.kind().companions, ReadLeases | Queue | Permits | PermitLeases)
}

/// Reads the reply of a kind's `release`. Returns whether the server knew the hold; `None` for a reply that the script never returns.
pub(crate) fn read_release(reply: &Value) -> Option<bool> {
    match reply {
        Value::Integer(_) => Some(true),
        Value::Null => Some(false),
        // The reply of a hot release.
        reply => reply.as_array()?.first()?.as_i64().map(|_| true),
    }
}

/// Reads the contenders in the reply of a kind's `release` or `hot_release`.
pub(crate) fn read_contenders(reply: &Value) -> Contenders {
    let (released, found) = match reply.as_array() {
        Some([released, found]) => (released.as_i64(), found.as_i64() == Some(1)),
        _ => (reply.as_i64(), false),
    };
    // The scripts return one more than the receivers. Zero means that another hold remains, and -1 that the server refused the
    // message.
    let receivers = released.and_then(|released| released.checked_sub(1)).and_then(|n| u32::try_from(n).ok());
    // Without messages, listeners have to poll, too.
    Contenders { receivers, poll: found || released == Some(-1) }
}

/// Returns the parameters of a kind's `force_release`, after which the owner `spent` keeps the lock for `head_start`.
pub(crate) fn force_release<'a>(
    name: &'a Name,
    publish: &'static str,
    spent: &'a [u8],
    head_start: Lease,
) -> Vec<Arg<'a>> {
    let tag = release_has_tag(name).then(|| name.tag().into());
    let mode = name.kind().mode.map(Arg::from);
    let head_start = head_start.millis().into();
    [name.key().into(), name.channel().into(), publish.into(), spent.into(), head_start]
        .into_iter()
        .chain(tag)
        .chain(mode)
        .collect()
}

/// Returns the key with the holders of a lock. The server tells of changes of this key.
pub(crate) fn holders_key(name: &Name) -> Cow<'_, str> {
    match name.kind().companions {
        Companions::PermitLeases => permit_leases(name).into(),
        _ => name.key().into(),
    }
}

/// Returns the names of the locks of a kind whose holders may be in `key`. It is the inverse of [`holders_key`].
pub(crate) fn names_of<'k>(key: &'k str, kind: &Kind) -> impl Iterator<Item = &'k str> {
    let (name, unbraced) = match kind.companions {
        Companions::PermitLeases => {
            let tag = key.strip_suffix(PERMIT_LEASES);
            (tag, tag.and_then(|tag| tag.strip_prefix('{')?.strip_suffix('}')))
        }
        _ => (Some(key), None),
    };
    name.into_iter().chain(unbraced)
}

/// Returns the parameters of a kind's `renew`. The locks of `group` are all of one kind. `keys` and `holders` are their [keys](holders_key)
/// and holders.
pub(crate) fn renew<'a>(
    group: &'a [Renewal],
    keys: &'a [Cow<'_, str>],
    holders: &'a [OwnerText],
) -> Vec<Arg<'a>> {
    let args = group.iter().zip(holders).flat_map(|(renewal, holder)| {
        let name = &renewal.name;
        let last = match name.kind().companions {
            Companions::Token | Companions::ReadLeases | Companions::Permits => Some(name.tag()),
            Companions::PermitLeases => Some(name.key()),
            // A renewal does not touch the queue of a fair lock, so it gets no tag for it.
            Companions::None | Companions::Queue | Companions::Ended => None,
        };
        let last = last.map(Arg::from);
        [renewal.lease_to_set().into(), holder.as_bytes().into()].into_iter().chain(last)
    });
    keys.iter().map(|key| Arg::from(&**key)).chain(args).collect()
}

/// Returns the parameters of a kind's `reclaim`. The locks of `group` are all of one kind, and `holders` are their holders.
pub(crate) fn reclaim<'a>(
    group: &'a [Renewal],
    holders: &'a [OwnerText],
    (fleet, incarnation): (&'a str, &'a str),
) -> Vec<Arg<'a>> {
    let keys = group.iter().map(|renewal| Arg::from(renewal.name.key()));
    let args = group.iter().zip(holders).flat_map(|(renewal, holder)| {
        let Reclaim { lease, count, ends, token, .. } = renewal.reclaim.unwrap_or_default();
        let companions = renewal.name.kind().companions;
        let has_tag =
            matches!(companions, Companions::ReadLeases | Companions::Token | Companions::PermitLeases);
        let tag = has_tag.then(|| renewal.name.tag().into());
        let token = (companions == Companions::Token).then(|| token.into());
        [lease.into(), holder.as_bytes().into(), count.into(), ends.into()]
            .into_iter()
            .chain(tag)
            .chain(token)
    });
    keys.chain([fleet.into(), incarnation.into()]).chain(args).collect()
}

/// Returns the parameters of `fleet/refresh.lua`.
pub(crate) fn refresh<'a>(
    key: &'a FleetKey,
    process: &'a str,
    refresh: &'a Refresh,
    terms: &Terms,
) -> [Arg<'a>; 13] {
    let check_in = match refresh.check_in {
        CheckIn::NotYet => "0",
        CheckIn::Done => "1",
        CheckIn::DoneAsWitness => "2",
    };
    let flag = |flag: bool| Arg::from(if flag { "1" } else { "0" });
    let millis = |time: Duration| Arg::from(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    [
        key.fleet.as_str().into(),
        key.roster.as_str().into(),
        key.checked_in.as_str().into(),
        process.into(),
        terms.longest_lease.millis().into(),
        millis(terms.window),
        u64::from(terms.replicas).into(),
        flag(refresh.is_counted),
        check_in.into(),
        flag(terms.may_be_new),
        refresh.incarnation.as_str().into(),
        flag(refresh.lacks_entry),
        millis(terms.entry_lasts),
    ]
}

/// The reply of `fleet/refresh.lua`.
pub(crate) enum RefreshReply {
    Refreshed(Refreshed),
    /// The fleet has other numbers: the longest lease, the window, and the number of replicas.
    OtherFleet(Fleet),
}

/// Reads the reply of `fleet/refresh.lua`; `None` for a reply that the script never returns.
pub(crate) fn read_refresh(reply: &Value) -> Option<RefreshReply> {
    let number = |value: &Value| value.as_i64();
    let count = |value: &Value| number(value).and_then(|number| u64::try_from(number).ok());
    match reply.as_array()? {
        [longest, window, replicas] => {
            let mut fleet = Fleet::of_servers(u32::try_from(count(replicas)?).ok()?.saturating_add(1));
            fleet.longest_lease = Duration::from_millis(count(longest)?);
            fleet.window = Duration::from_millis(count(window)?);
            Some(RefreshReply::OtherFleet(fleet))
        }
        [run_id, incarnation, time, is_grace_over, was_known, members, checked_in, left, connected] => {
            Some(RefreshReply::Refreshed(Refreshed {
                run_id: run_id.as_str()?.to_owned(),
                incarnation: incarnation.as_str()?.to_owned(),
                time: number(time)?,
                is_grace_over: number(is_grace_over)? == 1,
                was_known: number(was_known)? == 1,
                members: count(members)?,
                checked_in: count(checked_in)?,
                ends_in: count(left).map(Duration::from_millis),
                connected: u32::try_from(count(connected)?).ok()?,
            }))
        }
        _ => None,
    }
}

/// Returns the parameters of `fleet/leave.lua`.
pub(crate) fn leave_fleet<'a>(key: &'a FleetKey, process: &'a str) -> [Arg<'a>; 3] {
    [key.roster.as_str().into(), key.checked_in.as_str().into(), process.into()]
}

/// Reads the reply of a kind's `renew` or `reclaim` for the locks in `group`; `None` for a reply that the script never returns.
pub(crate) fn read_renewal(reply: &Value, group: &[Renewal]) -> Option<RenewalReply> {
    let [seconds, micros, locks @ ..] = reply.as_array()? else { return None };
    let number = |value: &Value| value.as_i64().and_then(|number| u64::try_from(number).ok());
    let server = Duration::from_secs(number(seconds)?) + Duration::from_micros(number(micros)?);
    let lock = |(place, renewal): (usize, &Renewal)| {
        // An odd status fails one lock. The renewals of the other locks in this script must count.
        let Some(number) = locks.get(place).and_then(Value::as_i64) else { return Renewed::Failed };
        match (number, renewal.extend) {
            (0, _) => Renewed::NotOwner,
            (-2, true) => Renewed::NoPlace,
            (1, true) => Renewed::Extended,
            // An operator may have removed the TTL of the lock.
            (-1, false) => Renewed::StillHeld { left: Duration::MAX },
            (left @ 1.., false) => Renewed::StillHeld { left: Duration::from_millis(left.unsigned_abs()) },
            _ => Renewed::Failed,
        }
    };
    Some(RenewalReply { server, locks: group.iter().enumerate().map(lock).collect() })
}

/// Returns the query whether the lock is held.
pub(crate) fn is_held(name: &Name) -> Command<'_> {
    Command::new("EXISTS").arg(name.key())
}

/// Returns the parameters of a kind's `is_held`.
pub(crate) fn is_held_by_script(name: &Name) -> Vec<Arg<'_>> {
    [name.key().into()].into_iter().chain(name.kind().mode.map(Arg::from)).collect()
}

/// Returns the query for the hold count of `holder`.
pub(crate) fn hold_count<'a>(name: &'a Name, holder: &'a OwnerText) -> Command<'a> {
    match name.kind().holders {
        Holders::Single => Command::new("GET").arg(name.key()),
        _ => Command::new("HGET").arg(name.key()).arg(holder.as_bytes()),
    }
}

/// Reads the reply to [`hold_count`]; `None` for an impossible reply.
pub(crate) fn read_hold_count(name: &Name, holder: &OwnerText, reply: &Value) -> Option<u64> {
    match name.kind().holders {
        _ if reply.is_null() => Some(0),
        Holders::Single => Some(u64::from(reply.as_bytes()? == holder.as_bytes())),
        _ => reply.as_str()?.parse().ok(),
    }
}

/// Returns the parameters of a kind's `show_holders`.
pub(crate) fn show_holders(name: &Name) -> Vec<Arg<'_>> {
    let most = match name.kind().holders {
        Holders::Single => 1,
        Holders::Counted | Holders::Permits | Holders::Beside => holder::Holders::MOST,
    };
    let side = name.kind().mode.map(|mode| [mode.into(), name.tag().into()]);
    [name.key().into(), most.into()].into_iter().chain(side.into_iter().flatten()).collect()
}

/// Reads the reply of a kind's `show_holders`, which has no labels; `None` for a reply that the script never returns.
pub(crate) fn read_holders(name: &Name, reply: &Value) -> Option<holder::Holders> {
    let (count, said) = reply.as_array()?.split_first()?;
    holders_in(count, said, mode_of(name.kind()))
}

fn mode_of(kind: &Kind) -> Mode {
    match kind.mode {
        Some("read") => Mode::Read,
        Some(_) => Mode::Write,
        None => Mode::Exclusive,
    }
}

/// Reads the holders of a lock, each with its hold count and its lease. `count` is the number of all holders.
fn holders_in(count: &Value, said: &[Value], mode: Mode) -> Option<holder::Holders> {
    let holder = |said: &[Value]| {
        let [owner, count, left] = said else { return None };
        Some(Holder {
            // Holders of other libraries may be any bytes.
            owner: String::from_utf8_lossy(owner.as_bytes()?).into_owned(),
            mode,
            hold_count: u64::try_from(count.as_i64()?).ok()?,
            // A hold that expired while the script ran has a PTTL of -2.
            lease_left: match left.as_i64()? {
                -1 => Duration::MAX,
                left => Duration::from_millis(u64::try_from(left).unwrap_or_default()),
            },
            label: None,
            held_for: None,
        })
    };
    let holders: Vec<Holder> = said.chunks(3).map(holder).collect::<Option<_>>()?;
    let beyond = u64::try_from(count.as_i64()?).ok()?.saturating_sub(holders.len() as u64);
    Some(holder::Holders { holders, beyond })
}

/// Returns the command that continues to scan the keys of a server.
pub(crate) fn scan<'a>(cursor: &'a str, pattern: &'a str) -> Command<'a> {
    Command::new("SCAN").arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(KEYS_AT_ONCE)
}

/// Number of keys that the server visits for one reply. It takes about a millisecond with the description of the locks among them.
const KEYS_AT_ONCE: u32 = 500;

/// Reads the next cursor and the keys. The cursor is `None` at the end.
pub(crate) fn read_scan(reply: &Value) -> Option<(Option<String>, &[Value])> {
    let [cursor, keys] = reply.as_array()? else { return None };
    let cursor = cursor.as_str()?;
    Some(((cursor != "0").then(|| cursor.to_owned()), keys.as_array()?))
}

/// Returns the parameters of `list.lua`.
pub(crate) fn list<'a>(keys: &[&'a [u8]]) -> Vec<Arg<'a>> {
    std::iter::once(holder::Holders::MOST.into()).chain(keys.iter().map(|key| Arg::from(*key))).collect()
}

/// Reads the reply of `list.lua` for these keys, without labels; `None` for a reply that the script never returns.
pub(crate) fn read_list(keys: &[&[u8]], reply: &Value) -> Option<Vec<Listed>> {
    let listed = |said: &[Value]| {
        let [place, kind, waiters, count, holders] = said else { return None };
        // Lua counts from one.
        let place = usize::try_from(place.as_i64()?).ok()?.checked_sub(1)?;
        let kind = kind::rows().find(|row| Some(row.label) == kind.as_str())?;
        let name = String::from_utf8_lossy(keys.get(place)?);
        let name = match kind.companions {
            Companions::PermitLeases => {
                let tag = name.strip_suffix(PERMIT_LEASES)?;
                tag.strip_prefix('{').and_then(|tag| tag.strip_suffix('}')).unwrap_or(tag)
            }
            _ => &*name,
        };
        Some(Listed {
            name: name.to_owned(),
            kind: kind.label,
            waiters: u64::try_from(waiters.as_i64()?).ok(),
            holders: holders_in(count, holders.as_array()?, mode_of(kind))?,
        })
    };
    reply.as_array()?.chunks(5).map(listed).collect()
}

/// Returns the key of a manager's label.
pub(crate) fn label_key(process: &str) -> String {
    format!("wheellock:process:{process}")
}

/// Returns the key of the [starts](starts) of a manager's old holds. The permissions for labels cover it.
pub(crate) fn starts_key(process: &str) -> String {
    format!("wheellock:process:{process}:since")
}

/// Returns the command that sets a manager's label or its starts for the time of `lease`.
pub(crate) fn set_told<'a>(key: &'a str, text: &'a str, lease: Duration) -> Command<'a> {
    let lease = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX);
    Command::new("SET").arg(key).arg(text).arg("PX").arg(lease)
}

/// Returns the command that deletes a manager's label or its starts.
pub(crate) fn delete_told(key: &str) -> Command<'_> {
    Command::new("DEL").arg(key)
}

/// Returns the query for a label or for starts by their key.
pub(crate) fn told(key: &str) -> Command<'_> {
    Command::new("GET").arg(key)
}

/// Returns the query for the remaining lease of the text under a key.
pub(crate) fn told_left(key: &str) -> Command<'_> {
    Command::new("PTTL").arg(key)
}

/// Reads the reply to the query for a label; `None` if there is no label.
pub(crate) fn read_label(reply: &Value) -> Option<String> {
    reply.as_bytes().map(Label::as_found)
}

/// Reads the reply to a yes-or-no query; `None` for an impossible reply.
pub(crate) fn read_yes(reply: &Value) -> Option<bool> {
    reply.as_i64().map(|number| number != 0)
}

/// Returns the query for the remaining time of the current lease.
pub(crate) fn remaining_lease(name: &Name) -> Command<'_> {
    Command::new("PTTL").arg(name.key())
}

/// Reads the reply to [`remaining_lease`]. The inner `None` means that the lock is free. The lease has no end if an operator has removed
/// the key's TTL (source: the PTTL command's documentation). The outer `None` marks an impossible reply.
pub(crate) fn read_remaining_lease(reply: &Value) -> Option<Option<Duration>> {
    Some(match reply.as_i64()? {
        -2 => None,
        millis => Some(u64::try_from(millis).map_or(Duration::MAX, Duration::from_millis)),
    })
}

/// Returns the parameters of the scripts that read a latch or the current leader, or count the permits of a semaphore.
pub(crate) fn look(name: &Name) -> [Arg<'_>; 2] {
    [name.key().into(), name.tag().into()]
}

/// Reads a latch: its remaining count, and when the last latch of its name ended. Returns `None` for a reply that the script never returns.
pub(crate) fn read_look(reply: &Value) -> Option<(i64, u64)> {
    let [count, ended] = reply.as_array()? else { return None };
    Some((count.as_i64()?, ended.as_str()?.parse().ok()?))
}

/// Returns the parameters of a script that takes effect once. `place` and `serial` identify the request, and `more` is a further parameter.
pub(crate) fn once<'a>(
    name: &'a Name,
    place: &'a OwnerText,
    serial: u64,
    memory: Duration,
    publish: &'static str,
    more: Option<Arg<'a>>,
) -> Params<'a> {
    let serial = i64::try_from(serial).unwrap_or(i64::MAX);
    let memory = i64::try_from(memory.as_millis()).unwrap_or(i64::MAX);
    let len = if more.is_some() { 8 } else { 7 };
    let [key, channel, tag] = [name.key(), name.channel(), name.tag()].map(Arg::from);
    let last = more.unwrap_or_else(|| Arg::from(""));
    Params {
        all: [key, channel, tag, place.as_bytes().into(), serial.into(), memory.into(), publish.into(), last],
        len,
    }
}

/// Returns the query for the free permits of a counted semaphore, or for a latch's remaining count.
pub(crate) fn count(name: &Name) -> Command<'_> {
    Command::new("GET").arg(name.key())
}

/// Reads the free permits in the reply to [`count`]; `None` for an impossible reply.
pub(crate) fn read_free_permits(reply: &Value) -> Option<i64> {
    if reply.is_null() { Some(0) } else { reply.as_str()?.parse().ok() }
}

/// Returns the channel of a leader's announcements. The script builds the same name.
pub(crate) fn election_channel(name: &Name) -> String {
    format!("wheellock_election:{}", name.tag())
}

/// Returns the stored form of a leader's announcement.
pub(crate) fn announcement(owner: &Owner, token: u64, text: &str) -> String {
    format!("{owner} {token} {text}")
}

/// The current leader with its remaining lease, or `None` if the lease has no end.
pub(crate) struct SeenLeader {
    pub(crate) owner: String,
    pub(crate) token: u64,
    pub(crate) announcement: String,
    pub(crate) lease_left: Option<Duration>,
}

/// Reads the reply of the script that reads the current leader. The inner `None` means that there is no leader. The outer `None` marks a
/// reply that the script never returns.
pub(crate) fn read_leader(reply: &Value) -> Option<Option<SeenLeader>> {
    if reply.is_null() {
        return Some(None);
    }
    let [owner, token, announcement, pttl] = reply.as_array()? else { return None };
    Some(Some(SeenLeader {
        // Another client may have written any bytes here.
        owner: String::from_utf8_lossy(owner.as_bytes()?).into_owned(),
        token: token.as_str().and_then(|token| token.parse().ok()).unwrap_or_default(),
        announcement: String::from_utf8_lossy(announcement.as_bytes()?).into_owned(),
        lease_left: u64::try_from(pttl.as_i64()?).ok().map(Duration::from_millis),
    }))
}

/// Reads a latch's remaining count; `None` for an impossible reply.
pub(crate) fn read_count_of_latch(reply: &Value) -> Option<u64> {
    read_free_permits(reply).map(|count| u64::try_from(count).unwrap_or_default())
}

/// Reads the numbers of free and of taken permits; `None` for a reply that the script never returns.
pub(crate) fn read_count(reply: &Value) -> Option<(i64, i64)> {
    let [free, taken] = reply.as_array()? else { return None };
    Some((free.as_i64()?, taken.as_i64()?))
}

/// Returns the parameters of the script that extends a permit's lease. Without a lease, the script reads the permit's remaining time.
/// `leases` is the semaphore's [key of leases](permit_leases).
pub(crate) fn permit_lease<'a>(
    name: &'a Name,
    leases: &'a String,
    permit: &'a [u8; 16],
    lease: Option<Lease>,
) -> [Arg<'a>; 4] {
    let lease = lease.map_or_else(|| 0_u32.into(), |lease| lease.millis().into());
    [leases.into(), lease, permit.into(), name.key().into()]
}

/// Reads whether a permit's lease was extended; `None` for a reply that the script never returns.
pub(crate) fn read_extended(reply: &Value) -> Option<bool> {
    read_renewed(reply).map(|(_, said)| said == 1)
}

/// Reads the remaining lease of a permit. The inner `None` means that the lease has ended. The lease has no end if Redisson set none. The
/// outer `None` marks a reply that the script never returns.
pub(crate) fn read_permit_lease(reply: &Value) -> Option<Option<Duration>> {
    let (now, left) = read_renewed(reply)?;
    let left = u64::try_from(left).ok()?;
    // Redisson stores a distant end for a permit without an end. The script returns only the time that is left.
    let is_endless = now.saturating_add(left) >= REDISSONS_NEVER;
    Some((left > 0).then(|| if is_endless { Duration::MAX } else { Duration::from_millis(left) }))
}

/// Reads the server's clock in milliseconds, and the script's number for one permit.
fn read_renewed(reply: &Value) -> Option<(u64, i64)> {
    let [seconds, micros, said] = reply.as_array()? else { return None };
    let number = |value: &Value| value.as_i64().and_then(|number| u64::try_from(number).ok());
    let now = number(seconds)?.saturating_mul(1000).saturating_add(number(micros)? / 1000);
    Some((now, said.as_i64()?))
}

/// The end of a permit without an end, in milliseconds (source: Redisson).
const REDISSONS_NEVER: u64 = 922_337_203_685_477;

/// Returns the key of the ends of a semaphore's leases (source: Redisson).
pub(crate) fn permit_leases(name: &Name) -> String {
    format!("{}{PERMIT_LEASES}", name.tag())
}

/// Suffix of the key of the ends of a semaphore's leases.
const PERMIT_LEASES: &str = ":timeout";

/// Returns the key that counts the tokens of a fenced lock (source: Redisson).
pub(crate) fn token_key(name: &Name) -> String {
    format!("redisson_lock_token:{}", name.tag())
}

/// Returns the query for the latest token by its [key](token_key).
pub(crate) fn token(key: &str) -> Command<'_> {
    Command::new("GET").arg(key)
}

/// Reads the reply to [`token`]. The outer `None` marks an impossible reply.
pub(crate) fn read_token(reply: &Value) -> Option<Option<u64>> {
    if reply.is_null() { Some(None) } else { reply.as_str()?.parse().ok().map(Some) }
}

/// Returns the channel that notifies one waiter of a fair lock when it is next (source: Redisson).
pub(crate) fn own_channel(name: &Name, holder: &OwnerText) -> Vec<u8> {
    [name.channel().as_bytes(), b":", holder.as_bytes()].concat()
}

/// Returns the channel on which a holder of a lock receives requests to release it. `owner` is the text of the holder's owner.
pub(crate) fn request_channel(name: &Name, owner: &str) -> String {
    format!("wheellock_request:{}:{owner}", name.tag())
}

/// Returns the command that publishes a message. `verb` is PUBLISH or SPUBLISH.
pub(crate) fn publish<'a>(verb: &'static str, channel: &'a str, message: &'a str) -> Command<'a> {
    Command::new(verb).arg(channel).arg(message)
}

/// Returns the query for the number of waiters for a fair lock.
pub(crate) fn queue_length(key: &str) -> Command<'_> {
    Command::new("LLEN").arg(key)
}

/// Returns the query for the first waiters for a fair lock, in their order.
pub(crate) fn waiters(key: &str) -> Command<'_> {
    Command::new("LRANGE").arg(key).arg("0").arg(MOST_WAITERS)
}

/// Place of the last waiter that [`waiters`] asks for.
const MOST_WAITERS: &str = "99";

/// Reads the reply to [`waiters`], without labels; `None` for an impossible reply.
pub(crate) fn read_waiters(reply: &Value) -> Option<Vec<Waiter>> {
    let owner = |owner: &Value| Some(String::from_utf8_lossy(owner.as_bytes()?).into_owned());
    reply.as_array()?.iter().map(|waiter| Some(Waiter { owner: owner(waiter)?, label: None })).collect()
}

/// Returns the key of a fair lock's waiters (source: Redisson).
pub(crate) fn queue_key(name: &Name) -> String {
    format!("redisson_lock_queue:{}", name.tag())
}

/// Reads the reply to [`queue_length`]; `None` for an impossible reply.
pub(crate) fn read_queue_length(reply: &Value) -> Option<u64> {
    u64::try_from(reply.as_i64()?).ok()
}

/// Returns the query for the number of waiters before `holder` in the queue under `key`.
pub(crate) fn position<'a>(key: &'a str, holder: &'a OwnerText) -> Command<'a> {
    Command::new("LPOS").arg(key).arg(holder.as_bytes())
}

/// Reads the reply to [`position`]. The inner `None` means that the holder is not in the queue. The outer `None` marks an impossible reply.
pub(crate) fn read_position(reply: &Value) -> Option<Option<u64>> {
    if reply.is_null() { Some(None) } else { read_queue_length(reply).map(Some) }
}

#[cfg(test)]
mod tests;
