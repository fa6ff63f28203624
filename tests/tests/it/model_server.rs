//! The simulation's model of a server beside a real server. Both get the same random calls and must give the same replies. A simulation is
//! only as good as its server.

use std::time::SystemTime;

use wheellock::testing::server::{Answer, Make, Published, Store, Which};
use wheellock_tests::{Cli, RedisServer, Reply};

#[test]
fn model_replies_match_real_server() {
    let server = RedisServer::start();
    let mut real = server.connect().unwrap();
    let mut listener = server.connect().unwrap();
    let elections = CHANNELS.map(|channel| channel.replace("of:", "wheellock_election:"));
    let of_waiters =
        CHANNELS.iter().flat_map(|channel| HOLDERS.map(|holder| in_full(&format!("{channel}:{holder}"))));
    let others: Vec<_> = elections.into_iter().chain(of_waiters).collect();
    for channel in CHANNELS.into_iter().chain(others.iter().map(String::as_str)) {
        for verb in ["SUBSCRIBE", "SSUBSCRIBE"] {
            let _confirmed = listener.query(&[verb, channel]).unwrap();
        }
    }
    let channels = CHANNELS.map(|channel| (channel.to_owned(), 1)).into();
    let mut model = Store::default();
    model.channels = channels;
    let mut random = SplitMix(SEED);
    let mut told = [0_usize; KINDS];
    for number in 0..CALLS {
        let call: Vec<_> = random_call(&mut random, number).iter().map(|word| in_full(word)).collect();
        let words: Vec<&str> = call.iter().map(String::as_str).collect();
        let since_epoch = SystemTime::UNIX_EPOCH.elapsed().unwrap();
        model.set_now(u64::try_from(since_epoch.as_millis()).unwrap());
        let answer = model.execute(&words).unwrap_or_else(|| panic!("the model does not know {words:?}"));
        let reply = real.query(&words).unwrap();
        assert!(
            agree_on(&words, &answer, &reply),
            "call {number}: {words:?}\nmodel: {answer:?}\nreal:  {reply:?}"
        );
        told[kind(&answer)] += 1;
    }
    assert_eq!(model.published, messages(&mut listener, &mut real));
    assert!(told.iter().all(|count| *count > CALLS / 200), "too few answers of one kind: {told:?}");
    println!("{CALLS} calls, {} messages; answers by kind: {told:?}", model.published.len());
}

/// Some servers have commands that do the same as scripts of simple locks.
#[test]
fn model_commands_match_real_server() {
    let server = RedisServer::start();
    let mut real = server.connect().unwrap();
    let deletes = server.deletes_by();
    let make = match deletes {
        Some("delifeq") => Make::Valkey90,
        Some(_) => Make::Redis84,
        None => Make::Redis70,
    };
    let (mut model, mut random) = (Store::default(), SplitMix(SEED));
    model.make = make;
    let mut told = [0_usize; KINDS];
    for number in 0..CALLS / 10 {
        let (key, token) = (random.of(&KEYS), random.of(&TOKENS));
        let words = match (random.below(9), deletes) {
            (0, _) => vec!["DEL", key],
            (1, _) if random.below(4) == 0 => vec!["HSET", key, "java:7", "1"],
            (2, _) => vec!["PUBLISH", key, "0"],
            (3..6, Some("delifeq")) => vec!["DELIFEQ", key, token],
            (3..6, Some(_)) => vec!["DELEX", key, "IFEQ", token],
            _ => vec!["SET", key, token, "NX", "PX", random.of(&LIVE_LEASES)],
        };
        let since_epoch = SystemTime::UNIX_EPOCH.elapsed().unwrap();
        model.set_now(u64::try_from(since_epoch.as_millis()).unwrap());
        let answer = model.execute(&words).unwrap_or_else(|| panic!("the model does not know {words:?}"));
        let reply = real.query(&words).unwrap();
        assert!(agree(&answer, &reply), "call {number}: {words:?}\nmodel: {answer:?}\nreal:  {reply:?}");
        told[kind(&answer)] += 1;
    }
    println!("answers by kind: {told:?}");
}

/// The two servers have the same identity here, so that they agree on the server of a grace.
#[test]
fn model_fleet_matches_real_server() {
    let server = RedisServer::start();
    let mut real = server.connect().unwrap();
    let mut model = Store::default();
    let field = |info: &str, name: &str| {
        info.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned).unwrap()
    };
    let info = real.query(&["INFO"]).unwrap().to_string();
    (model.run_id, model.replication_id) = (field(&info, "run_id:"), field(&info, "master_replid:"));
    // The incarnations of the two fleets.
    let mut incarnations = [const { String::new() }; 2];
    let mut random = SplitMix(SEED);
    let (mut told, mut graces) = ([0_usize; KINDS], [0_usize; 2]);
    for number in 0..CALLS / 2 {
        let call = random_call_about_fleets(&mut random, incarnations.each_ref());
        let is_second = call.iter().any(|word| word == "g");
        let call: Vec<_> = call.iter().map(|word| in_full(word)).collect();
        let words: Vec<&str> = call.iter().map(String::as_str).collect();
        let since_epoch = SystemTime::UNIX_EPOCH.elapsed().unwrap();
        model.set_now(u64::try_from(since_epoch.as_millis()).unwrap());
        let answer = model.execute(&words).unwrap_or_else(|| panic!("the model does not know {words:?}"));
        let reply = real.query(&words).unwrap();
        assert!(agree(&answer, &reply), "call {number}: {words:?}\nmodel: {answer:?}\nreal:  {reply:?}");
        told[kind(&answer)] += 1;
        if let Answer::Array(fields) = &answer
            && let [Answer::Bulk(_), Answer::Bulk(incarnation), _, Answer::Integer(over), ..] =
                fields.as_slice()
        {
            incarnations[usize::from(is_second)].clone_from(incarnation);
            graces[usize::from(*over == 1)] += 1;
        }
    }
    assert!(graces.iter().all(|count| *count > CALLS / 100), "too few of one kind: {graces:?}");
    println!("answers by kind: {told:?}, refreshes in a grace and after it: {graces:?}");
}

