//! A certificate authority for tests. Does not know servers or clients.

use std::fmt;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

/// A certificate authority. All methods panic where rcgen refuses, because the test itself chose the parameters.
pub struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Makes a self-signed authority with this common name.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let key = new_key();
        let params = authority(name);
        let pem = params.self_signed(&key).expect("an authority may sign itself").pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// Makes an authority below this one. Chains that the new authority issues do not contain its own certificate.
    #[must_use]
    pub fn intermediate(&self, params: CertificateParams) -> Self {
        let key = new_key();
        let pem = params.signed_by(&key, &self.issuer).expect("parameters for an authority").pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// Issues a certificate with a new key.
    #[must_use]
    pub fn issue(&self, params: &CertificateParams) -> Identity {
        let key = new_key();
        let chain = params.signed_by(&key, &self.issuer).expect("parameters for a certificate").pem();
        Identity { chain, key: key.serialize_pem() }
    }

    /// Returns the authority's own certificate, which peers have to trust.
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
    /// The certificate, then the intermediate certificates up to a trusted one.
    pub chain: String,
    /// The private key.
    pub key: String,
}

impl Identity {
    /// Appends the certificate of the authority that signed the last certificate of the chain.
    #[must_use]
    pub fn followed_by(mut self, authority: &Authority) -> Self {
        self.chain.push_str(&authority.pem);
        self
    }
}

/// Returns the parameters of an authority's certificate.
#[must_use]
pub fn authority(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// Returns the parameters of a certificate for the host names and IP addresses `names`.
///
/// # Panics
///
/// If a name cannot be part of a certificate.
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
