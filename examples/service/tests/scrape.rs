//! The service, its metrics, its probes and its end.
//!
//! The tests send requests by hand, as Prometheus and an orchestrator would.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use wheellock_tests::{RedisServer, poll_until};

const PATIENCE: Duration = Duration::from_secs(20);

/// The service's process. It ends with its test.
struct Service {
    process: Child,
    output: BufReader<ChildStdout>,
    address: SocketAddr,
}

impl Service {
    fn start(server: &RedisServer) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_wheellock-service"))
            .env("REDIS_URL", server.url())
            .env("LISTEN", "127.0.0.1:0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").expect("it says where").parse().unwrap();
        Self { process, output, address }
    }

    /// Returns the status and the body of the reply to one request.
    fn ask(&self, method: &str, path: &str) -> (u16, String) {
        let mut socket = TcpStream::connect(self.address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = "Host: service\r\nConnection: close\r\nContent-Length: 0\r\n";
        write!(socket, "{method} {path} HTTP/1.1\r\n{head}\r\n").unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    /// Returns every sample of a scrape, by name and labels.
    fn scrape(&self) -> BTreeMap<String, f64> {
        let (status, body) = self.ask("GET", "/metrics");
        assert_eq!(status, 200);
        let samples = body.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let sample = |line: &str| {
            let (series, value) = line.rsplit_once(' ').unwrap();
            (series.to_owned(), value.parse().unwrap())
        };
        samples.map(sample).collect()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _already_ended = self.process.kill();
        let _reaped = self.process.wait();
    }
}

#[test]
fn a_scrape_has_what_was_counted() {
    let server = RedisServer::start();
    let service = Service::start(&server);
    for _ in 0..3 {
        assert_eq!(service.ask("POST", "/orders/42/pay"), (200, "order 42 is paid\n".to_owned()));
    }
    let orders = |name: &str| format!("{name}{{manager=\"orders\",family=\"orders\"}}");
    for _ in 0..2 {
        // A second scrape does not count an event twice.
        let samples = service.scrape();
        let told = format!("{samples:#?}");
        let of =
            |name: &str| *samples.get(&orders(name)).unwrap_or_else(|| panic!("{name} is not in {told}"));
        assert_eq!((of("wheellock_acquires_total"), of("wheellock_held")), (3.0, 0.0), "{told}");
        assert_eq!(of("wheellock_hold_seconds_count"), 3.0, "{told}");
        assert!(of("wheellock_hold_seconds_sum") >= 3.0 * 0.004, "{told}");
        let bucket = |bound: &str| {
            samples[&format!(
                "wheellock_hold_seconds_bucket{{manager=\"orders\",family=\"orders\",le=\"{bound}\"}}"
            )]
        };
        assert_eq!((bucket("0.001"), bucket("+Inf")), (0.0, 3.0), "{told}");
        let lost = |reason: &str| {
            samples
                [&format!("wheellock_lost_total{{manager=\"orders\",family=\"orders\",reason=\"{reason}\"}}")]
        };
        assert_eq!(
            (lost("expired"), lost("not_owner"), lost("held_too_long")),
            (0.0, 0.0, 0.0),
            "counters that an alert waits for are there"
        );
        let manager = |name: &str| samples[&format!("{name}{{manager=\"orders\"}}")];
        assert_eq!(
            (manager("wheellock_healthy"), manager("wheellock_connections_total")),
            (1.0, 1.0),
            "{told}"
        );
        assert!(manager("wheellock_call_seconds_count") >= 6.0, "{told}");
    }
    let (_, page) = service.ask("GET", "/metrics");
    assert!(
        page.contains("# HELP wheellock_lost_total ")
            && page.contains("# TYPE wheellock_hold_seconds histogram")
    );
}

#[test]
fn probes_tell_readiness_from_liveness() {
    let mut server = RedisServer::start();
    let service = Service::start(&server);
    assert_eq!(service.ask("GET", "/healthz"), (200, "healthy\n".to_owned()));
    server.kill();
    assert!(poll_until(PATIENCE, || service.ask("GET", "/healthz").0 == 503));
    assert_eq!(service.ask("GET", "/livez").0, 200, "a restart would not help");
    assert!(service.scrape()["wheellock_healthy{manager=\"orders\"}"] < 0.5);
    server.restart();
    assert!(poll_until(PATIENCE, || service.ask("GET", "/healthz").0 == 200));
}

#[test]
fn terminated_service_releases_locks() {
    let server = RedisServer::start();
    let mut service = Service::start(&server);
    // Another owner holds the order's lock, so a request waits when the service gets the signal to end.
    assert_eq!(server.cli(&["HSET", "orders:7", "a1b2c3d4-0000-4000-8000-000000000000:1", "1"]), "1");
    let mut socket = TcpStream::connect(service.address).unwrap();
    write!(socket, "POST /orders/7/pay HTTP/1.1\r\nHost: service\r\nContent-Length: 0\r\n\r\n").unwrap();
    let waiting = "wheellock_waiting{manager=\"orders\",family=\"orders\"}";
    assert!(poll_until(PATIENCE, || service.scrape().get(waiting) == Some(&1.0)));
    kill_process(Pid::from_child(&service.process), Signal::TERM).unwrap();
    assert_eq!(server.cli(&["DEL", "orders:7"]), "1");
    assert_eq!(server.cli(&["PUBLISH", "redisson_lock__channel:{orders:7}", "0"]), "1");
    let mut answer = String::new();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "what was under way is answered: {answer}");
    let mut last = String::new();
    service.output.read_to_string(&mut last).unwrap();
    assert_eq!(last, "every lock was released\n");
    assert!(service.process.wait().unwrap().success());
    assert_eq!(server.cli(&["EXISTS", "orders:7"]), "0");
}

#[test]
fn unfinished_request_never_delays_exit() {
    let server = RedisServer::start();
    let mut service = Service::start(&server);
    let mut socket = TcpStream::connect(service.address).unwrap();
    write!(socket, "POST /orders/7/pay HTTP/1.1\r\nHost: service\r\nContent-Le").unwrap();
    // This reply comes after the service has received the request before it.
    assert_eq!(service.ask("GET", "/livez").0, 200);
    kill_process(Pid::from_child(&service.process), Signal::TERM).unwrap();
    let mut last = String::new();
    service.output.read_to_string(&mut last).unwrap();
    assert_eq!(last, "every lock was released\n");
    assert!(service.process.wait().unwrap().success());
}
