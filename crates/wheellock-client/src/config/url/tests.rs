//! Tests of `url`.

use super::*;

fn tcp(host: &str, port: u16) -> Address {
    Address::Tcp { host: host.to_owned(), port }
}

#[test]
fn urls_in_the_wild() {
    let ok = |url: &str| url.parse::<Config>().unwrap_or_else(|e| panic!("{url}: {e}"));
    let secret = |s: &str| Some(Secret::new(s));

    let one = |config: &Config| match &config.servers {
        Servers::One(address) => address.clone(),
        other => panic!("{other:?}"),
    };
    let c = ok("redis://localhost");
    assert_eq!((one(&c), c.username, c.password, c.database), (tcp("localhost", 6379), None, None, 0));
    let c = ok("valkey://h:7000/3");
    assert_eq!((one(&c), c.database), (tcp("h", 7000), 3));
    let c = ok("REDIS://[::1]:7000/");
    assert_eq!((one(&c), c.database), (tcp("::1", 7000), 0));
    let c = ok("redis://:pa%3Ass@h");
    assert_eq!((c.username, c.password), (None, secret("pa:ss")));
    let c = ok("redis://lonely@h");
    assert_eq!((c.username, c.password), (None, secret("lonely")), "as in redis-cli and Redisson");
    let c = ok("redis://u:p@ss@h");
    assert_eq!((c.username.as_deref(), c.password), (Some("u"), secret("p@ss")));
    let c = ok("unix:///run/redis.sock?db=5");
    assert_eq!((one(&c), c.database), (Address::Unix("/run/redis.sock".into()), 5));
    let c = ok("redis+unix://u:p@/run/redis.sock");
    assert_eq!((c.username.as_deref(), c.password), (Some("u"), secret("p")));
}

#[test]
fn urls_of_topologies() {
    let ok = |url: &str| url.parse::<Config>().unwrap_or_else(|e| panic!("{url}: {e}"));
    let secret = |s: &str| Some(Secret::new(s));

    for same in ["redis://a:1,b,[::1]:3/2", "redis://a:1/2?node=b&addr=[::1]:3"] {
        let Servers::Replicated(addresses) = ok(same).servers else { panic!() };
        assert_eq!(addresses, [tcp("a", 1), tcp("b", 6379), tcp("::1", 3)], "{same}");
    }

    let c = ok("redis+sentinel://u:p@a,b:7000/orders/3?sentinel_user=s&sentinel_password=q");
    assert_eq!((c.username.as_deref(), c.password, c.database), (Some("u"), secret("p"), 3));
    let Servers::Sentinel(sentinels) = c.servers else { panic!() };
    assert_eq!(sentinels.addresses, [tcp("a", 26379), tcp("b", 7000)]);
    assert_eq!((&*sentinels.service, sentinels.username.as_deref()), ("orders", Some("s")));
    assert_eq!(sentinels.password, secret("q"));
    for same in
        ["valkey-sentinel://a?master_set=x&node=b:7000", "redis+sentinel://a,b:7000?sentinelServiceName=x"]
    {
        let Servers::Sentinel(sentinels) = ok(same).servers else { panic!() };
        assert_eq!((&*sentinels.service, sentinels.addresses.len()), ("x", 2), "{same}");
        assert_eq!(
            (sentinels.username, sentinels.password),
            (None, None),
            "the servers' are not the Sentinels'"
        );
    }

    for same in ["redis+cluster://:p@a:1,b", "redis-cluster://p@a:1,b/0", "valkey+cluster://p@a:1?node=b"] {
        let c = ok(same);
        assert_eq!(c.password, secret("p"), "{same}");
        let Servers::Cluster(addresses) = c.servers else { panic!() };
        assert_eq!(addresses, [tcp("a", 1), tcp("b", 6379)], "{same}");
    }
}

#[test]
fn lettuce_fragment_is_service() {
    for (url, shown) in [
        ("redis-sentinel://a/0#orders", "redis+sentinel://a:26379/orders"),
        ("redis-sentinel://p@a,b:7000/3#or%20ders", "redis+sentinel://a:26379,b:7000/or%20ders/3"),
        ("redis-sentinel://a#orders", "redis+sentinel://a:26379/orders"),
    ] {
        assert_eq!(url.parse::<Config>().unwrap().to_string(), shown, "{url}");
    }
}

