//! Tests of `stream`.

use super::*;

#[tokio::test]
async fn socket_opens_with_any_liveness_timeout() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp { host: "127.0.0.1".into(), port: listener.local_addr().unwrap().port() };
    let config = Config::new(address.clone());
    for liveness in [Duration::ZERO, Duration::from_secs(3), Duration::from_secs(36_000), Duration::MAX] {
        let opened = connect(&config, &address, &resolve(&config, &address).await.unwrap(), liveness).await;
        assert!(opened.is_ok(), "{liveness:?}: {:?}", opened.err());
    }
}

/// A name may have an address whose host is gone and sends no refusal.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn silent_address_does_not_block_next() {
    use std::net::TcpListener;

    // A full backlog makes the kernel ignore further connection attempts.
    let silent = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    silent.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    silent.listen(0).unwrap();
    let silent_at = silent.local_addr().unwrap().as_socket().unwrap();
    let waits = || std::net::TcpStream::connect_timeout(&silent_at, Duration::from_millis(100)).ok();
    let waiting: Vec<_> = std::iter::from_fn(waits).collect();
    assert!(!waiting.is_empty());
    let live = TcpListener::bind("127.0.0.1:0").unwrap();
    let live_at = live.local_addr().unwrap();
    let mut config: Config = "redis://in.memory".parse().unwrap();
    config.connect_timeout = Duration::from_millis(600);
    for found in [&[silent_at, live_at][..], &[live_at, silent_at], &[silent_at, silent_at, live_at]] {
        let by = config.timer.now() + config.connect_timeout;
        let reached = config.timer.timeout_at(by, reach(found, &config)).await;
        assert_eq!(reached.unwrap().unwrap().peer_addr().unwrap(), live_at, "{found:?}");
    }
    assert!(reach(&[], &config).await.is_err());
}
