//! TLS settings: authorities, client certificate and server name.
//!
//! All connections of a client share one rustls configuration, so that sessions are resumed across reconnects. This
//! module encrypts nothing.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tokio_rustls::rustls::client::ClientConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{self, CertificateError, RootCertStore};

use crate::base::error::{Error, ErrorKind, said};

mod rotating;

use rotating::{Pair, Rotating};

/// TLS settings: the trusted authorities, the client certificate and the expected name. The client always verifies
/// the server's certificate and name. The minimum version is TLS 1.2.
///
/// ```no_run
/// use wheellock_client::{Config, TlsConfig};
///
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let mut config: Config = "rediss://cache.internal:6380".parse()?; // trusts what the system trusts
/// let mut config: Config = "rediss://cache.internal:6380?ca_file=ca.pem".parse()?; // trusts only this authority
/// config.tls = Some(TlsConfig::new().trust_pem(&std::fs::read("ca.pem")?).build()?); // the same
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct TlsConfig {
    settings: Settings,
    server_name: Option<ServerName<'static>>,
}

#[derive(Clone)]
enum Settings {
    Built(Arc<ClientConfig>),
    Unread(Arc<Unread>),
    Rotating(Arc<Rotating>),
}

/// Authorities that the client reads at the first attempt to connect. A URL can then be parsed on a machine without
/// them.
struct Unread {
    ca_file: Option<PathBuf>,
    built: Mutex<Option<Arc<ClientConfig>>>,
}

/// A builder for a [`TlsConfig`].
///
/// ```no_run
/// use wheellock_client::{TlsBuilder, TlsConfig};
///
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let builder: TlsBuilder = TlsConfig::new()
///     .trust_pem(&std::fs::read("ca.pem")?)
///     .identity_pem(&std::fs::read("us.pem")?, &std::fs::read("us.key")?)
///     .server_name("cache.internal");
/// let tls = builder.build()?;
/// # drop(tls);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
#[must_use]
pub struct TlsBuilder {
    authorities: Vec<u8>,
    identity: Option<Identity>,
    server_name: Option<String>,
}

/// A client certificate and its private key.
#[derive(Clone)]
enum Identity {
    Pem(Pair),
    Files { chain: PathBuf, key: PathBuf },
}

impl TlsConfig {
    /// Starts with the defaults: trust the system's authorities, present no client certificate, and expect the
    /// address's host name.
    #[expect(clippy::new_ret_no_self, reason = "the settings come first; build() gives the TlsConfig")]
    pub fn new() -> TlsBuilder {
        TlsBuilder::default()
    }

    /// Uses a rustls configuration unchanged. The caller decides which checks it makes.
    pub fn from_rustls(config: Arc<ClientConfig>) -> Self {
        Self { settings: Settings::Built(config), server_name: None }
    }

    /// Returns the settings of a URL, which trust the authorities in `ca_file` or those of the system.
    #[expect(clippy::unnecessary_wraps, reason = "fails where TLS is not built in")]
    pub(crate) fn read_later(ca_file: Option<PathBuf>) -> Result<Self, String> {
        let unread = Unread { ca_file, built: Mutex::default() };
        Ok(Self { settings: Settings::Unread(Arc::new(unread)), server_name: None })
    }

    /// Returns the file of authorities that a URL named.
    pub(crate) fn ca_file(&self) -> Option<&Path> {
        if let Settings::Unread(unread) = &self.settings { unread.ca_file.as_deref() } else { None }
    }

    /// Reads the authorities, unless an earlier attempt has read them. Also reads the files of a client certificate.
    pub(crate) async fn prepare(&self) -> Result<(), Error> {
        // Reading a store takes tens of milliseconds. On this thread it would delay the runtime's tasks.
        let read = match &self.settings {
            Settings::Unread(unread) if !unread.is_read() => {
                let unread = Arc::clone(unread);
                tokio::task::spawn_blocking(move || unread.read().map(drop))
            }
            Settings::Rotating(rotating) => {
                let rotating = Arc::clone(rotating);
                tokio::task::spawn_blocking(move || {
                    rotating.read_again();
                    Ok(())
                })
            }
            Settings::Built(_) | Settings::Unread(_) => return Ok(()),
        };
        read.await.map_err(|error| wrong("the certificates cannot be read", error))?
    }