/// A printed URL named another zone than its settings. The fuzz target `url` found it.
#[test]
fn empty_ipv6_zone_is_refused() {
    let error = "redis://[fe80::1%]:6379".parse::<Config>().unwrap_err().to_string();
    assert!(error.contains("the zone of its IPv6 address is empty"), "{error}");
    let config: Config = "redis://[fe80::1%25]:6379".parse().unwrap();
    assert!(matches!(&config.servers, Servers::One(address) if *address == tcp("fe80::1%25", 6379)));
    let again: Config = config.to_string().parse().unwrap();
    assert!(matches!(&again.servers, Servers::One(address) if *address == tcp("fe80::1%25", 6379)));
}

#[test]
fn ipv6_zone_is_decoded() {
    for (url, host) in [
        ("redis://[fe80::1%25eth0]:6379", "fe80::1%eth0"),
        ("redis://[fe80::1%25en%2D0]:6379", "fe80::1%en-0"),
        ("redis://[fe80::1%eth0]:6379", "fe80::1%eth0"),
    ] {
        let config: Config = url.parse().unwrap();
        assert!(matches!(&config.servers, Servers::One(address) if *address == tcp(host, 6379)), "{url}");
        let again: Config = config.to_string().parse().unwrap();
        assert_eq!(again.to_string(), config.to_string(), "{url}");
        assert!(matches!(&again.servers, Servers::One(address) if *address == tcp(host, 6379)), "{url}");
    }
}

#[cfg(feature = "tls")]
#[test]
fn tls_url_parses_without_authorities() {
    for url in [
        "rediss://h:6379/2?ca_file=/nowhere/ca%20b.pem",
        "rediss+cluster://h:6379?ca_file=/nowhere/ca.pem",
        "rediss+sentinel://h:26379/orders?sentinel_user=s&ca_file=/nowhere/ca.pem",
    ] {
        let config: Config = url.parse().unwrap_or_else(|error| panic!("{url}: {error}"));
        assert_eq!(config.to_string(), url);
        let Servers::Sentinel(sentinels) = &config.servers else { continue };
        assert!(sentinels.tls.as_ref().is_some_and(|tls| tls.ca_file().is_some()), "{url}");
    }
}

/// A9: a number in place of the service is a database, not a service.
#[test]
fn lone_number_after_sentinels_is_database() {
    let read = |url: &str| {
        let config: Config = url.parse().unwrap();
        let Servers::Sentinel(sentinels) = &config.servers else { panic!() };
        (sentinels.service.clone(), config.database, config.to_string())
    };
    for url in ["redis-sentinel://a/3?service=x", "redis+sentinel://a/x/3", "redis+sentinel://a/x?db=3"] {
        assert_eq!(read(url), ("x".to_owned(), 3, "redis+sentinel://a:26379/x/3".to_owned()), "{url}");
    }
    // A service may nevertheless have a number as its name.
    for url in ["redis+sentinel://a/7/0", "redis+sentinel://a?service=7"] {
        assert_eq!(read(url), ("7".to_owned(), 0, "redis+sentinel://a:26379/7/0".to_owned()), "{url}");
    }
}