/// Returns a refresh, a reclaim, or a command on the data that these scripts need.
fn random_call_about_fleets(random: &mut SplitMix, incarnations: [&String; 2]) -> Vec<String> {
    // The grace of the second fleet ends at once.
    let (fleet, longest, window) =
        random.of_any(&[("f", "600000", "60000"), ("f", "600000", "60000"), ("g", "-9000000", "0")]);
    let (incarnation, other) = (incarnations[usize::from(fleet == "g")].as_str(), "other:1");
    let process = random.of(&["p", "q"]);
    let named = random.of(&[incarnation, incarnation, incarnation, other, ""]);
    let (key, holder) = (random.of(&KEYS), random.of(&HOLDERS));
    let (lease, count) = (random.of(&LIVE_LEASES), random.of(&COUNTS[1..]));
    let ends = random.of(&["9007199254740991", "9007199254740991", "1"]);
    let token = random.of(&TOKENS);
    let side = format!("{holder}{}", random.of(&["", "", ":write"]));
    let simple = format!("simple:{key}");
    let tag = format!("{{{key}}}");
    let counter = format!("redisson_lock_token:{tag}");
    let (roster, checked_in) = (format!("{fleet}:roster"), format!("{fleet}:checked_in"));
    let (pool, pool_tag) = (format!("pool:{key}"), format!("{{pool:{key}}}"));
    let words = match random.below(32) {
        0 => vec!["HSET", fleet, "era", random.of(&[other, incarnation])],
        1 => vec!["HSET", fleet, "grace", random.of(&[other, incarnation])],
        // A hash with a long value has no order.
        2 => vec!["HGET", fleet, random.of(&["era", "grace", "witness", "longest", "replicas", "number"])],
        3 if random.below(4) == 0 => vec!["DEL", fleet],
        4 if random.below(4) == 0 => vec!["DEL", &roster],
        5 if random.below(20) == 0 => vec!["SET", fleet, "text"],
        5 if random.below(4) == 0 => vec!["HSET", fleet, "number", random.of(&["7", "text"])],
        6 => vec!["DEL", random.of(&[key, &pool])],
        7 => vec!["DEL", &simple],
        8 => vec!["PTTL", random.of(&[key, &simple])],
        9 => vec!["HGETALL", key],
        10 => vec!["GET", random.of(&[key, &simple, &pool])],
        11 if random.below(5) == 0 => vec!["SET", key, "text"],
        11 => vec!["GET", &counter],
        24 => vec!["SET", &pool, random.of(&["-1", "0", "1", "2", "text"])],
        25 => {
            let args = [random.of(&["-1000", "600000"]), token, "1", &pool_tag, "of", "PUBLISH"];
            return script_call(random, Which::PermitAcquire, &[&pool], &args);
        }
        26..30 => {
            let args = [fleet, named, lease, token, "1", ends, &pool_tag];
            return script_call(random, Which::PermitReclaim, &[&pool], &args);
        }
        12 if random.below(4) == 0 => vec!["SET", &counter, random.of(&["6", "text"])],
        12 => return script_call(random, Which::LeaveFleet, &[&roster, &checked_in], &[process]),
        13 => return script_call(random, Which::Acquire, &[key], &[lease, holder, count]),
        14 => return script_call(random, Which::SimpleAcquire, &[&simple], &[lease, token, "1"]),
        15 => {
            let args = [fleet, named, lease, holder, count, ends, &tag, random.of(&["5", "7", "70"])];
            let args = random.of_any(&[&args[..], &args[..6]]);
            return script_call(random, Which::Reclaim, &[key], args);
        }
        16 => {
            let args = [fleet, named, lease, token, "1", ends];
            let key = random.of(&[&simple, &simple, key]);
            return script_call(random, Which::SimpleReclaim, &[key], &args);
        }
        17..20 => {
            let args = [fleet, named, lease, &side, count, ends, &tag];
            return script_call(random, Which::ReadWriteReclaim, &[key], &args);
        }
        _ => {
            // Neither server has replicas.
            let (replicas, check_in) = (random.of(&["0", "0", "0", "0", "2"]), random.of(&["0", "1", "2"]));
            let (counted, may_be_new) = (random.of(&["0", "1"]), random.of(&["0", "1"]));
            let (lacks_entry, lasts) = (random.of(&["0", "1"]), random.of(&["1000", "5000", "100000"]));
            let args = [
                process,
                longest,
                window,
                replicas,
                counted,
                check_in,
                may_be_new,
                named,
                lacks_entry,
                lasts,
            ];
            return script_call(random, Which::Refresh, &[fleet, &roster, &checked_in], &args);
        }
    };
    words.into_iter().map(str::to_owned).collect()
}

/// An operator may have put any data under a name. The model must not panic, and it refuses the calls that a real server refuses.
#[test]
fn model_refuses_same_odd_data() {
    let server = RedisServer::start();
    let mut real = server.connect().unwrap();
    let (mut told, mut differences) = ([0_usize; KINDS], Vec::new());
    for odd in ODD_DATA {
        for (which, args) in calls_on_a() {
            let mut model = Store::default();
            let since_epoch = SystemTime::UNIX_EPOCH.elapsed().unwrap();
            model.set_now(u64::try_from(since_epoch.as_millis()).unwrap());
            let _flushed = real.query(&["FLUSHALL"]).unwrap();
            for words in odd {
                let words: Vec<_> = words.iter().map(|word| in_full(word)).collect();
                let words: &[&str] = &words.iter().map(String::as_str).collect::<Vec<_>>();
                let (answer, reply) = (model.execute(words), real.query(words).unwrap());
                let answer = answer.unwrap_or_else(|| panic!("the model does not know {words:?}"));
                assert!(agree(&answer, &reply), "{words:?}\nmodel: {answer:?}\nreal:  {reply:?}");
            }
            let args: Vec<_> = args.iter().map(|arg| in_full(arg)).collect();
            let mut words = [&["EVAL", which.text()], keys_on_a(which)].concat();
            words.extend(args.iter().map(String::as_str));
            let (answer, reply) = (model.execute(&words), real.query(&words).unwrap());
            let answer = answer.unwrap_or_else(|| panic!("the model does not know {which:?} {args:?}"));
            let agrees = match (&answer, &reply) {
                (Answer::Error(_), Reply::Error(_)) => agree(&answer, &reply),
                // Other replies about odd data are not compared.
                (answer, reply) => !matches!(answer, Answer::Error(_)) && !matches!(reply, Reply::Error(_)),
            };
            if !agrees {
                differences.push(format!("{odd:?} {which:?}: {answer:?}, and really {reply:?}"));
            }
            told[kind(&answer)] += 1;
        }
    }
    assert_eq!(differences, [""; 0]);
    assert!(told[2] > 50, "too few are refused: {told:?}");
}

