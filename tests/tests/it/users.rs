//! Users of connections on the server. A connection has the user that its URL names, or none. It never has another user. The form of the
//! URL, the way the server was found and the number of reconnects do not matter.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::timeout;
use wheellock::{Finding, LockManager, blocking};
use wheellock_client::{
    CallOptions, Client, Command, Config, Credentials, Error, ErrorKind, Outcome, Secret, Servers, TlsConfig,
};
use wheellock_tests::certificates::{Authority, leaf};
use wheellock_tests::topology::{Cluster, SERVICE, SentinelSet, Settings};
use wheellock_tests::{Builder, RedisServer, eventually};

/// Connects, and returns the user's name or the error.
async fn who(config: Config) -> Result<String, Error> {
    let client = timeout(NO_HANG, Client::connect(config)).await.expect("connects or fails in time")?;
    who_is(&client).await
}

async fn who_is(client: &Client) -> Result<String, Error> {
    let reply = client.call(&Command::new("ACL").arg("WHOAMI")).await?;
    Ok(reply.as_str().unwrap_or("<not a string>").to_owned())
}

/// Returns the URL of a server with `userinfo` before its address.
fn url(server: &str, userinfo: &str) -> String {
    server.replacen("://", &format!("://{userinfo}"), 1)
}

fn config(url: &str) -> Config {
    url.parse().unwrap_or_else(|error| panic!("{url}: {error}"))
}

/// Checks the result of each userinfo. With `None`, connecting is refused, and the error names the user but no password.
async fn each_is(server: &str, adjust: impl Fn(&mut Config), expected: &[(&str, Option<&str>)]) {
    for (userinfo, expected) in expected {
        let mut config = config(&url(server, userinfo));
        adjust(&mut config);
        let named = config.username.clone().unwrap_or_else(|| "default".to_owned());
        match (who(config).await, expected) {
            (Ok(user), Some(expected)) => assert_eq!(&user, expected, "{userinfo}"),
            (Err(error), None) => {
                assert_eq!((error.kind(), error.outcome()), (ErrorKind::Auth, Outcome::NotSent), "{error}");
                assert!(error.to_string().contains(&format!("user \"{named}\"")), "{userinfo}: {error}");
                assert!(!format!("{error} {error:?}").contains("sesame"), "{userinfo}: {error}");
            }
            (outcome, expected) => panic!("{userinfo:?}: {outcome:?} instead of {expected:?}"),
        }
    }
}

/// Starts a server that knows `app` with a password, `free` without a password, and others.
fn populated(builder: Builder) -> RedisServer {
    let users: [&[&str]; 5] = [
        &["app", "on", ">sesame", "+@all", "~*"],
        &["free", "on", "nopass", "+@all", "~*"],
        &["o'dd@:/?%", "on", ">ses:me@/?%", "+@all", "~*"],
        &["off", "off", ">sesame", "+@all", "~*"],
        &["keyless", "on", "resetpass", "+@all", "~*"],
    ];
    let with_user =
        |builder: Builder, user: &&[&str]| builder.first_command(&[&["ACL", "SETUSER"][..], user].concat());
    users.iter().fold(builder, with_user).start()
}

const NAMED: &[(&str, Option<&str>)] = &[
    ("app:sesame@", Some("app")),
    ("app:@", None),
    ("app:wrong@", None),
    ("nosuch:@", None),
    ("nosuch:sesame@", None),
    ("free:@", Some("free")),
    ("free:anything@", Some("free")),
    ("off:sesame@", None),
    ("off:@", None),
    ("keyless:@", None),
    ("u%20s:sesame@", None),
    ("o'dd%40%3A%2F%3F%25:ses%3Ame%40%2F%3F%25@", Some("o'dd@:/?%")),
];

/// C1: the user in the URL is the user on the server, or connecting fails and names that user.
#[tokio::test]
async fn url_user_connects_or_fails() {
    let server = populated(RedisServer::builder().tcp());
    // The server's `default` needs no password here, so a URL without a user connects as `default`.
    let unnamed = [
        ("", Some("default")),
        ("@", Some("default")),
        (":@", Some("default")),
        ("default:@", Some("default")),
    ];
    for url in [server.tcp_url(), server.unix_url()] {
        each_is(&url, |_| {}, NAMED).await;
        each_is(&url, |_| {}, &unnamed).await;
    }
}