#[test]
fn bad_url_names_fault_not_password() {
    let bad = [
        ("", "it is empty"),
        ("localhost:6379", "scheme"),
        ("http://h", "its scheme \"http\" is none of redis, "),
        ("HTTP+x-1.0://u:sesame@h", "its scheme \"HTTP+x-1.0\" is none of"),
        // These texts have no scheme.
        ("redis:sesame@h", "it has no scheme"),
        ("u:sesame@h:6379", "it has no scheme"),
        (":sesame@h:6379", "it has no scheme"),
        ("sesame", "it has no scheme"),
        ("u:sesame://@h", "its scheme is none of"),
        (":sesame://h", "its scheme is none of"),
        ("sesame@://h", "its scheme is none of"),
        ("u:sesame@h?x://", "its scheme is none of"),
        ("u%3Asesame://h", "its scheme is none of"),
        ("1sesame://h", "its scheme is none of"),
        ("://sesame@h", "its scheme is none of"),
        ("sesame.0123456789abcdef-0123456789://h", "its scheme is none of"),
        ("sesame\u{1b}[1m://h", "its scheme is none of"),
        ("redis://", "host"),
        ("redis://:sesame@", "host"),
        ("redis://u:sesame@h:0", "port"),
        ("redis://u:sesame@h:70000", "port"),
        ("redis://u:sesame@h/x", "database"),
        ("redis://u:sesame@::1", "brackets"),
        ("redis://u:sesame@[::1", "bracket"),
        ("redis://u:sesame@[::1]6379", "bracketed"),
        ("redis://u:sesame@[[::1]", "bracket"),
        ("redis://u:sesame@h]", "bracket"),
        ("redis://u:sesame%4@h", "%"),
        ("redis://u:sesame%ff@h", "UTF-8"),
        ("redis://u:sesame@h?password=sesame", "query"),
        ("unix://relative", "absolute"),
        ("redis+sentinel://u:sesame@h", "service"),
        ("redis-sentinel://a:26379/0", "service"),
        ("redis://h?foo=sesame", "other than db and node: \"foo\""),
        ("redis://u:sesame@h?db=1&foo=sesame&bar=1", "other than db and node: \"foo\""),
        ("redis://h?sentinel_password=ses&ame=sesame", "query parameter other than db and node"),
        // These names may be parts of a password.
        ("redis://ses?sesame=1@h", "query parameter other than db and node"),
        ("redis://u:6379?db=1&sesame=1@h", "query parameter other than db and node"),
        ("redis://h?sesame", "query parameter other than db and node"),
        ("redis://h?sesame%20=1", "query parameter other than db and node"),
        ("redis://h?sesame\u{1b}=1", "query parameter other than db and node"),
        ("redis://h?sesame_0123456789_0123456789_0123456789=1", "query parameter other than db and node"),
        ("redis+sentinel://h/s?sentinel_password=ses&sesame=1", "query parameter other than db, node"),
        ("redis+sentinel://h/s?sentinel_password=sesame%", "%"),
        ("redis+cluster://u:sesame@h/1", "database"),
        ("redis://u:sesame@h,", "host"),
        ("redis+unix+cluster://h", "scheme"),
        ("redis+cluster://h?master_set=sesame", "query"),
        ("redis+cluster://h?node=a,b", "character"),
        ("redis+sentinel://h/s?addr=u:sesame@a", "port"),
        ("redis+cluster://h?node=a/0", "character"),
        ("redis+cluster://h?node=a?b", "character"),
        ("redis://a b", "character"),
        ("redis://a\x1b[1m", "bracket"),
        ("redis://a\n", "character"),
        ("rediss://u:sesame@h#insecure", "certificates are always verified: name the server's authority by"),
        ("rediss://u:sesame@h?db=1#insecure", "certificates are always verified"),
        ("rediss+sentinel://h/0#insecure", "certificates are always verified"),
        ("redis://u:sesame#@h/1#x", "a # is written %23"),
        ("redis+sentinel://u:sesame@h/orders#x", "a # is written %23"),
        ("redis+sentinel://u:sesame@h/orders/0#x", "a # is written %23"),
        ("redis://u:ses?ame@h", "a ? in a user or password is written %3F"),
        ("redis://h?ca_file=/sesame", "ca_file needs TLS"),
        ("redis://u:sesame@[fe80::1%25%zz]", "%"),
        ("redis://u:sesame@[fe80::1%25a%2Fb]", "character"),
    ];
    for (url, fault) in bad {
        let error = url.parse::<Config>().expect_err(url);
        let shown = format!("{error} {error:?}");
        assert!(shown.contains(fault), "{url}: {shown}");
        assert!(!shown.contains("sesame"), "{url}: {shown}");
        assert_eq!(error.kind(), ErrorKind::Config);
    }
}

