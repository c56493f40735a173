//! The guard of control connections: without a secret it admits all, with one only nodes that know the
//! cluster's secret. A guard owns the node's certificate and secret. Control thread.
//!
//! With a secret, a connection is TLS 1.3, by rustls. If certificates were given, each end requires that the
//! given authority vouches for the other's certificate. Otherwise every node makes itself a certificate at
//! its start, which proves nothing; then each end proves that it knows the secret, the end that connected
//! first. The proof is a hash, keyed with the secret, of a value that TLS derives for this connection alone
//! (the exporter, RFC 8446, 7.5). An attacker in the middle has two connections with two such values, and can
//! use the proof of one on neither.
//!
//! ```text
//! asking -> answering   32 bytes   its proof
//! answering -> asking   33 bytes   1 and its proof, or 0 and zeros
//! ```
//!
//! The first proof goes to an end that has not proved anything yet, and an attacker could try secrets on it.
//! Therefore a secret has to be long and random. Nothing else that is made of the secret goes to an end that
//! has not proved that it knows the secret.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    AlertDescription, ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::messages::Wire;
use super::secret::{End, PROOF_LEN, Secret, SecretError};
use crate::config::TlsConfig;

const EXPORTER: &[u8] = b"EXPORTER-plasmon-control";
/// Longest time that either end may take to prove that it knows the secret.
const PROOF_PATIENCE: Duration = Duration::from_secs(5);

const YES: u8 = 1;
const NO: u8 = 0;

/// Why a node cannot guard its connections.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// The secret cannot be used.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// A file with a certificate or a key cannot be used.
    #[error("cannot use {path} for TLS: {reason}")]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The fault of the file.
        reason: String,
    },
    /// TLS cannot be set up.
    #[error("cannot set up TLS: {0}")]
    Tls(String),
}

/// Why a connection was not admitted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Turned {
    /// The connection broke, or took too long.
    #[error("{0}")]
    Broken(#[from] io::Error),
    /// The other end knows another secret, or none.
    #[error("{0}")]
    Away(String),
}

/// The guard of a node, which admits all its connections.
#[derive(Clone)]
pub(crate) enum Guard {
    /// All connections are admitted: there is no secret, and only this host can connect.
    Open,
    /// Only nodes that know the secret are admitted.
    Closed(Arc<Closed>),
}

/// The secret and the TLS configuration of a node with a secret.
pub(crate) struct Closed {
    secret: Secret,
    acceptor: TlsAcceptor,
    connector: TlsConnector,
}

impl Guard {
    /// Makes a guard; without a secret it admits all connections.
    pub(crate) fn new(secret: Option<Secret>, tls: Option<&TlsConfig>) -> Result<Self, GuardError> {
        let Some(secret) = secret else { return Ok(Self::Open) };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let (server, client) = match tls {
            Some(files) => given(files, provider)?,
            None => self_made(provider)?,
        };
        Ok(Self::Closed(Arc::new(Closed {
            secret,
            acceptor: TlsAcceptor::from(Arc::new(server)),
            connector: TlsConnector::from(Arc::new(client)),
        })))
    }

    /// The secret, if there is one.
    pub(crate) fn secret(&self) -> Option<&Secret> {
        match self {
            Self::Open => None,
            Self::Closed(closed) => Some(&closed.secret),
        }
    }

    /// Checks a node that has connected, and admits it.
    pub(crate) async fn accept(&self, stream: TcpStream) -> Result<Wire, Turned> {
        let Self::Closed(closed) = self else { return Ok(Wire::new(stream)) };
        timed(closed.accept(stream)).await
    }

    /// Connects to a node at `host:port`.
    pub(crate) async fn connect(&self, address: &str) -> Result<Wire, Turned> {
        let stream = TcpStream::connect(address).await?;
        let Self::Closed(closed) = self else { return Ok(Wire::new(stream)) };
        timed(closed.connect(stream, address)).await
    }
}

impl Closed {
    async fn accept(&self, stream: TcpStream) -> Result<Wire, Turned> {
        nodelay(&stream);
        let mut stream = self.acceptor.accept(stream).await.map_err(|error| {
            Turned::Away(match tls_error(&error) {
                Some(rustls::Error::InvalidMessage(_)) => {
                    "it uses no secret, and this cluster does: give it \
                                                           the cluster's with --secret-file"
                        .into()
                }
                _ => in_words(&error),
            })
        })?;
        let exporter = stream.get_ref().1.export_keying_material([0; 32], EXPORTER, None);
        let exporter = exporter.map_err(io::Error::other)?;
        let mut proof = [0; PROOF_LEN];
        stream.read_exact(&mut proof).await?;
        // Hashes are compared in constant time.
        if self.secret.proof(End::Asking, &exporter) != blake3::Hash::from(proof) {
            stream.write_all(&[NO; 1 + PROOF_LEN]).await?;
            stream.shutdown().await?;
            return Err(Turned::Away("it has another secret than this cluster".into()));
        }
        let own = self.secret.proof(End::Answering, &exporter);
        stream.write_all(&[&[YES][..], own.as_bytes()].concat()).await?;
        stream.flush().await?;
        Ok(Wire::new(stream))
    }