/// C1: this also holds with TLS.
#[tokio::test]
async fn url_user_connects_through_tls() {
    let authority = Authority::new("ours");
    let identity = authority.issue(&leaf(&["127.0.0.1"]));
    let server = populated(RedisServer::builder().tls(&identity, authority.pem()));
    let trusted = TlsConfig::new().trust_pem(authority.pem().as_bytes()).build().unwrap();
    each_is(&server.tcp_url(), |config| config.tls = Some(trusted.clone()), NAMED).await;
}

/// C1: a URL without a user connects as the server's `default`, if that user's password is right.
#[tokio::test]
async fn url_without_user_means_default_user() {
    let server = populated(RedisServer::builder().tcp().arg("requirepass", "opensesame"));
    let unnamed = [
        ("", None),
        ("@", None),
        (":@", None),
        (":wrong@", None),
        (":opensesame@", Some("default")),
        ("opensesame@", Some("default")),
        ("default:@", None),
        ("default:opensesame@", Some("default")),
    ];
    each_is(&server.tcp_url(), |_| {}, &unnamed).await;
    each_is(&server.tcp_url(), |_| {}, NAMED).await;
}

/// C1: a lone word is a password, although it may be meant as a user. If the server does not check it, a finding says so.
#[tokio::test]
async fn unchecked_password_is_reported() {
    let server = populated(RedisServer::builder().tcp().arg("appendonly", "yes"));
    let told = async |userinfo: &str| {
        let locks = LockManager::connect(&url(&server.tcp_url(), userinfo)).await.unwrap();
        assert_eq!(who_is(locks.client()).await.unwrap(), "default", "{userinfo}");
        locks.diagnostics().contains(&Finding::UncheckedPassword)
    };
    assert!(told("app@").await);
    assert!(told(":sesame@").await);
    assert!(!told("").await && !told(":@").await && !told("default:any@").await);
    assert_eq!(server.cli(&["ACL", "SETUSER", "default", "resetpass", ">app"]), "OK");
    assert!(!told("app@").await && !told(":app@").await);
    let mut admin = server.connect().unwrap();
    assert_eq!(admin.query(&["AUTH", "app"]).unwrap().to_string(), "OK");
    assert_eq!(admin.query(&["ACL", "LOG"]).unwrap().to_string(), "", "nothing was refused on the way");
}

/// C1: `Display` shows a URL with the same user and without the password. Connecting with the shown URL is refused.
#[tokio::test]
async fn displayed_url_does_not_connect() {
    let server = populated(RedisServer::builder().tcp());
    let shown = config(&url(&server.tcp_url(), "app:sesame@")).to_string();
    let error = who(config(&shown)).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Auth && error.to_string().contains("without a password"), "{error}");
}

/// C1: a client connects as its provider's user. If the provider leaves the user out, the client connects as the configuration's user.
#[tokio::test]
async fn credential_provider_overrides_url_user() {
    let server = populated(RedisServer::builder().tcp());
    let provided = async |userinfo: &str, username: Option<&str>, password: Option<&str>| {
        let given =
            Credentials { username: username.map(str::to_owned), password: password.map(Secret::new) };
        let mut config = config(&url(&server.tcp_url(), userinfo));
        config.credentials = Some(Arc::new(move || {
            let given = given.clone();
            Box::pin(async move { Ok(given) })
        }));
        who(config).await.map_err(|error| error.kind())
    };
    assert_eq!(provided("", Some("app"), Some("sesame")).await.as_deref(), Ok("app"));
    assert_eq!(provided("free:@", Some("app"), Some("sesame")).await.as_deref(), Ok("app"));
    assert_eq!(
        provided("app:@", None, Some("sesame")).await.as_deref(),
        Ok("app"),
        "only the password changes"
    );
    assert_eq!(provided("app:@", None, Some("wrong")).await, Err(ErrorKind::Auth));
    assert_eq!(
        provided("app:sesame@", None, None).await,
        Err(ErrorKind::Auth),
        "the URL's password is not used"
    );
    assert_eq!(provided("", Some("app"), None).await, Err(ErrorKind::Auth));
    assert_eq!(provided("", Some("nosuch"), None).await, Err(ErrorKind::Auth));
    assert_eq!(provided("", Some(""), None).await, Err(ErrorKind::Auth), "a name that is empty is nobody's");
    assert_eq!(provided("", Some("free"), None).await.as_deref(), Ok("free"));
    assert_eq!(provided("", None, None).await.as_deref(), Ok("default"), "nobody was named");
}

