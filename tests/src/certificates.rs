//! A certificate authority of our own, and what it issues. Knows no server and no client.

use std::fmt;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

/// A certificate authority. All methods panic where rcgen refuses: what is to be issued is the test's own.
pub struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// An authority with this common name, which signed itself.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let key = new_key();
        let params = authority(name);
        let pem = params.self_signed(&key).expect("an authority may sign itself").pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// An authority below this one; its certificate is not part of what it issues.
    #[must_use]
    pub fn intermediate(&self, params: CertificateParams) -> Self {
        let key = new_key();
        let pem = params.signed_by(&key, &self.issuer).expect("parameters for an authority").pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// A certificate with a key of its own.
    #[must_use]
    pub fn issue(&self, params: &CertificateParams) -> Identity {
        let key = new_key();
        let chain = params.signed_by(&key, &self.issuer).expect("parameters for a certificate").pem();
        Identity { chain, key: key.serialize_pem() }
    }

    /// Its own certificate, which is what others have to trust.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

/// A certificate chain and its key, as PEM.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The certificate, then those that lead from it to a trusted one.
    pub chain: String,
    /// The private key.
    pub key: String,
}

impl Identity {
    /// Adds the certificate of the authority that signed the chain's last one.
    #[must_use]
    pub fn followed_by(mut self, authority: &Authority) -> Self {
        self.chain.push_str(&authority.pem);
        self
    }
}

/// What makes an authority.
#[must_use]
pub fn authority(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// What makes a certificate for the host names and IP addresses `names`.
///
/// # Panics
///
/// If one of them cannot stand in a certificate.
#[must_use]
pub fn leaf(names: &[&str]) -> CertificateParams {
    let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).expect("names of hosts");
    params.distinguished_name.push(DnType::CommonName, "localhost");
    params
}

fn new_key() -> KeyPair {
    KeyPair::generate().expect("the system gives randomness")
}