/// The model replies to any call on any data, or reports that it does not know the call.
#[test]
fn odd_calls_never_panic_model() {
    let mut random = SplitMix(SEED);
    let (mut model, calls, all) = (Store::default(), calls_on_a(), Which::all().collect::<Vec<_>>());
    let mut refused = 0;
    for number in 0..ODD_CALLS {
        let mut words = match random.below(6) {
            0 => ODD_COMMANDS[random.below(ODD_COMMANDS.len())].to_vec(),
            1 => vec!["EVAL", all[random.below(all.len())].text(), random.of(&["1", "2", "x"])],
            _ => {
                let (which, args) = &calls[random.below(calls.len())];
                [&["EVAL", which.text()], keys_on_a(*which), args].concat()
            }
        };
        if words.len() > 4 {
            // The call differs from the library's call in one word.
            let place = 4 + random.below(words.len() - 4);
            words[place] = random.of(&ODD_WORDS);
        } else {
            let others = random.below(9);
            words.extend((0..others).map(|_| random.of(&ODD_WORDS)));
        }
        let now = random.of(&["0", "1", "1700000000000", "9223372036854775807", "18446744073709551615"]);
        model.set_now(if number % 100 == 0 { now.parse().unwrap() } else { model.now() });
        refused += usize::from(matches!(model.execute(&words), Some(Answer::Error(_))));
        let _looked = (model.permits("a", "{a}"), model.has_permit("{a}", "u:1"), model.queue("a"));
        if number % 50 == 0 {
            let _anything = model.take_away(random.of(&ODD_WORDS));
        }
        if number % 500 == 0 {
            model.forget_everything();
        }
    }
    assert!(refused > ODD_CALLS / 100, "{refused} are too few");
}

/// Returns one call of a script, one command on a lock's data, or several calls as one. A script is called in one of the ways to call one.
fn random_call(random: &mut SplitMix, number: usize) -> Vec<String> {
    match random.below(10) {
        0 => random_call_of_several(random, number),
        _ => random_call_of_one(random, number),
    }
}

fn random_call_of_one(random: &mut SplitMix, number: usize) -> Vec<String> {
    if random.below(3) == 0 {
        return random_call_about_many(random, number);
    }
    let key = random.of(&KEYS);
    let words = match random.below(22) {
        0 => vec!["PERSIST", key],
        1 => vec!["DEL", key],
        2 => vec![random.of(&["HGETALL", "HKEYS"]), key],
        3 => vec!["PTTL", key],
        4 => vec!["EXISTS", key],
        5 => vec!["HGET", key, random.of(&HOLDERS)],
        6 => vec!["HEXISTS", key, random.of(&HOLDERS)],
        7 => vec!["PEXPIRE", key, random.of(&OTHER_LEASES)],
        8 if random.below(10) == 0 => vec!["SCRIPT", "FLUSH"],
        // Holders of another language, and holders of another kind of lock.
        9 => vec!["HSET", key, "java:7", "1"],
        10 if random.below(4) == 0 => vec!["HSET", key, "mode", "read"],
        _ => return random_script_call(random),
    };
    words.into_iter().map(str::to_owned).collect()
}

fn random_script_call(random: &mut SplitMix) -> Vec<String> {
    let place = random.below(KEYS.len());
    let (key, channel) = (KEYS[place], CHANNELS[place]);
    let (holder, count, lease) = (random.of(&HOLDERS), random.of(&COUNTS), random.of(&LEASES));
    let verb = random.of(&["PUBLISH", "SPUBLISH"]);
    if random.below(5) > 1 {
        return random_call_of_a_kind(random);
    }
    let tag = channel.trim_start_matches("of:");
    let (which, keys, args) = match random.below(10) {
        7 if random.below(2) == 0 => (Which::Mark, vec![key], vec![tag, "60000"]),
        7 => (Which::Tell, vec![key], vec![channel, verb]),
        8 => {
            let opening = random.of(&["0", "1", "2"]);
            (hot_release(Which::Release), vec![key], vec![channel, holder, count, verb, tag, opening])
        }
        0..3 => (Which::Acquire, vec![key], vec![lease, holder, count]),
        3 if random.below(3) == 0 => {
            let (spent, left) = (random.of(&HOLDERS), random.of(&LIVE_LEASES));
            (Which::Retire, vec![key], vec![channel, holder, spent, left, verb, tag])
        }
        4 if random.below(3) == 0 => (Which::Adopt, vec![key], vec![lease, holder, random.of(&HOLDERS)]),
        3..5 => (Which::Release, vec![key], vec![channel, holder, count, verb]),
        5 if random.below(2) == 0 => {
            let last = random.below(KEYS.len());
            let keys: Vec<_> = KEYS.iter().copied().skip(place.min(last)).take(1 + last).collect();
            let args = keys.iter().flat_map(|_| [random.of(&LEASES), holder, random.of(&COUNTS)]).collect();
            (Which::AcquireAll, keys, args)
        }
        5..7 => {
            let others = (0..random.below(3)).map(|_| random.of(&KEYS));
            let keys: Vec<_> = [key].into_iter().chain(others).collect();
            let args = keys.iter().flat_map(|_| [random.of(&LEASES), random.of(&HOLDERS)]).collect();
            (Which::Renew, keys, args)
        }
        _ => (
            Which::ForceRelease,
            vec![key],
            vec![channel, verb, random.of(&HOLDERS), random.of(&LIVE_LEASES)],
        ),
    };
    script_call(random, which, &keys, &args)
}

