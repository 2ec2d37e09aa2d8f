//! Encrypted connections: the checks of the server's certificate that `sslmode` asks for.

use std::error::Error as _;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore,
    SignatureScheme,
};

use crate::error::OpenError;
use crate::target::{Check, Ssl};

/// Returns the configuration of connections with these parameters.
pub(crate) fn config(ssl: &Ssl) -> Result<ClientConfig, OpenError> {
    let wrong = |error: Error| OpenError::Config(error.to_string());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Arc::new(Verifier::new(ssl, provider.clone())?);
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().map_err(wrong)?;
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    let Some((cert, key)) = &ssl.client else { return Ok(builder.with_no_client_auth()) };
    let private = PrivateKeyDer::from_pem_file(Path::new(key));
    let private = private.map_err(|error| OpenError::Config(format!("`sslkey` {key}: {error}")))?;
    let certificates = certificates("sslcert", cert)?;
    let own = |error: Error| OpenError::Config(format!("`sslcert` {cert}, `sslkey` {key}: {error}"));
    builder.with_client_auth_cert(certificates, private).map_err(own)
}

/// Reads the certificates of a file in PEM format.
fn certificates(parameter: &str, file: &str) -> Result<Vec<CertificateDer<'static>>, OpenError> {
    let wrong = |why: String| OpenError::Config(format!("`{parameter}` {file}: {why}"));
    let found = CertificateDer::pem_file_iter(Path::new(file)).map_err(|error| wrong(error.to_string()))?;
    let found: Vec<_> = found.collect::<Result<_, _>>().map_err(|error| wrong(error.to_string()))?;
    if found.is_empty() {
        return Err(wrong("the file contains no certificate in PEM format".to_owned()));
    }
    Ok(found)
}

/// Checks the certificate of a server as far as `sslmode` asks for it.
#[derive(Debug)]
struct Verifier {
    check: Check,
    roots: RootCertStore,
    /// The certificates of `sslrootcert`. The server's own may be one of them.
    named: Vec<CertificateDer<'static>>,
    provider: Arc<CryptoProvider>,
}

impl Verifier {
    fn new(ssl: &Ssl, provider: Arc<CryptoProvider>) -> Result<Self, OpenError> {
        let (mut roots, mut named) = (RootCertStore::empty(), Vec::new());
        match &ssl.root_cert {
            _ if ssl.check == Check::Nothing => {}
            Some(file) => {
                named = certificates("sslrootcert", file)?;
                for certificate in &named {
                    let wrong = |error| OpenError::Config(format!("`sslrootcert` {file}: {error}"));
                    roots.add(certificate.clone()).map_err(wrong)?;
                }
            }
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                if roots.is_empty() {
                    let why = "the system has no certificate authorities: name a file with `sslrootcert`";
                    return Err(OpenError::Config(why.to_owned()));
                }
            }
        }
        Ok(Verifier { check: ssl.check, roots, named, provider })
    }

    /// Returns true if the certificate is trusted itself, and is refused only because it is that of an authority. Many
    /// servers have such a certificate, signed by itself.
    fn is_trusted_itself(&self, certificate: &CertificateDer<'_>, error: &Error) -> bool {
        let Error::InvalidCertificate(CertificateError::Other(why)) = error else { return false };
        why.to_string().contains("CaUsedAsEndEntity") && self.named.iter().any(|named| named == certificate)
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.check == Check::Nothing {
            return Ok(ServerCertVerified::assertion());
        }
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        let roots = &self.roots;
        verify_server_cert_signed_by_trust_anchor(&certificate, roots, intermediates, now, algorithms)
            .or_else(|error| if self.is_trusted_itself(end_entity, &error) { Ok(()) } else { Err(error) })?;
        if self.check == Check::Host {
            verify_server_name(&certificate, server_name)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Returns the parameter to change after a connection has failed because of TLS; `None` for other errors.
pub(crate) fn advice(error: &tokio_postgres::Error) -> Option<&'static str> {
    if error.source().is_some_and(|source| source.to_string() == "server does not support TLS") {
        return Some(
            "`sslmode` demands TLS: switch `ssl` on in the server's postgresql.conf, or use `sslmode=prefer` if the \
             connection may be unencrypted",
        );
    }
    let io = error.source()?.downcast_ref::<std::io::Error>()?;
    match io.get_ref()?.downcast_ref::<Error>()? {
        Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => {
            Some("with `sslmode=verify-full` the host of the URL must be a name in the server's certificate")
        }
        Error::InvalidCertificate(_) => {
            Some("set `sslrootcert` to the file of the authority that has signed the server's certificate")
        }
        Error::AlertReceived(
            AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateRequired
            | AlertDescription::DecryptError,
        ) => Some("the server refuses the certificate of this client: check `sslcert` and `sslkey`"),
        _ => None,
    }
}