/// A9: an error in a URL shows the scheme and the address, if they are certain.
#[test]
fn bad_url_shows_scheme_and_address() {
    for (url, expected) in [
        ("redis://u:sesame@h:0/2", "redis://***@h:0/2"),
        ("redis://u:ses@me@a,b:x", "redis://***@a,b:x"),
        ("redis+sentinel://:sesame@h/0?sentinel_password=sesame", "redis+sentinel://***@h/0?..."),
        ("unix://u:sesame@relative", "unix://***@relative"),
        ("redis://h\u{1b}[1m:0", "redis://..."),
        ("redis://u:p@h\u{1b}[1m", "redis://***@h\\x1b[1m"),
        ("redis://u:6379sesame", "redis://..."),
        ("redis://u:70000", "redis://..."),
        ("redis://u:ses?me@h", "redis://..."),
        ("redis://h?sentinel_password=ses@me", "redis://..."),
        ("u:sesame@h", "..."),
        ("sesame://u@h", "..."),
    ] {
        assert_eq!(shown(url), expected, "{url}");
    }
}

/// A9: an error in a malformed URL never shows a part of a password.
#[test]
fn url_error_never_shows_password_part() {
    // Letters that occur in no message, and all signs that divide a URL.
    const LETTERS: &[u8] = b"ZQXJKVW";
    const SIGNS: &[u8] = b":/?#%&=,[]@ +$";
    let mut random = 1_u64;
    let mut below = |bound: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(random >> 33).unwrap_or_default() % bound
    };
    let mut errors = 0;
    for _ in 0..200_000 {
        let mut password = |signs: &[u8]| -> String {
            let mut sign_or_letter = || {
                let from = if below(3) == 0 { signs } else { LETTERS };
                char::from(from[below(from.len())])
            };
            (0..8).map(|_| sign_or_letter()).collect()
        };
        let (with_at, without, of_sentinels) = (password(SIGNS), password(&SIGNS[..10]), password(SIGNS));
        let scheme = ["redis", "rediss", "redis+sentinel", "redis-cluster", "unix", "redi"][below(6)];
        let place = ["h", "h:0", "/run/s", "[::1", "a,b:x/db", "h/s/1", "h:6379/0", ""][below(8)];
        let user = ["", "u", "%", "6379"][below(4)];
        let query = ["", "?db=x", "?sentinel_password=", "?password="][below(4)];
        let secret = if query.contains("password") { of_sentinels } else { String::new() };
        let url = match below(5) {
            // The @ that ends the password is missing, so the password must not contain an @ either.
            0 => format!("{scheme}://{user}:{without}{place}{query}"),
            1 => format!("{scheme}:{user}:{with_at}@{place}{query}{secret}"),
            2 => format!("{scheme}://{with_at}@{place}{query}{secret}"),
            _ => format!("{scheme}://{user}:{with_at}@{place}{query}{secret}"),
        };
        let Err(error) = url.parse::<Config>() else { continue };
        errors += 1;
        let said = format!("{error} {error:?}");
        assert!(!said.bytes().any(|byte| LETTERS.contains(&byte)), "{url}: {said}");
    }
    assert!(errors > 50_000, "only {errors} of them were wrong");
}

#[test]
fn display_round_trips_without_the_secret() {
    for url in [
        "redis://h:6379",
        "redis://u%40x:@[::1]:7000/2",
        "unix://u:@/run/a%20b.sock?db=1",
        "redis://u:@a:1,b:2/3",
        "redis+sentinel://u:@a:1,b:2/or%20ders/3?sentinel_user=s%3A",
        "redis+cluster://u:@a:1,[::1]:2",
        "redis://[fe80::1%25eth0]:6379,[fe80::2%25eth0]:6380",
    ] {
        assert_eq!(url.parse::<Config>().unwrap().to_string(), url);
    }
    let config: Config = "redis://u:sesame@h/2".parse().unwrap();
    assert_eq!(config.to_string(), "redis://u:@h:6379/2");
    assert!(!format!("{config:?}").contains("sesame"));
}