/// Returns several calls as one. The calls are mixed, or all of them want the same of one lock.
fn random_call_of_several(random: &mut SplitMix, number: usize) -> Vec<String> {
    let wholes: Vec<_> = Which::all().filter(|which| !which.parts().is_empty()).collect();
    let whole = wholes[random.below(wholes.len())];
    let (mut keys, mut args) = (Vec::new(), Vec::new());
    let (count, alike) = (1 + random.below(4), random.below(2) == 0);
    let mut first = None;
    while keys.len() < count {
        let call = random_call_of_one(random, number);
        let is_it = |(part, _): &(Which, usize)| call[0] == "EVALSHA" && call[1] == part.sha();
        let place = whole.parts().iter().position(is_it);
        let wants = place.map(|place| (place, call[3].clone()));
        let fits = !alike || first.is_none() || wants == first;
        if let Some(place) = place.filter(|_| fits) {
            first = wants;
            keys.push(call[3].clone());
            args.push((place + 1).to_string());
            args.extend_from_slice(&call[4..]);
        }
    }
    let [keys, args] = [&keys, &args].map(|words| words.iter().map(String::as_str).collect::<Vec<_>>());
    script_call(random, whole, &keys, &args)
}

/// Returns a call of a kind other than the plain lock. The library never sends a lease that is over or a hold count of zero, so neither
/// occurs here.
fn random_call_of_a_kind(random: &mut SplitMix) -> Vec<String> {
    let place = random.below(KEYS.len());
    let (key, channel, tag) = (KEYS[place], CHANNELS[place], CHANNELS[place].trim_start_matches("of:"));
    let (holder, lease) = (random.of(&HOLDERS), random.of(&LIVE_LEASES));
    let writer = format!("{holder}:write");
    let waits = waits_of(holder);
    let (count, left) = (random.of(&COUNTS[1..]), random.of(&COUNTS));
    let verb = random.of(&["PUBLISH", "SPUBLISH"]);
    let simple = format!("simple:{place}");
    let any_lease = random.of(&["0", lease]);
    let serial = random.of(&["1", "2", "3", "4", "5", "6", "7", "8", "9"]);
    let said = random.of(&["u:1 5 here", "u:2 12 ", "v:1 7 at one place\nor another"]);
    let (which, key, args) = match random.below(42) {
        38.. => return random_call_of_a_row(random),
        0 if random.below(3) == 0 => {
            let (holder, owner) = (random.of(&[holder, &writer]), random.of(&HOLDERS));
            match random.below(2) {
                0 => (Which::FencedAdopt, key, vec![lease, holder, owner, tag]),
                _ => (Which::Adopt, key, vec![lease, holder, owner]),
            }
        }
        0..2 => (Which::FencedAcquire, key, vec![lease, holder, count, tag]),
        2..7 => (Which::ReadAcquire, key, vec![lease, holder, count, tag, random.of(&["0", "1"])]),
        7..11 => (Which::ReadRelease, key, vec![channel, holder, left, verb, tag]),
        11..14 => (Which::WriteAcquire, key, vec![lease, &writer, count, tag, random.of(&["0", waits])]),
        14..17 => (Which::WriteRelease, key, vec![channel, &writer, left, verb, tag]),
        17..19 => {
            let side = random.of(&["read", "write"]);
            let spent = random.of(&[holder, &writer]);
            (
                Which::ReadWriteForceRelease,
                key,
                vec![channel, verb, spent, random.of(&LIVE_LEASES), tag, side],
            )
        }
        19 if random.below(2) == 0 => (Which::ReadWriteIsHeld, key, vec![random.of(&["read", "write"])]),
        19..21 => (Which::ReadWriteRenew, key, vec![any_lease, random.of(&[holder, &writer]), tag]),
        21..23 => (Which::SimpleAcquire, &*simple, vec![lease, random.of(&TOKENS), "1"]),
        30 => {
            (Which::ReadWriteHolders, key, vec![random.of(&["1", "100"]), random.of(&["read", "write"]), tag])
        }
        31 => (Which::Holders, random.of(&[key, &simple]), vec![random.of(&["1", "100"])]),
        32 => (Which::SimpleHolders, random.of(&[key, &simple]), vec!["1"]),
        33..36 => {
            let stands = random.of(&["0", "1"]);
            (Which::FairAcquire, key, vec![lease, holder, count, stands, channel, verb, tag])
        }
        36 => (Which::FairRelease, key, vec![channel, holder, left, verb, tag]),
        37 => (Which::FairForceRelease, key, vec![channel, verb, holder, random.of(&LIVE_LEASES), tag]),
        23 if random.below(3) == 0 => {
            let (spent, left) = (random.of(&TOKENS), random.of(&LIVE_LEASES));
            (Which::SimpleRetire, &*simple, vec![channel, random.of(&TOKENS), spent, left, verb, tag])
        }
        23 if random.below(3) == 0 => {
            (Which::SimpleAdopt, &*simple, vec![lease, random.of(&TOKENS), random.of(&TOKENS)])
        }
        23 => (Which::SimpleRelease, &*simple, vec![channel, random.of(&TOKENS), "0", verb]),
        26..28 => (Which::LookAtLeader, random.of(&[key, &simple]), vec![tag]),
        28..30 => (
            Which::Announce,
            random.of(&[key, &simple]),
            vec![channel, tag, random.of(&["u:7", "u:8"]), serial, "120000", verb, said],
        ),
        24 => (Which::SimpleRenew, &*simple, vec![any_lease, random.of(&TOKENS)]),
        _ if random.below(3) > 0 => {
            let keys = [key.to_owned(), format!("{tag}:wheellock_writer"), simple.clone()];
            let hold = format!("{tag}:{holder}:rwlock_timeout:{count}");
            let words = match random.below(6) {
                0 => ["PTTL", &keys[1]],
                1 => ["GET", &keys[1]],
                2 => ["DEL", &hold],
                3 => ["PTTL", &hold],
                4 => ["GET", &keys[2]],
                _ => ["PTTL", &keys[2]],
            };
            return words.map(str::to_owned).into();
        }
        _ => {
            let (spent, left) = (random.of(&TOKENS), random.of(&LIVE_LEASES));
            (Which::SimpleForceRelease, &*simple, vec![channel, verb, spent, left])
        }
    };
    script_call(random, which, &[key], &args)
}

