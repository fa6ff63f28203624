//! The client's URLs.
//!
//! Parsing must not panic. A displayed URL must parse to the same settings. No password must be displayed.
#![no_main]

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use wheellock_client::{Address, Config, Servers};

fuzz_target!(|data: &[u8]| {
    if let Ok(url) = std::str::from_utf8(data) {
        shown_is_the_same(url);
    }
    let _ = built(&mut Unstructured::new(data));
});

fn shown_is_the_same(url: &str) {
    let Ok(config) = url.parse::<Config>() else { return };
    let shown = config.to_string();
    let again: Config =
        shown.parse().unwrap_or_else(|error| panic!("{url:?} is shown as {shown:?}: {error}"));
    assert_eq!(
        Parts::of(&again),
        Parts { is_secret: [false; 2], ..Parts::of(&config) },
        "{url:?} is shown as {shown:?}"
    );
    assert_eq!(again.to_string(), shown);
}

/// Checks a URL that is built from its parts. Every part but the passwords must come out again, and no password may.
fn built(input: &mut Unstructured<'_>) -> Result<()> {
    let scheme = *input.choose(&["redis", "valkey", "REDIS"])?;
    let topology = *input.choose(&["", "+sentinel", "-sentinel", "+cluster", "-CLUSTER"])?;
    let user: String = input.arbitrary()?;
    let password: String = input.arbitrary()?;
    let ports: Vec<u16> =
        (0..input.int_in_range(1..=3)?).map(|_| input.int_in_range(1..=u16::MAX)).collect::<Result<_>>()?;
    let is_sentinel = topology.ends_with("sentinel");
    let database: u32 = if topology.eq_ignore_ascii_case("-cluster") || topology == "+cluster" {
        0
    } else {
        input.arbitrary()?
    };
    let [service, sentinel_user, sentinel_password]: [String; 3] = input.arbitrary()?;
    let service = if is_sentinel { format!("{service}.") } else { String::new() };

    let url = |password: &str, sentinel_password: &str, first_port: u16| {
        let mut hosts: Vec<_> = ports.iter().map(|port| format!("localhost:{port}")).collect();
        hosts[0] = format!("[::1]:{first_port}");
        let mut url =
            format!("{scheme}{topology}://{}:{}@{}", encoded(&user), encoded(password), hosts.join(","));
        if is_sentinel {
            url += &format!("/{}", encoded(&service));
        }
        url += &format!("/{database}");
        if is_sentinel {
            let [user, password] = [&sentinel_user, sentinel_password].map(encoded);
            url += &format!("?sentinel_password={password}&sentinel_user={user}");
        }
        url
    };
    let parsed = |url: String| url.parse::<Config>().unwrap_or_else(|error| panic!("{url:?}: {error}"));
    let config = parsed(url(&password, &sentinel_password, ports[0]));
    let addresses = ports.iter().enumerate().map(|(place, &port)| Address::Tcp {
        host: if place == 0 { "::1" } else { "localhost" }.to_owned(),
        port,
    });
    let expected = Parts {
        kind: match (topology, ports.len()) {
            ("", 1) => "one",
            ("", _) => "replicated",
            _ if is_sentinel => "sentinel",
            _ => "cluster",
        },
        addresses: addresses.collect(),
        service: service.clone(),
        users: [user.clone(), if is_sentinel { sentinel_user.clone() } else { String::new() }],
        is_secret: [!password.is_empty(), is_sentinel && !sentinel_password.is_empty()],
        database,
    };
    assert_eq!(Parts::of(&config), expected);

    // The displayed URL must not depend on the passwords. Neither must an error about another part.
    let other = |secret: &str| if secret.is_empty() { "" } else { "other" };
    let others = parsed(url(other(&password), other(&sentinel_password), ports[0]));
    assert_eq!(format!("{config} {config:?}"), format!("{others} {others:?}"));
    let error = |url: String| {
        url.parse::<Config>().map_err(|error| format!("{error} {error:?}")).expect_err("there is no port 0")
    };
    assert_eq!(error(url(&password, &sentinel_password, 0)), error(url("other", "other", 0)));
    Ok(())
}

/// The content of a URL, in a form that can be compared.
#[derive(Debug, PartialEq)]
struct Parts {
    kind: &'static str,
    addresses: Vec<Address>,
    service: String,
    /// Users of the servers and of the Sentinels. An empty text means that there is no user.
    users: [String; 2],
    is_secret: [bool; 2],
    database: u32,
}

impl Parts {
    fn of(config: &Config) -> Self {
        let mut parts = Self {
            kind: "one",
            addresses: Vec::new(),
            service: String::new(),
            users: [config.username.clone().unwrap_or_default(), String::new()],
            is_secret: [config.password.is_some(), false],
            database: config.database,
        };
        match &config.servers {
            Servers::One(address) => parts.addresses.push(address.clone()),
            Servers::Replicated(addresses) => {
                (parts.kind, parts.addresses) = ("replicated", addresses.clone())
            }
            Servers::Cluster(addresses) => (parts.kind, parts.addresses) = ("cluster", addresses.clone()),
            Servers::Sentinel(sentinels) => {
                (parts.kind, parts.addresses) = ("sentinel", sentinels.addresses.clone());
                parts.service.clone_from(&sentinels.service);
                parts.users[1] = sentinels.username.clone().unwrap_or_default();
                parts.is_secret[1] = sentinels.password.is_some();
            }
            other => panic!("{other:?}"),
        }
        parts
    }
}

/// Percent-encodes every byte. This form is never ambiguous.
fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}