    async fn connect(&self, stream: TcpStream, address: &str) -> Result<Wire, Turned> {
        nodelay(&stream);
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| Turned::Away(format!("{host:?} is not a valid name for a certificate")))?;
        let mut stream = self.connector.connect(name, stream).await.map_err(|error| {
            use rustls::Error::{AlertReceived, InvalidMessage};
            // An alert that the other end's [`Wire::turn_tls_away`] has sent, or a message without TLS.
            if let Some(AlertReceived(AlertDescription::AccessDenied) | InvalidMessage(_)) = tls_error(&error)
            {
                return Turned::Away(format!(
                    "this node uses a secret, and the cluster at {address} does not: start this node \
                     without --secret-file, or all nodes of the cluster with one secret"
                ));
            }
            io::Error::new(error.kind(), format!("no TLS with {address}: {}", in_words(&error))).into()
        })?;
        let exporter = stream.get_ref().1.export_keying_material([0; 32], EXPORTER, None);
        let exporter = exporter.map_err(io::Error::other)?;
        // With TLS 1.3, the other end can reject this end's certificate only now.
        let turned = |error: io::Error| match error.kind() {
            io::ErrorKind::InvalidData => {
                Turned::Away(format!("{address} turns this node's certificate away: {}", in_words(&error)))
            }
            _ => error.into(),
        };
        stream.write_all(self.secret.proof(End::Asking, &exporter).as_bytes()).await.map_err(turned)?;
        stream.flush().await.map_err(turned)?;
        let mut answer = [0; 1 + PROOF_LEN];
        stream.read_exact(&mut answer).await.map_err(turned)?;
        let [said, proof @ ..] = answer;
        if said != YES {
            return Err(Turned::Away(format!("the cluster at {address} has another secret than this node")));
        }
        if self.secret.proof(End::Answering, &exporter) != blake3::Hash::from(proof) {
            return Err(Turned::Away(format!("{address} does not know the cluster's secret")));
        }
        Ok(Wire::new(stream))
    }
}

async fn timed(through: impl Future<Output = Result<Wire, Turned>>) -> Result<Wire, Turned> {
    let late =
        || io::Error::new(io::ErrorKind::TimedOut, "it took too long to prove that it knows the secret");
    timeout(PROOF_PATIENCE, through).await.unwrap_or_else(|_| Err(late().into()))
}

/// Returns the reason why there is no TLS with the other end, with the words of the library in brackets.
fn in_words(error: &io::Error) -> String {
    use rustls::Error::{AlertReceived, InvalidCertificate, NoCertificatesPresented, PeerIncompatible};
    let words = match (tls_error(error), error.kind()) {
        (Some(InvalidCertificate(_)), _) => {
            "this node's --tls-ca does not vouch for its certificate, or not now or not for this address"
        }
        (Some(NoCertificatesPresented), _) => {
            "it shows no certificate, and this node was started with some: start all nodes with --tls-cert, \
             --tls-key and --tls-ca, or none"
        }
        (Some(AlertReceived(AlertDescription::CertificateRequired)), _) => {
            "it wants a certificate: start this node with --tls-cert, --tls-key and --tls-ca"
        }
        (Some(AlertReceived(_)), _) => "it refuses what this node shows, and its log says why",
        (Some(PeerIncompatible(_)), _) => "it does not speak TLS 1.3",
        (Some(_), _) => "it does not speak TLS as a node does",
        (None, io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) => {
            "it closed the connection; is it a node, and does its cluster have a secret?"
        }
        (None, _) => "the connection failed",
    };
    format!("{words} ({error})")
}

/// The error of TLS inside an I/O error, if TLS failed.
fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// Sets TCP_NODELAY: without it, short messages are delayed. A socket that cannot have it still works.
pub(crate) fn nodelay(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
}

const TLS13: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13];

/// The configuration with certificates for which an authority vouches.
fn given(
    files: &TlsConfig,
    provider: Arc<CryptoProvider>,
) -> Result<(ServerConfig, ClientConfig), GuardError> {
    let of = |path: &PathBuf, reason: String| GuardError::File { path: path.clone(), reason };
    let certificates = |path: &PathBuf| {
        let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        match read {
            Ok(found) if found.is_empty() => Err(of(path, "it has no certificate in PEM".into())),
            found => found.map_err(|error| of(path, error.to_string())),
        }
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&files.ca)? {
        roots.add(certificate).map_err(|error| of(&files.ca, error.to_string()))?;
    }
    let roots = Arc::new(roots);
    let chain = certificates(&files.cert)?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| of(&files.key, error.to_string()))?;
    let wrong = |error: rustls::Error| of(&files.cert, error.to_string());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
        .build()
        .map_err(|error| of(&files.ca, error.to_string()))?;
    let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(TLS13)
        .map_err(tls)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain.clone(), key.clone_key())
        .map_err(wrong)?;
    let client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(TLS13)
        .map_err(tls)?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map_err(wrong)?;
    Ok((server, client))
}