/// Returns how long later readers yield to this writer. Each holder waits for another time. Of two waits of the same length, chance decides
/// which one ends later.
fn waits_of(holder: &str) -> &'static str {
    match holder {
        "u:1" => "500000",
        "u:2" => "600000",
        _ => "700000",
    }
}

/// Returns an acquire or a release of any kind of lock. The table `CALLS_ON_A` has the call's form.
fn random_call_of_a_row(random: &mut SplitMix) -> Vec<String> {
    let parts: Vec<_> = Which::all().flat_map(Which::parts).map(|(which, _)| which).collect();
    let which = parts[random.below(parts.len())];
    let (_, form) = CALLS_ON_A.iter().find(|(known, _)| *known == which).expect("every part has a form");
    let place = random.below(KEYS.len());
    let (tag, holder) = (CHANNELS[place].trim_start_matches("of:"), random.of(&HOLDERS));
    let args = form.iter().map(|word| match *word {
        "60000" => random.of(&LIVE_LEASES).to_owned(),
        "600000" => waits_of(holder).to_owned(),
        "2" => random.of(&COUNTS[1..]).to_owned(),
        "0" if which != Which::PermitRelease => random.of(&COUNTS).to_owned(),
        "PUBLISH" => random.of(&["PUBLISH", "SPUBLISH"]).to_owned(),
        word => word.replace("{a}", tag).replace("u:1", holder),
    });
    let args: Vec<_> = args.collect();
    let simple = format!("simple:{place}");
    let key = if form.contains(&"token") { &*simple } else { KEYS[place] };
    script_call(random, which, &[key], &args.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Id of the first of several permits that are taken together. It has the usual length of an id.
const SEVERAL: &str = "permit-number-09";
/// Id of the second permit, whose last byte is the next byte.
const SECOND: &str = "permit-number-0:";

/// Returns a call about semaphores, permits with leases or latches. Now and then a request is repeated, with the same slot and the same
/// number.
fn random_call_about_many(random: &mut SplitMix, number: usize) -> Vec<String> {
    let place = random.below(KEYS.len());
    let (channel, tag) = (CHANNELS[place], CHANNELS[place].trim_start_matches("of:"));
    let [semaphore, permits, latch] = ["semaphore", "permits", "latch"].map(|kind| format!("{kind}:{place}"));
    let any = random.of(&[&semaphore, &permits, &permits, &latch]).to_owned();
    let leases = format!("{tag}:timeout");
    let (holder, lease) = (random.of(&HOLDERS), random.of(&LIVE_LEASES));
    let (left, few) = (random.of(&COUNTS), random.of(&COUNTS[1..]));
    let verb = random.of(&["PUBLISH", "SPUBLISH"]);
    let any_lease = random.of(&["0", lease]);
    let serial = (number / 30).to_string();
    let once = |more: &[&'static str]| [&[channel, tag, "u:1", &serial, "120000", verb], more].concat();
    // The key may hold a lock, which is not a number. A missing key has no permits to take.
    let other = KEYS[place].to_owned();
    let (which, key, args) = match random.below(38) {
        0..4 => (Which::SemaphoreAcquire, &semaphore, vec![lease, holder, few, tag]),
        4..7 => (Which::SemaphoreRelease, &semaphore, vec![channel, holder, left, verb, tag]),
        7..9 => (Which::SemaphoreRenew, &semaphore, vec![any_lease, holder, tag]),
        9 => (Which::SetPermits, random_of(random, [&semaphore, &permits]), once(&["7"])),
        10..12 => {
            let more = random.of(&["3", "-2", "1", "-1"]);
            (Which::AddPermits, random_of(random, [&semaphore, &permits]), once(&[more]))
        }
        12 => (Which::Drain, &semaphore, once(&[])),
        13..17 => {
            let (first, count) = [(holder, "1"), (SEVERAL, "2"), (SEVERAL, "3")][random.below(3)];
            (Which::PermitAcquire, &permits, vec![lease, first, count, tag, channel, verb])
        }
        17..19 => {
            let permit = random.of(&[holder, SEVERAL, SECOND]);
            (Which::PermitRelease, &permits, vec![channel, permit, "0", verb, tag])
        }
        19..21 => (Which::PermitRenew, &leases, vec![any_lease, holder, &permits]),
        21 => (Which::ChangePermits, &permits, once(&[random.of(&["0", "3", "5"])])),
        22 => (Which::GiveBack, &permits, once(&[random.of(&["u:1", "v:1", "ended:1"])])),
        37 => {
            let several = ["u:1", "permit-number-09permit-number-0:", "permit-number-09permit-number-09"];
            (Which::GiveBackMany, &permits, once(&[random.of(&several)]))
        }
        23..25 => (Which::CountPermits, &permits, vec![tag]),
        25..27 => (Which::SetLatch, &latch, once(&[random.of(&["1", "2", "7"])])),
        27..29 => (Which::CountDown, &latch, once(&[])),
        29 => (Which::DeleteLatch, &latch, once(&[])),
        30 => (Which::LookAtLatch, &latch, vec![tag]),
        31 => (Which::SemaphoreAcquire, &other, vec![lease, holder, few, tag]),
        32 => (Which::Drain, &other, once(&[])),
        33 => (Which::CountPermits, &other, vec![tag]),
        _ => {
            let (leases, has) = (format!("{tag}:timeout"), format!("{tag}:wheellock_permits:{holder}"));
            let request = format!("{tag}:wheellock_request:u:1");
            let ended = random.of(&["ended:1", "ended:2"]);
            let words = match random.below(13) {
                0 => vec!["GET", &any],
                1 => vec!["PTTL", &leases],
                2 => vec!["PTTL", &has],
                3 => vec!["GET", &has],
                4 => vec!["GET", &request],
                5 => vec!["PTTL", &request],
                6 => vec!["PEXPIRE", &permits, "90000"],
                7..9 => vec!["ZADD", &leases, "1", ended],
                9 => vec!["ZADD", &leases, "922337203685477", "java"],
                10 => vec!["SET", &any, "no number"],
                11 => vec!["DEL", &permits, &leases],
                _ => vec!["DEL", &any],
            };
            return words.into_iter().map(str::to_owned).collect();
        }
    };
    script_call(random, which, &[key], &args)
}

fn random_of<'a>(random: &mut SplitMix, choices: [&'a String; 2]) -> &'a String {
    choices[random.below(choices.len())]
}