    /// Returns the reason why the client presents a former certificate, if the files cannot be used now.
    pub(crate) fn trouble(&self) -> Option<String> {
        if let Settings::Rotating(rotating) = &self.settings { rotating.trouble() } else { None }
    }

    /// Returns the TLS connector. Call [`prepare`](Self::prepare) first.
    pub(crate) fn connector(&self) -> io::Result<tokio_rustls::TlsConnector> {
        match &self.settings {
            Settings::Built(config) => Ok(Arc::clone(config).into()),
            Settings::Unread(unread) => Ok(unread.read().map_err(io::Error::other)?.into()),
            Settings::Rotating(rotating) => Ok(rotating.present().into()),
        }
    }

    /// Returns the name that the server's certificate must contain.
    pub(crate) fn server_name(&self, host: &str) -> io::Result<ServerName<'static>> {
        if let Some(name) = &self.server_name {
            return Ok(name.clone());
        }
        // Only this machine knows the zone, so certificates do not contain it.
        let host = host.split_once('%').map_or(host, |(address, _zone)| address);
        ServerName::try_from(host.to_owned())
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "the host is not a valid name for TLS"))
    }
}

impl Unread {
    fn is_read(&self) -> bool {
        // If the lock is taken, another thread is still reading.
        self.built.try_lock().is_ok_and(|built| built.is_some())
    }

    /// Reads the authorities once. A failure is not stored, so the next attempt reads again.
    fn read(&self) -> Result<Arc<ClientConfig>, Error> {
        // The lock is held while reading, so that concurrent attempts read only once.
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(config) = &*built {
            return Ok(Arc::clone(config));
        }
        let builder = match &self.ca_file {
            None => TlsConfig::new(),
            Some(path) => TlsConfig::new().trust_pem(&read_file("CA file", path)?),
        };
        let config = client_config(builder.roots()?, None)?;
        *built = Some(Arc::clone(&config));
        Ok(config)
    }
}

impl TlsBuilder {
    /// Trusts these certificate authorities, in PEM form, instead of those of the system.
    pub fn trust_pem(mut self, authorities: &[u8]) -> Self {
        self.authorities.extend_from_slice(authorities);
        self.authorities.push(b'\n');
        self
    }

    /// Presents this certificate chain, and proves it with this private key. Both are in PEM form.
    pub fn identity_pem(mut self, chain: &[u8], key: &[u8]) -> Self {
        self.identity = Some(Identity::Pem(Pair { chain: chain.to_vec(), key: key.to_vec() }));
        self
    }

    /// Presents the certificate chain in the file `chain`, and proves it with the private key in the file `key`. Both
    /// are in PEM form.
    ///
    /// The client reads both files again for each connection, so that certificates may rotate while it runs.
    /// Established connections keep the certificate that they have presented. While the files cannot be read, or do
    /// not match, the client presents the former certificate.
    pub fn identity_files(mut self, chain: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.identity = Some(Identity::Files { chain: chain.into(), key: key.into() });
        self
    }

    /// Expects this name in the server's certificate instead of the address's host. Use it for addresses that are not
    /// names.
    pub fn server_name(mut self, name: &str) -> Self {
        self.server_name = Some(name.to_owned());
        self
    }

    /// Reads the certificates.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`] if a certificate, key or name cannot be read, or if no authority would be trusted.
    pub fn build(mut self) -> Result<TlsConfig, Error> {
        let server_name = self.server_name.take();
        let server_name = server_name
            .map(|name| ServerName::try_from(name).map_err(|_| bad("the server name is not valid")))
            .transpose()?;
        let settings = match self.identity.take() {
            Some(Identity::Files { chain, key }) => {
                Settings::Rotating(Arc::new(Rotating::new(self.roots()?, chain, key)?))
            }
            Some(Identity::Pem(pair)) => Settings::Built(client_config(self.roots()?, Some(&pair))?),
            None => Settings::Built(client_config(self.roots()?, None)?),
        };
        Ok(TlsConfig { settings, server_name })
    }