/// Makes a configuration with a new certificate, for which nobody vouches: the proofs show that the other end
/// knows the secret.
fn self_made(provider: Arc<CryptoProvider>) -> Result<(ServerConfig, ClientConfig), GuardError> {
    let made = rcgen::generate_simple_self_signed(["plasmon".to_owned()])
        .map_err(|error| GuardError::Tls(error.to_string()))?;
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(TLS13)
        .map_err(tls)?
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.into()], key)
        .map_err(tls)?;
    let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(TLS13)
        .map_err(tls)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        .with_no_client_auth();
    Ok((server, client))
}

fn tls(error: rustls::Error) -> GuardError {
    GuardError::Tls(error.to_string())
}

/// A verifier that accepts every certificate. The other end must still have the certificate's key, and the
/// proofs are bound to what the two ends have agreed on.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("only TLS 1.3 is spoken here".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::control::messages::FromNode;

    fn guard(secret: &[u8]) -> Guard {
        Guard::new(Some(Secret::new(secret)), None).unwrap()
    }

    /// Joins two guards by a connection; returns the results of both ends.
    async fn meet(asking: Guard, answering: Guard) -> (Result<Wire, Turned>, Result<Wire, Turned>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let answer = async { answering.accept(listener.accept().await.unwrap().0).await };
        tokio::join!(asking.connect(&address), answer)
    }

    fn run<T>(test: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
    }

    #[test]
    fn who_knows_the_secret_is_let_through() {
        run(async {
            for (asking, answering) in [(Guard::Open, Guard::Open), (guard(b"one"), guard(b"one"))] {
                let (asking, answering) = meet(asking, answering).await;
                let (mut asking, mut answering) = (asking.unwrap(), answering.unwrap());
                asking.send(&FromNode::Heartbeat).await.unwrap();
                assert!(matches!(answering.receive().await.unwrap(), Some(FromNode::Heartbeat)));
            }
        });
    }

    #[test]
    fn who_knows_another_one_is_not_and_both_are_told() {
        run(async {
            let (asking, answering) = meet(guard(b"one"), guard(b"other")).await;
            assert!(matches!(asking, Err(Turned::Away(reason)) if reason.contains("another secret")));
            assert!(matches!(answering, Err(Turned::Away(reason)) if reason.contains("another secret")));
        });
    }

    #[test]
    fn who_speaks_no_tls_is_turned_away() {
        run(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let closed = guard(b"one");
            let answer = async { closed.accept(listener.accept().await.unwrap().0).await };
            let ask = async {
                let mut stream = TcpStream::connect(address).await.unwrap();
                stream.write_all(b"\0\0\0\x0b\"Heartbeat\"").await.unwrap();
                // The client is told that this is not TLS.
                let mut rest = Vec::new();
                let _ = stream.read_to_end(&mut rest).await;
            };
            let (answer, ()) = tokio::join!(answer, ask);
            assert!(matches!(answer, Err(Turned::Away(reason)) if reason.contains("it uses no secret")));
        });
    }

    /// The attacker passes on the bytes of both ends, which mean nothing on its own connections.
    #[test]
    fn somebody_in_the_middle_is_found_out() {
        run(async {
            let (true_one, own) = (guard(b"one"), guard(b"one"));
            let Guard::Closed(middle) = guard(b"who knows") else { unreachable!() };
            let far = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let near = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let (to_far, to_near) = (far.local_addr().unwrap(), near.local_addr().unwrap().to_string());
            let relay = async {
                let mut asking = middle.acceptor.accept(near.accept().await.unwrap().0).await.unwrap();
                let name = ServerName::try_from("127.0.0.1").unwrap();
                let stream = TcpStream::connect(to_far).await.unwrap();
                let mut answering = middle.connector.connect(name, stream).await.unwrap();
                let mut proof = [0; PROOF_LEN];
                asking.read_exact(&mut proof).await.unwrap();
                answering.write_all(&proof).await.unwrap();
                answering.flush().await.unwrap();
                let mut answer = [0; 1 + PROOF_LEN];
                answering.read_exact(&mut answer).await.unwrap();
                // A yes of the attacker's own does not help either.
                answer[0] = YES;
                asking.write_all(&answer).await.unwrap();
                asking.flush().await.unwrap();
            };
            let answer = async { true_one.accept(far.accept().await.unwrap().0).await };
            let (asked, answered, ()) = tokio::join!(own.connect(&to_near), answer, relay);
            assert!(matches!(asked, Err(Turned::Away(reason)) if reason.contains("does not know")));
            assert!(matches!(answered, Err(Turned::Away(reason)) if reason.contains("another secret")));
        });
    }
}