fn script_call(random: &mut SplitMix, which: Which, keys: &[&str], args: &[&str]) -> Vec<String> {
    if let Some(poll) = which.poll().filter(|_| random.below(3) == 0) {
        return script_call(random, poll, keys, &[args, &["of:nobody", "NUMSUB"]].concat());
    }
    let mut words = match random.below(10) {
        0 => return ["SCRIPT", "LOAD", which.text()].map(str::to_owned).into(),
        1 => vec!["EVAL".to_owned(), which.text().to_owned()],
        _ => vec!["EVALSHA".to_owned(), which.sha().to_owned()],
    };
    words.push(keys.len().to_string());
    words.extend(keys.iter().chain(args).map(|word| (*word).to_owned()));
    words
}

fn hot_release(release: Which) -> Which {
    release.hot_release().unwrap()
}

fn agree(model: &Answer, real: &Reply) -> bool {
    match (model, real) {
        (Answer::Nil, Reply::Nil) => true,
        (Answer::Status(model), Reply::Status(real)) => model == real,
        (Answer::Bulk(model), Reply::Bulk(real)) => {
            // A fencing token is the server's time in microseconds.
            let token = |text: &str| text.parse::<u64>().ok().filter(|token| *token > 1_000_000_000_000_000);
            let real = String::from_utf8_lossy(real);
            match (token(model), token(&real)) {
                (Some(model), Some(real)) => model.abs_diff(real) < TTL_TOLERANCE.unsigned_abs() * 1000,
                _ => *model == real,
            }
        }
        (Answer::Error(model), Reply::Error(real)) => model.split(' ').next() == real.split(' ').next(),
        (Answer::Integer(model), Reply::Integer(real)) if *real >= TTL_TOLERANCE => {
            (model - real).abs() < TTL_TOLERANCE
        }
        (Answer::Integer(model), Reply::Integer(real)) => model == real,
        (Answer::Array(model), Reply::Array(real)) => match (model.as_slice(), real.as_slice()) {
            // The server's clock comes first, as seconds since the epoch and microseconds.
            (
                [Answer::Integer(model_seconds), Answer::Integer(model_micros), model @ ..],
                [Reply::Integer(real_seconds), Reply::Integer(real_micros), real @ ..],
            ) if *real_seconds > 1_000_000_000 => {
                let model_time = 1000 * model_seconds + model_micros / 1000;
                let real_time = 1000 * real_seconds + real_micros / 1000;
                (model_time - real_time).abs() < TTL_TOLERANCE && agree_each(model, real)
            }
            (model, real) => agree_each(model, real),
        },
        _ => false,
    }
}

/// Compares the replies to a command. The script that lists the holders of a lock goes through a Lua table, which has no order.
fn agree_on(words: &[&str], model: &Answer, real: &Reply) -> bool {
    let lists_holders =
        words.get(1).is_some_and(|script| [Which::Holders.sha(), Which::Holders.text()].contains(script));
    match (model, real) {
        (Answer::Array(model), Reply::Array(real)) if lists_holders => {
            model.len() == real.len() && agree(&model[0], &real[0])
        }
        _ => agree(model, real),
    }
}

fn agree_each(model: &[Answer], real: &[Reply]) -> bool {
    model.len() == real.len() && model.iter().zip(real).all(|(model, real)| agree(model, real))
}

fn kind(answer: &Answer) -> usize {
    match answer {
        Answer::Nil => 0,
        Answer::Status(_) => 1,
        Answer::Error(_) => 2,
        Answer::Integer(_) => 3,
        Answer::Bulk(_) => 4,
        Answer::Array(_) => 5,
    }
}

/// Returns the messages that were published so far, in order.
fn messages(listener: &mut Cli, speaker: &mut Cli) -> Vec<Published> {
    let _heard_by = speaker.query(&["PUBLISH", CHANNELS[0], END]).unwrap();
    let mut messages = Vec::new();
    loop {
        let message = listener.read_reply().unwrap();
        let Reply::Array(parts) = message else { panic!("not a message: {message:?}") };
        let [kind, channel, text] = parts.as_slice() else { panic!("not a message: {parts:?}") };
        if text.to_string() == END {
            return messages;
        }
        let verb = match kind.to_string().as_str() {
            "message" => "PUBLISH",
            "smessage" => "SPUBLISH",
            other => panic!("not a message: {other}"),
        };
        let (channel, text) = (channel.to_string(), text.to_string());
        messages.push(Published { verb: verb.to_owned(), channel, text });
    }
}

