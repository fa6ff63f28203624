//! Tests of `disabled`.

use crate::config::Config;

/// A user that depends on `wheellock` alone learns which feature to enable in `Cargo.toml`.
#[test]
fn missing_tls_names_feature() {
    for url in ["rediss://h", "valkeys+cluster://h", "rediss+sentinel://h/s"] {
        let error = url.parse::<Config>().expect_err(url).to_string();
        assert!(error.contains("switch on the feature `tls` of `wheellock`, or of"), "{error}");
    }
}