/// Sets a provider of the user `app` with the password that is in the cell now.
fn with_token(config: &mut Config, token: &Arc<Mutex<&'static str>>) {
    let token = Arc::clone(token);
    config.credentials = Some(Arc::new(move || {
        let password = Some(Secret::new(*token.lock().unwrap()));
        Box::pin(async move { Ok(Credentials { username: Some("app".to_owned()), password }) })
    }));
}

/// Returns the number of commands of this name that a server has executed. The second number counts the commands that failed during
/// execution.
fn executed(server: &RedisServer, command: &str) -> (u64, u64) {
    let stats = server.cli(&["INFO", "commandstats"]);
    let line =
        stats.lines().find(|line| line.starts_with(&format!("cmdstat_{command}:"))).unwrap_or_default();
    let count = |field: &str| {
        let mut fields = line.split([',', ':']).filter_map(|word| word.strip_prefix(field));
        fields.next().map_or(0, |count| count.trim().parse().unwrap())
    };
    (count("calls="), count("failed_calls="))
}

/// C1: after new credentials, even wrong credentials, the client has the same user on the same connection.
#[tokio::test]
async fn token_renews_on_live_connection() {
    let server = populated(RedisServer::builder().tcp());
    assert_eq!(server.cli(&["ACL", "SETUSER", "app", "&*"]), "OK");
    let token = Arc::new(Mutex::new("sesame"));
    let mut config = config(&server.tcp_url());
    with_token(&mut config, &token);
    let client = Client::connect(config).await.unwrap();
    let mut news = client.subscribe(b"news");
    news.settled().await;
    assert!(news.is_confirmed());

    assert_eq!(server.cli(&["ACL", "SETUSER", "app", "resetpass", ">opensesame"]), "OK");
    let error = timeout(NO_HANG, client.reauthenticate()).await.unwrap().unwrap_err();
    assert_eq!(
        (error.kind(), error.outcome(), error.code()),
        (ErrorKind::Auth, Outcome::Rejected, Some("WRONGPASS"))
    );
    assert_eq!(error.server_address(), server.addr().to_string());
    assert!(!format!("{error} {error:?}").contains("sesame"), "{error}");
    assert_eq!(executed(&server, "auth"), (1, 1));
    assert_eq!(who_is(&client).await.as_deref().ok(), Some("app"), "it goes on as who it was");

    *token.lock().unwrap() = "opensesame";
    timeout(NO_HANG, client.reauthenticate()).await.unwrap().unwrap();
    assert_eq!(executed(&server, "auth"), (2, 1));
    assert_eq!(who_is(&client).await.as_deref().ok(), Some("app"));
    assert_eq!(client.stats().connections, 1);
    assert_eq!(server.cli(&["PUBLISH", "news", "0"]), "1", "what it listens to it hears");
    timeout(NO_HANG, news.changed()).await.unwrap();
}

/// C1: threads renew their credentials, too.
#[test]
fn a_token_of_threads_is_renewed() {
    let server = populated(RedisServer::builder().tcp());
    let token = Arc::new(Mutex::new("sesame"));
    assert_eq!(server.cli(&["ACL", "SETUSER", "app", "&*"]), "OK");
    let builder = blocking::LockManager::builder(&server.tcp_url());
    let locks = builder.configure(|config| with_token(config, &token)).connect_blocking().unwrap();
    let guard = locks.lock("of-threads").acquire().unwrap();

    assert_eq!(server.cli(&["ACL", "SETUSER", "app", "resetpass", ">opensesame"]), "OK");
    let error = locks.reauthenticate().unwrap_err();
    let wheellock::Error::Server { source, .. } = &error else { panic!("{error}") };
    assert_eq!((source.kind(), source.outcome()), (ErrorKind::Auth, Outcome::Rejected), "{error}");
    assert!(!format!("{error} {error:?}").contains("sesame"), "{error}");

    *token.lock().unwrap() = "opensesame";
    locks.reauthenticate().unwrap();
    assert_eq!(executed(&server, "auth"), (2, 1));
    guard.release().unwrap();
}