/// Returns a word with the uuids of the processes. The names `u`, `v` and `java` stand for them in these tables. The text of a script stays
/// as it is.
fn in_full(word: &str) -> String {
    if word.starts_with("-- ") {
        return word.to_owned();
    }
    let word = word.replace("u:", "00000000-0000-4000-8000-000000000001:");
    word.replace("v:", "00000000-0000-4000-8000-000000000002:")
        .replace("java:", "8a3ba4a9-51d9-4eb3-a2ee-7a3ba0dfd9f4:")
}

/// A small random generator that gives the same numbers on any machine.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(bound).unwrap()).unwrap()
    }

    fn of_any<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    fn of<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.below(choices.len())]
    }
}

/// Data under `a` and under its related keys that no lock leaves there.
const ODD_DATA: [&[&[&str]]; 22] = [
    &[&["SET", "a", "no number"]],
    &[&["SET", "a", "1.5"]],
    &[&["SET", "a", "0x10"]],
    &[&["SET", "a", "+5"]],
    &[&["SET", "a", "9223372036854775807"]],
    &[&["SET", "a", ""]],
    &[&["HSET", "a", "u:1", "many"]],
    &[&["HSET", "a", "u:2", "many"]],
    &[&["HSET", "a", "u:2", "0"]],
    &[&["HSET", "a", "u:-2:write", "1"]],
    &[&["HSET", "a", "u:2x", "1"]],
    &[&["HSET", "a", "name", "Ada"], &["HSET", "a", "u:1", "1"]],
    &[&["HSET", "a", "mode", "neither"], &["HSET", "a", "u:1", "1"]],
    &[&["HSET", "a", "mode", "read"], &["HSET", "a", "u:1", "many"]],
    &[&["HSET", "a", "mode", "write"], &["HSET", "a", "u:1:write", "many"]],
    &[&["SET", "redisson_lock_token:{a}", "no number"]],
    &[&["SET", "redisson_lock_token:{a}", "9223372036854775807"]],
    &[&["SET", "redisson_lock_queue:{a}", "no queue"]],
    &[&["SET", "{a}:timeout", "no leases"], &["SET", "a", "3"]],
    &[&["SET", "{a}:wheellock_permits:u:1", "many"], &["SET", "a", "3"]],
    &[&["SET", "{a}:wheellock_request:u:1", "what?"], &["SET", "a", "3"]],
    &[&["HSET", "a", "u:1", "1"], &["SET", "{a}:wheellock_leader", "u:1 nobody"]],
];

/// Returns every script on `a` for the holder `u:1`, as the library calls it.
fn calls_on_a() -> Vec<(Which, Vec<&'static str>)> {
    let mut all: Vec<_> = CALLS_ON_A.iter().map(|(which, args)| (*which, args.to_vec())).collect();
    for whole in Which::all() {
        for (number, (part, _)) in ["1", "2"].into_iter().zip(whole.parts()) {
            let of_part = CALLS_ON_A.iter().filter(|(which, _)| *which == part);
            all.extend(of_part.map(|(_, args)| (whole, [&[number], *args].concat())));
        }
        let of_acquire = CALLS_ON_A.iter().filter(|(which, _)| whole.polls() == Some(*which));
        all.extend(of_acquire.map(|(_, args)| (whole, [*args, &["of:{a}", "NUMSUB"]].concat())));
        let of_release = CALLS_ON_A.iter().filter(|(which, _)| whole.releases() == Some(*which));
        all.extend(of_release.map(|(_, args)| (whole, [*args, &["{a}", "1"]].concat())));
    }
    all
}

/// Returns the number of keys of a call on `a`, and the keys.
fn keys_on_a(which: Which) -> &'static [&'static str] {
    match which {
        Which::Refresh => &["3", "a", "a:roster", "a:checked_in"],
        Which::LeaveFleet => &["2", "a:roster", "a:checked_in"],
        _ => &["1", "a"],
    }
}

