//! The dashboard and the alert rules beside `docs/observability.md`, checked against a page of the exporter.
//!
//! A name or a label that the exporter does not write makes a panel empty and an alert silent. The test does not parse expressions: it only
//! finds names, labels and functions in expressions.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use serde_json::Value;
use wheellock::LockManager;
use wheellock_tests::{RedisServer, eventually};
use yaml_rust2::{Yaml, YamlLoader};

const DASHBOARD: &str = include_str!("../../../docs/grafana.json");
const ALERTS: &str = include_str!("../../../docs/alerts.yaml");
const PAGE: &str = include_str!("../../../docs/observability.md");

const PATIENCE: Duration = Duration::from_secs(20);

/// The samples of a page: each name with its labels.
type Samples = BTreeMap<String, BTreeSet<String>>;

#[tokio::test]
async fn dashboard_and_alerts_match_exporter() {
    let samples = scraped().await;
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("the dashboard is JSON");
    let mut taken = BTreeSet::new();
    for panel in dashboard["panels"].as_array().expect("the dashboard has panels") {
        let number = |value: &Value| value.as_u64().expect("a number");
        let place = &panel["gridPos"];
        let (x, y, width) = (number(&place["x"]), number(&place["y"]), number(&place["w"]));
        assert!(x + width <= 24, "a row has 24 columns: {place}");
        assert!((x..x + width).all(|column| taken.insert((column, y))), "two panels overlap: {place}");
        let targets = panel["targets"].as_array().expect("a panel has targets");
        assert!(!targets.is_empty() && panel["title"].is_string() && panel["type"].is_string());
        for target in targets {
            let expression = target["expr"].as_str().expect("a target has an expression");
            let labels = labels_of_result(expression, &samples);
            let legend = target["legendFormat"].as_str().unwrap_or_default();
            for label in between(legend, "{{", "}}") {
                assert!(labels.contains(label), "{label} of the legend is not a label of {expression}");
            }
        }
    }
    for variable in dashboard["templating"]["list"].as_array().expect("the dashboard has variables") {
        let Some(query) = variable["query"]["query"].as_str() else { continue };
        let inner = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
        let (name, label) = inner.and_then(|inner| inner.split_once(", ")).expect("a name and a label");
        assert!(samples.get(name).is_some_and(|labels| labels.contains(label)), "no sample for {query}");
    }
    for rule in rules() {
        let expression = rule["expr"].as_str().expect("a rule has an expression");
        let labels = labels_of_result(expression, &samples);
        for text in ["summary", "description"] {
            let text = rule["annotations"][text].as_str().expect("a rule has annotations");
            for used in between(text, "{{", "}}").filter(|used| *used != "$value") {
                let label = used.strip_prefix("$labels.").expect("a label");
                assert!(labels.contains(label), "{label} is not a label of {expression}");
            }
        }
    }
}

/// The page for operators and the rules have the same three first alerts.
#[test]
fn page_lists_first_three_alerts() {
    let table = PAGE.split("## Three alerts").nth(1).unwrap().split("## Events").next().unwrap();
    let told: Vec<_> =
        table.lines().skip(4).filter_map(|row| row.split('|').nth(2)?.split('`').nth(1)).collect();
    let rules = rules();
    let written: Vec<_> = rules.iter().take(3).map(|rule| rule["expr"].as_str().unwrap()).collect();
    assert_eq!(told, written);
}

fn rules() -> Vec<Yaml> {
    let documents = YamlLoader::load_from_str(ALERTS).expect("the rules are YAML");
    let rules = documents[0]["groups"][0]["rules"].as_vec().expect("a group has rules").clone();
    assert!(rules.iter().all(|rule| rule["alert"].as_str().is_some()));
    rules
}

/// Returns the samples of an exporter's page, after a wait, a hold and a renewal.
async fn scraped() -> Samples {
    let buckets = PrometheusBuilder::new().set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &[1.0]);
    let recorder = buckets.unwrap().build_recorder();
    let page = recorder.handle();
    let server = RedisServer::start();
    let builder = LockManager::builder(&server.url()).watchdog_lease(Duration::from_millis(600));
    let locks = builder.classify(|_| "all").connect().await.unwrap();
    let lock = locks.lock("a");
    let guard = lock.acquire().await.unwrap();
    let waiter = tokio::spawn(async move { lock.acquire().await });
    let is_renewed = || locks.metrics().renewal_lateness.count() > 0 && locks.metrics().waiting > 0;
    assert!(eventually(PATIENCE, async || is_renewed()).await);
    drop(guard);
    drop(waiter.await.unwrap().unwrap());
    metrics::with_local_recorder(&recorder, || locks.report_metrics());
    let mut samples = Samples::new();
    for line in page.render().lines().filter(|line| line.starts_with("wheellock_")) {
        let (name, rest) = line.split_once('{').expect("each sample has labels");
        let labels = rest.split_once('}').unwrap().0.split(',').map(|label| label.split('=').next().unwrap());
        samples.entry(name.to_owned()).or_default().extend(labels.map(str::to_owned));
    }
    samples
}

/// Checks the names and the labels of an expression, and returns the labels of its result.
fn labels_of_result(expression: &str, samples: &Samples) -> BTreeSet<String> {
    let mut labels = BTreeSet::new();
    let mut grouped = None;
    let mut rest = without_durations(expression);
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    while let Some(start) = rest.find(|c: char| is_word(c) && !c.is_ascii_digit()) {
        let word: String = rest[start..].chars().take_while(|c| is_word(*c)).collect();
        rest = rest[start + word.len()..].to_owned();
        if word == "by" {
            let names = between(&rest, "(", ")").next().expect("labels behind `by`").to_owned();
            grouped = Some(names.split(", ").map(str::to_owned).collect::<BTreeSet<_>>());
            rest = rest.split_once(')').unwrap().1.to_owned();
        } else if !FUNCTIONS.contains(&word.as_str()) {
            let known = samples.get(&word).unwrap_or_else(|| panic!("no sample {word} for {expression}"));
            labels.extend(known.clone());
            if let Some(matchers) = rest.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
                for matcher in matchers.0.split(", ") {
                    let label = matcher.split(['=', '!']).next().unwrap();
                    assert!(known.contains(label), "{word} has no label {label}: {expression}");
                }
                rest = matchers.1.to_owned();
            }
        }
    }
    assert!(!labels.is_empty(), "no sample in {expression}");
    match grouped {
        Some(grouped) => {
            assert!(grouped.is_subset(&labels), "{grouped:?} of {labels:?}: {expression}");
            grouped
        }
        None if expression.contains("sum(") || expression.contains("count(") => BTreeSet::new(),
        None => labels,
    }
}

/// The functions and operators of the expressions.
const FUNCTIONS: [&str; 7] = ["sum", "count", "rate", "increase", "histogram_quantile", "or", "vector"];

/// Returns the expression without `[10m]` and `[$__rate_interval]`.
fn without_durations(expression: &str) -> String {
    let parts = expression.split('[').map(|part| part.split_once(']').map_or(part, |(_, rest)| rest));
    parts.collect()
}

/// Returns the trimmed texts between two marks.
fn between<'a>(text: &'a str, open: &'a str, close: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(open).skip(1).filter_map(move |rest| Some(rest.split_once(close)?.0.trim()))
}