/// C1: new credentials reach every node of a cluster. A node that refuses them is named, and does not keep them from the other nodes.
#[tokio::test]
async fn token_renews_on_every_cluster_node() {
    let cluster = Cluster::start(3, 0, &Settings::default().arg("user", "app on >sesame +@all ~* &*"));
    let token = Arc::new(Mutex::new("sesame"));
    let mut config = config(&cluster.url());
    with_token(&mut config, &token);
    let client = Client::connect(config).await.unwrap();
    assert!(
        eventually(NO_HANG, async || client.nodes().iter().filter(|node| node.is_ready()).count() == 3).await
    );

    *token.lock().unwrap() = "opensesame";
    let setuser = ["ACL", "SETUSER", "app", "resetpass", ">opensesame"];
    for expected in [2, 1, 0] {
        assert_eq!(cluster.nodes()[expected].cli(&setuser), "OK");
        let renewed = timeout(NO_HANG, client.reauthenticate()).await.unwrap();
        let shown = renewed.as_ref().err().map(ToString::to_string).unwrap_or_default();
        for (number, node) in cluster.nodes().iter().enumerate() {
            assert_eq!(shown.contains(&node.addr().to_string()), number < expected, "{number}: {shown}");
            let (told, refused) = executed(node, "auth");
            let accepted = (number + 1).saturating_sub(expected);
            assert_eq!(told - refused, accepted as u64, "{number}: {shown}");
        }
        assert!(renewed.is_ok_and(|()| expected == 0) || !shown.contains("sesame"), "{shown}");
    }
    for node in client.nodes() {
        assert_eq!(who_is(&node).await.unwrap(), "app");
        assert_eq!(node.stats().connections, 1);
    }
}

/// C1: a client that connects again has the same user. If that user no longer exists, connecting fails.
#[tokio::test]
async fn reconnect_keeps_user_or_fails() {
    let mut server = populated(RedisServer::builder().tcp());
    let clients = [
        Client::connect(config(&url(&server.tcp_url(), "app:sesame@"))).await.unwrap(),
        Client::connect(config(&url(&server.tcp_url(), "free:@"))).await.unwrap(),
    ];
    server.restart();
    for (client, user) in clients.iter().zip(["app", "free"]) {
        // The server is up a moment before it knows its users again.
        assert!(
            eventually(NO_HANG, async || who_is(client).await.is_ok_and(|who| who == user)).await,
            "{user}"
        );
        assert!(client.stats().connections >= 2);
    }
    assert_eq!(server.cli(&["ACL", "DELUSER", "app", "free"]), "2", "which ends their connections");
    for client in &clients {
        let options = CallOptions::by(client.config().timer.now() + NO_HANG);
        let refused = eventually(NO_HANG, async || {
            let reply = client.call_with(&Command::new("ACL").arg("WHOAMI"), options).await;
            reply.is_err_and(|error| error.kind() == ErrorKind::Auth)
        });
        assert!(refused.await, "{:?}", client.state());
    }
}

/// C1: in a cluster the client has the URL's user on every node that is found, also later. Otherwise it does not connect.
#[tokio::test]
async fn url_user_reaches_every_cluster_node() {
    let users =
        Settings::default().arg("user", "app on >sesame +@all ~*").arg("user", "free on nopass +@all ~*");
    let cluster = Cluster::start(3, 0, &users);
    let place = |userinfo: &str| format!("redis+cluster://{userinfo}{}", cluster.nodes()[0].addr());
    for (userinfo, user) in [("app:sesame@", "app"), ("free:@", "free"), ("", "default")] {
        let client = Client::connect(config(&place(userinfo))).await.unwrap();
        assert_eq!(client.nodes().len(), 3);
        for node in client.nodes() {
            assert_eq!(who_is(&node).await.unwrap(), user);
        }
    }
    for userinfo in ["nosuch:@", "app:@", "app:wrong@"] {
        let mut config = config(&place(userinfo));
        // The client does not wait for a fault that waiting will not cure.
        config.connect_timeout = FOR_EVER;
        let refused = timeout(NO_HANG, Client::connect(config)).await.expect("refused at once");
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Auth, "{userinfo}: {error}");
    }
    // The client does not use another user on a node that does not know the URL's user.
    let stranger = &cluster.nodes()[2];
    assert_eq!(stranger.cli(&["ACL", "DELUSER", "free"]), "1");
    let client = Client::connect(config(&place("free:@"))).await;
    let seen = stranger.cli(&["CLIENT", "LIST"]);
    assert!(!seen.contains("name=wheellock"), "{seen}");
    if let Ok(client) = client {
        for node in
            client.nodes().iter().filter(|node| *node.server_address() == *stranger.addr().to_string())
        {
            let asked = timeout(NO_HANG, who_is(node)).await.expect("refused, not silent");
            assert_eq!(asked.unwrap_err().kind(), ErrorKind::Auth);
        }
    }
}