/// Every script of one call on `a` for the holder `u:1`, as the library calls it.
const CALLS_ON_A: &[(Which, &[&str])] = &[
    (Which::Acquire, &["60000", "u:1", "2"]),
    (Which::AcquireAll, &["60000", "u:1", "2"]),
    (Which::Release, &["of:{a}", "u:1", "0", "PUBLISH"]),
    (Which::Retire, &["of:{a}", "u:1", "u:2", "60000", "PUBLISH", "{a}"]),
    (Which::SimpleRetire, &["of:{a}", "token", "spent", "60000", "PUBLISH", "{a}"]),
    (Which::Adopt, &["60000", "u:2", "u:1"]),
    (Which::FencedAdopt, &["60000", "u:2", "u:1", "{a}"]),
    (Which::SimpleAdopt, &["60000", "other", "token"]),
    (Which::Mark, &["{a}", "60000"]),
    (Which::Tell, &["of:{a}", "PUBLISH"]),
    (Which::Renew, &["60000", "u:1"]),
    (Which::ForceRelease, &["of:{a}", "PUBLISH", "u:2", "60000"]),
    (Which::FencedAcquire, &["60000", "u:1", "2", "{a}"]),
    (Which::FencedRenew, &["60000", "u:1", "{a}"]),
    (Which::ReadAcquire, &["60000", "u:1", "2", "{a}", "1"]),
    (Which::ReadRelease, &["of:{a}", "u:1", "0", "PUBLISH", "{a}"]),
    (Which::WriteAcquire, &["60000", "u:1:write", "2", "{a}", "600000"]),
    (Which::WriteRelease, &["of:{a}", "u:1:write", "0", "PUBLISH", "{a}"]),
    (Which::ReadWriteRenew, &["60000", "u:1", "{a}"]),
    (Which::ReadWriteForceRelease, &["of:{a}", "PUBLISH", "u:2", "60000", "{a}", "read"]),
    (Which::ReadWriteIsHeld, &["read"]),
    (Which::Holders, &["100"]),
    (Which::ReadWriteHolders, &["100", "read", "{a}"]),
    (Which::SimpleHolders, &["1"]),
    (Which::SimpleAcquire, &["60000", "token", "1"]),
    (Which::SimpleRelease, &["of:{a}", "token", "0", "PUBLISH"]),
    (Which::SimpleRenew, &["60000", "token"]),
    (Which::SimpleForceRelease, &["of:{a}", "PUBLISH", "spent", "60000"]),
    (Which::FairAcquire, &["60000", "u:1", "2", "1", "of:{a}", "PUBLISH", "{a}"]),
    (Which::FairRelease, &["of:{a}", "u:1", "0", "PUBLISH", "{a}"]),
    (Which::FairForceRelease, &["of:{a}", "PUBLISH", "u:2", "60000", "{a}"]),
    (Which::SemaphoreAcquire, &["60000", "u:1", "2", "{a}"]),
    (Which::SemaphoreRenew, &["60000", "u:1", "{a}"]),
    (Which::SemaphoreRelease, &["of:{a}", "u:1", "0", "PUBLISH", "{a}"]),
    (Which::SetPermits, &["of:{a}", "{a}", "u:1", "1", "120000", "PUBLISH", "7"]),
    (Which::AddPermits, &["of:{a}", "{a}", "u:1", "1", "120000", "PUBLISH", "3"]),
    (Which::Drain, &["of:{a}", "{a}", "u:1", "1", "120000", "PUBLISH"]),
    (Which::PermitAcquire, &["60000", "u:1", "1", "{a}", "of:{a}", "PUBLISH"]),
    (Which::PermitRenew, &["60000", "u:1", "a"]),
    (Which::PermitRelease, &["of:{a}", "u:1", "0", "PUBLISH", "{a}"]),
    (Which::CountPermits, &["{a}"]),
    (Which::ChangePermits, &["of:{a}", "{a}", "u:1", "1", "120000", "PUBLISH", "5"]),
    (Which::GiveBack, &["of:{a}", "{a}", "u:1", "1", "120000", "PUBLISH", "u:1"]),
    (Which::GiveBackMany, &["of:{a}", "{a}", "u:1", "1", "120000", "PUBLISH", "u:1"]),
    (Which::LookAtLatch, &["{a}"]),
    (Which::SetLatch, &["of:{a}", "{a}", "u:1", "1", "120000", "PUBLISH", "7"]),
    (Which::CountDown, &["of:{a}", "{a}", "u:1", "1", "120000", "PUBLISH"]),
    (Which::DeleteLatch, &["of:{a}", "{a}", "u:1", "1", "120000", "PUBLISH"]),
    (Which::Announce, &["of:{a}", "{a}", "u:1", "1", "120000", "PUBLISH", "u:1 5 here"]),
    (Which::LookAtLeader, &["{a}"]),
    (Which::Refresh, &["u:1", "60000", "1000", "2", "1", "2", "0", "", "1", "140000"]),
    (Which::LeaveFleet, &["u:1"]),
    (Which::Reclaim, &["fleet", "of:1", "60000", "u:1", "2", "9007199254740991"]),
    (Which::Reclaim, &["fleet", "of:1", "60000", "u:1", "2", "9007199254740991", "{a}", "5"]),
    (Which::SimpleReclaim, &["fleet", "of:1", "60000", "token", "1", "9007199254740991"]),
    (Which::ReadWriteReclaim, &["fleet", "of:1", "60000", "u:1", "2", "9007199254740991", "{a}"]),
    (Which::PermitReclaim, &["fleet", "of:1", "60000", "u:1", "1", "9007199254740991", "{a}"]),
    // new-kind: calls
];

/// Beginnings of commands that an operator may send. Other words follow.
const ODD_COMMANDS: [&[&str]; 12] = [
    &["SET", "a"],
    &["SET"],
    &["HSET", "a"],
    &["HSET"],
    &["ZADD", "{a}:timeout"],
    &["HSET", "redisson_lock_queue:{a}"],
    &["PEXPIRE", "a"],
    &["DEL"],
    &["GET"],
    &["HGETALL"],
    &["LPOS"],
    &[],
];

const ODD_WORDS: [&str; 28] = [
    "a",
    "a",
    "a",
    "{a}",
    "{a}",
    "u:1",
    "u:1",
    "u:1:write",
    "mode",
    "read",
    "write",
    "PUBLISH",
    "PX",
    "",
    "0",
    "1",
    "2",
    "-1",
    "1000000",
    "9007199254740992",
    "9223372036854775807",
    "-9223372036854775808",
    "no number",
    "redisson_lock_token:{a}",
    "redisson_lock_queue:{a}",
    "{a}:timeout",
    "{a}:wheellock_permits:u:1",
    "{a}:wheellock_request:u:1",
];

const ODD_CALLS: usize = 200_000;
const CALLS: usize = 20_000;
const SEED: u64 = 0x5EED_0F10_C000_0001;
const KINDS: usize = 6;
const KEYS: [&str; 4] = ["a", "b", "c", "blå lås"];
const CHANNELS: [&str; 4] = ["of:{a}", "of:{b}", "of:{c}", "of:{blå lås}"];
const HOLDERS: [&str; 3] = ["u:1", "u:2", "v:1"];
const COUNTS: [&str; 4] = ["0", "1", "2", "7"];
/// Leases in milliseconds. They differ by far more than the tolerance, and none of them ends during the test. A lease that is not positive
/// ends at once.
const LEASES: [&str; 7] = ["60000", "120000", "600000", "3600000", "86400000", "0", "-1"];
/// Leases that are not over. They differ from `OTHER_LEASES`. If two leases ended in the same millisecond, chance would decide which is
/// longer.
const LIVE_LEASES: [&str; 5] = ["60000", "120000", "600000", "3600000", "86400000"];
const OTHER_LEASES: [&str; 5] = ["90000", "240000", "7200000", "0", "-1"];
/// One of the tokens looks like an owner of this library.
const TOKENS: [&str; 3] =
    ["12345678-1234-4234-8234-123456789abc:1", "random", "12345678-1234-4234-8234-123456789abc:x"];
const TTL_TOLERANCE: i64 = 20_000;
const END: &str = "the end";
