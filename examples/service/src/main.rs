//! A service that takes a lock for each request.
//!
//! It serves `/metrics` for Prometheus, `/healthz` for readiness and `/livez` for liveness. It writes events to standard error, and
//! releases every lock when it ends. The library's part is in `main`.
//!
//! ```sh
//! REDIS_URL=redis://127.0.0.1:6379 LISTEN=127.0.0.1:8080 cargo run -p wheellock-service
//! curl -X POST 127.0.0.1:8080/orders/42/pay
//! curl 127.0.0.1:8080/metrics
//! ```

use std::error::Error;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::sleep;
use wheellock::{Attempt, LockManager};

/// Time that a request waits for its order's lock.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time for pending requests after the signal to end. After that they are dropped.
const UNDER_WAY: Duration = Duration::from_secs(5);
/// Time for the server to confirm all releases.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Bounds of histogram buckets, in seconds. Waits and holds of this service lie between them.
const BUCKETS: [f64; 10] = [0.0001, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];

#[derive(Clone)]
struct Service {
    locks: LockManager,
    prometheus: PrometheusHandle,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let prometheus = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &BUCKETS)?
        .install_recorder()?;
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let locks = LockManager::builder(&url)
        .metrics_name("orders")
        // Each family of locks has a label. A label per order would be too many.
        .classify(|name| if name.starts_with("orders:") { "orders" } else { "other" })
        .connect()
        .await?;
    let service = Service { locks: locks.clone(), prometheus };
    let routes = Router::new()
        .route("/orders/{id}/pay", post(pay))
        .route("/metrics", get(scrape))
        .route("/healthz", get(readiness))
        .route("/livez", get(async || "alive"))
        .with_state(service);
    let listener = TcpListener::bind(std::env::var("LISTEN").as_deref().unwrap_or("127.0.0.1:8080")).await?;
    println!("listening on {}", listener.local_addr()?);
    let mut terminated = signal(SignalKind::terminate())?;
    let (tell, told) = oneshot::channel();
    let served = axum::serve(listener, routes).with_graceful_shutdown(async move {
        terminated.recv().await;
        let _told = tell.send(());
    });
    // The server stops accepting requests and replies to the pending requests. Then the locks are released.
    tokio::select! {
        ended = served => ended?,
        () = async { _ = told.await; sleep(UNDER_WAY).await } => eprintln!("requests under way are cut off"),
    }
    let left = locks.shutdown(LAST_WORDS).await;
    println!("{left}");
    Ok(())
}

/// Does the work of one order. No other process works on this order at the same time.
async fn pay(State(service): State<Service>, Path(id): Path<u64>) -> Result<String, (StatusCode, String)> {
    let lock = service.locks.lock(&format!("orders:{id}"));
    // If the lock is lost, the work is dropped at its current await point.
    let paid = lock.run_for(PATIENCE, async |_guard| Ok::<_, wheellock::Error>(charge(id).await)).await;
    match paid.and_then(Attempt::or_held) {
        Ok(paid) => Ok(paid),
        Err(error @ wheellock::Error::Held { .. }) => Err((StatusCode::CONFLICT, error.to_string())),
        Err(error) if error.is_unavailable() => Err((StatusCode::SERVICE_UNAVAILABLE, error.to_string())),
        Err(error) => Err((StatusCode::INTERNAL_SERVER_ERROR, error.to_string())),
    }
}

/// Does the work for which the service exists.
async fn charge(id: u64) -> String {
    sleep(Duration::from_millis(5)).await;
    format!("order {id} is paid\n")
}

/// Reports the metrics right before they are read, so that they are current.
async fn scrape(State(service): State<Service>) -> String {
    service.locks.report_metrics();
    service.prometheus.render()
}

/// Returns whether the service is ready for requests. This must not be a liveness probe: a restart does not bring the server back, and it
/// gives the locks up.
async fn readiness(State(service): State<Service>) -> (StatusCode, String) {
    let health = service.locks.health();
    let status = if health.is_healthy() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, format!("{health}\n"))
}