    fn roots(&self) -> Result<Arc<RootCertStore>, Error> {
        let roots = match &*self.authorities {
            [] => roots_of_the_system()?,
            pem => roots_in(pem)?,
        };
        Ok(Arc::new(roots))
    }
}

fn client_config(roots: Arc<RootCertStore>, identity: Option<&Pair>) -> Result<Arc<ClientConfig>, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .map_err(|error| wrong("the TLS versions cannot be used", error))?
        .with_root_certificates(roots);
    let config = match identity {
        None => builder.with_no_client_auth(),
        Some(Pair { chain, key }) => {
            let key =
                PrivateKeyDer::from_pem_slice(key).map_err(|_| bad("the private key is not valid PEM"))?;
            builder
                .with_client_auth_cert(certificates(chain)?, key)
                .map_err(|error| wrong("the client certificate cannot be used", error))?
        }
    };
    Ok(Arc::new(config))
}

/// Returns the problem with a server's certificate and the remedy, if `error` is about the certificate.
pub(crate) fn certificate_trouble(error: &io::Error) -> Option<String> {
    let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    let rustls::Error::InvalidCertificate(reason) = error else { return None };
    Some(match reason {
        CertificateError::UnknownIssuer => format!("{error}: no trusted authority issued it; trust its authority with TlsBuilder::trust_pem"),
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!("{error}; connect by a name in it, or expect a different name with TlsBuilder::server_name")
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the server's certificate has expired; renew it, or set this machine's clock".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the server's certificate is not valid yet; set this machine's clock".to_owned()
        }
        // `webpki` reports this error in its own type, which is not public here.
        CertificateError::Other(other) if format!("{other:?}").contains("CaUsedAsEndEntity") => {
            "the server's certificate is one of an authority, as `openssl req -x509` makes by default (CaUsedAsEndEntity); make it with \
             `-addext basicConstraints=critical,CA:FALSE`, or have an authority issue it"
                .to_owned()
        }
        _ => return None,
    })
}

/// Returns the system's authorities. `SSL_CERT_FILE` and `SSL_CERT_DIR` name their files; otherwise the platform
/// does.
fn roots_of_the_system() -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    // Some certificates of the system's store may be unreadable. The others still count.
    roots.add_parsable_certificates(found.certs);
    if !roots.is_empty() {
        return Ok(roots);
    }
    let why = found.errors.first().map(|error| format!(" ({error})")).unwrap_or_default();
    Err(bad(&format!(
        "the system has no certificate authority{why}: set SSL_CERT_FILE, add ca_file= to the URL, or use \
         TlsBuilder::trust_pem"
    )))
}

/// Reads a file, which the error calls `what`.
fn read_file(what: &str, path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|error| {
        let detail = format!("the {what} {} cannot be read: {}", path.display(), said(&error));
        bad(&detail).because_of_io(error)
    })
}

fn roots_in(pem: &[u8]) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(pem)? {
        roots.add(authority).map_err(|error| wrong("an authority cannot be used", error))?;
    }
    Ok(roots)
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let certificates = certificates.map_err(|error| wrong("a certificate is not valid PEM", error))?;
    if certificates.is_empty() { Err(bad("the PEM text holds no certificate")) } else { Ok(certificates) }
}

fn wrong(what: &str, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    bad(&format!("{what}: {error}")).because_of(error)
}

fn bad(what: &str) -> Error {
    Error::step(ErrorKind::Config, "use the TLS settings", "", what.to_owned())
}

/// Never shows the private key.
impl fmt::Debug for TlsBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsBuilder").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}

impl fmt::Debug for TlsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsConfig").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}
