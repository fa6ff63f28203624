//! Tests of `sentinels`.

use super::*;

#[test]
fn sentinel_timeout_scales_with_server_timeout() {
    let address = Address::Tcp { host: "h".to_owned(), port: 26379 };
    let timeout = |of_servers: Duration| {
        let mut config = Config::new(address.clone());
        config.response_timeout = of_servers;
        of_sentinel(&Sentinels::default(), &config, &address).response_timeout
    };
    let default = Config::new(address.clone()).response_timeout;
    assert_eq!(timeout(default), PATIENCE);
    assert_eq!(timeout(Duration::from_millis(10)), PATIENCE);
    assert_eq!(timeout(4 * default), 4 * PATIENCE);
}

#[test]
fn questions_spread_around_their_interval() {
    let second = Duration::from_secs(1);
    let (least, most) = (Duration::from_millis(750), Duration::from_millis(1250));
    assert_eq!(spread(second, 0), least);
    assert_eq!(spread(second, 250_000_000), second);
    for random in [1, 499_999_999, 500_000_000, u64::MAX] {
        assert!((least..most).contains(&spread(second, random)), "{random}");
    }
}