/// C1: a client has its own user on Sentinels. On the primary that they name it has the URL's user, also after a failover.
#[tokio::test]
async fn sentinels_and_primary_get_separate_users() {
    let users = Settings::default().arg("user", "app on >sesame +@all ~*");
    let set = SentinelSet::start(&users);
    for sentinel in set.sentinels() {
        assert_eq!(
            sentinel.cli(&["ACL", "SETUSER", "watcher", "on", "nopass", "+@all", "allchannels"]),
            "OK"
        );
        assert_eq!(
            sentinel.cli(&["ACL", "SETUSER", "locked", "on", ">sesame", "+@all", "allchannels"]),
            "OK"
        );
    }
    let addresses: Vec<_> = set.sentinels().iter().map(|sentinel| sentinel.addr().to_string()).collect();
    let place = |query: &str| format!("redis+sentinel://app:sesame@{}/{SERVICE}{query}", addresses.join(","));
    // On Sentinels only CLIENT LIST shows the user of a connection.
    let on_sentinels = || -> Vec<String> {
        let lists = set.sentinels().iter().map(|sentinel| sentinel.cli(&["CLIENT", "LIST"]));
        let ours = lists.flat_map(|list| list.lines().map(str::to_owned).collect::<Vec<_>>());
        let ours = ours.filter(|line| line.contains("name=wheellock "));
        ours.filter_map(|line| Some(line.split_once(" user=")?.1.split(' ').next()?.to_owned())).collect()
    };
    for (query, user) in [
        ("", "default"),
        ("?sentinel_user=watcher", "watcher"),
        ("?sentinel_user=watcher&sentinel_password=", "watcher"),
        ("?sentinel_user=locked&sentinel_password=sesame", "locked"),
    ] {
        let client = Client::connect(config(&place(query))).await.unwrap();
        assert_eq!(who_is(&client).await.unwrap(), "app");
        let seen = on_sentinels();
        assert!(!seen.is_empty() && seen.iter().all(|seen| seen == user), "{query}: {seen:?}");
        drop(client);
        assert!(eventually(NO_HANG, async || on_sentinels().is_empty()).await);
    }
    for query in
        ["?sentinel_user=nosuch", "?sentinel_user=locked", "?sentinel_user=locked&sentinel_password=no"]
    {
        let mut config = config(&place(query));
        config.connect_timeout = FOR_EVER;
        let Servers::Sentinel(sentinels) = &config.servers else { panic!() };
        let named = format!("user \"{}\"", sentinels.username.as_deref().unwrap_or_default());
        let refused = timeout(NO_HANG, who(config)).await.expect("refused at once");
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Auth, "{query}: {error}");
        assert!(error.to_string().contains(&named), "{query}: {error}");
        assert_eq!(on_sentinels(), [""; 0], "{query}");
    }
    let error = who(config(&place("").replace("app:sesame@", "nosuch:@"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Auth, "{error}");

    let client = Client::connect(config(&place("?sentinel_user=watcher"))).await.unwrap();
    let new = set.failover();
    let new = set.servers()[new].addr();
    // On a busy machine the Sentinels may replace this primary, too.
    let follows = async || {
        let primary = set.primary().addr().to_string();
        who_is(&client).await.is_ok_and(|who| who == "app") && *client.server_address() == *primary
    };
    let follows = eventually(NO_HANG, follows).await;
    let (used, primary) = (client.server_address(), set.primary().addr());
    assert!(follows, "{:?} at {used}; {new} took over, now it is {primary}", who_is(&client).await);
}

/// A server without HELLO repeats the whole command in its refusal. This was observed on Redis 7.0.
#[tokio::test]
async fn server_without_hello_reveals_no_password() {
    let settings = [("requirepass", "sesame"), ("rename-command", "HELLO \"\"")];
    let builder = RedisServer::builder().tcp().config_file();
    let server = settings.iter().fold(builder, |builder, (name, value)| builder.arg(name, value)).start();
    let client = Client::lazy(config(&url(&server.tcp_url(), ":sesame@")));
    let error = timeout(NO_HANG, who_is(&client)).await.expect("refused at once").unwrap_err();
    assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unsupported, Outcome::NotSent), "{error}");
    assert!(error.to_string().contains("does not know HELLO"), "{error}");
    let shown = format!("{error} {error:?} {:?} {client:?}", client.state());
    assert!(!shown.contains("sesame"), "{shown}");
}

const FOR_EVER: Duration = Duration::from_secs(3_600);
const NO_HANG: Duration = Duration::from_secs(20);
