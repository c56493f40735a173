//! The secret of a cluster: a node that knows it may be a member. [`Secret`] owns two keys that are made of
//! it. Any thread.
//!
//! The secret is read once from a file and never leaves the node. One key makes a *proof* for a connection
//! whose two ends share a random value that nobody between them has (TLS's exporter). The other key seals
//! records where others can read them.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use rustix::process::geteuid;

/// Minimum number of bytes of a secret, so that nobody finds it by trying.
const MIN_SECRET_BYTES: usize = 16;
/// Maximum number of bytes of a secret.
const MAX_SECRET_BYTES: usize = 4096;

/// Length of a proof in bytes.
pub(crate) const PROOF_LEN: usize = blake3::OUT_LEN;

/// Context in which the key of proofs is derived from the secret.
const PROVING: &str = "plasmon 2026-11 cluster secret: proof on a control connection";
/// Context in which the key that seals records is derived from the secret.
const SEALING: &str = "plasmon 2026-11 cluster secret: records of members";

/// Why the secret cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file cannot be read.
    #[error(
        "cannot read the cluster's secret from {path}: {source}; `plasmon secret {path}` makes a new one"
    )]
    Read {
        /// The path of the file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Other users may know the secret.
    #[error("{path} has the cluster's secret, and others may read or write it: chmod 0600 {path}")]
    Open {
        /// The path of the file.
        path: PathBuf,
    },
    /// The secret is too short or too long.
    #[error(
        "{path} has {len} bytes: a cluster's secret has {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} of them, \
         drawn at random; `plasmon secret FILE` makes one"
    )]
    Length {
        /// The path of the file.
        path: PathBuf,
        /// Number of bytes of the file, without white space at its ends.
        len: usize,
    },
}

/// An end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The end that connected.
    Asking,
    /// The end that was connected to.
    Answering,
}

/// The keys that are made of a cluster's secret.
pub(crate) struct Secret {
    proving: [u8; 32],
    #[cfg_attr(not(feature = "etcd"), allow(dead_code, reason = "only records in etcd are sealed"))]
    sealing: LessSafeKey,
}

impl Secret {
    /// Reads the secret from a file that only its owner may read.
    pub(crate) fn read(path: &Path) -> Result<Self, SecretError> {
        let fail = |source| SecretError::Read { path: path.to_owned(), source };
        let metadata = fs::metadata(path).map_err(fail)?;
        // A file of root that a daemon of another user reads can only be open to its group.
        let others = if metadata.uid() == 0 && !geteuid().is_root() { 0o027 } else { 0o077 };
        if metadata.mode() & others != 0 {
            return Err(SecretError::Open { path: path.to_owned() });
        }
        let content = fs::read(path).map_err(fail)?;
        let secret = content.trim_ascii();
        match secret.len() {
            MIN_SECRET_BYTES..=MAX_SECRET_BYTES => Ok(Self::new(secret)),
            len => Err(SecretError::Length { path: path.to_owned(), len }),
        }
    }

    pub(crate) fn new(secret: &[u8]) -> Self {
        let sealing = UnboundKey::new(&CHACHA20_POLY1305, &blake3::derive_key(SEALING, secret));
        Self {
            proving: blake3::derive_key(PROVING, secret),
            sealing: LessSafeKey::new(sealing.expect("a key has 32 bytes")),
        }
    }

    /// Returns the proof that only an end which knows the secret can give on the connection with this
    /// exporter. The proofs of the two ends differ, so neither end can repeat what it received.
    pub(crate) fn proof(&self, end: End, exporter: &[u8; 32]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.proving);
        hasher.update(match end {
            End::Asking => b"asking",
            End::Answering => b"answer",
        });
        hasher.update(exporter);
        hasher.finalize()
    }

    /// Seals bytes under a name. Only a node that knows the secret can open them under that name, and only
    /// such a node can have sealed them.
    #[cfg_attr(not(feature = "etcd"), allow(dead_code, reason = "only records in etcd are sealed"))]
    pub(crate) fn seal(&self, name: &str, bytes: &[u8]) -> Vec<u8> {
        let mut nonce = [0; NONCE_LEN];
        getrandom::fill(&mut nonce).expect("the operating system gives random bytes");
        let mut sealed = bytes.to_vec();
        self.sealing
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(name.as_bytes()),
                &mut sealed,
            )
            .expect("a record is far shorter than what can be sealed");
        [&nonce[..], &sealed].concat()
    }

    /// Opens bytes that were sealed under this name; `None` if they were not sealed with this secret.
    #[cfg_attr(not(feature = "etcd"), allow(dead_code, reason = "only records in etcd are sealed"))]
    pub(crate) fn open(&self, name: &str, sealed: &[u8]) -> Option<Vec<u8>> {
        let (nonce, sealed) = sealed.split_first_chunk::<NONCE_LEN>()?;
        let mut bytes = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let len = self.sealing.open_in_place(nonce, Aad::from(name.as_bytes()), &mut bytes).ok()?.len();
        bytes.truncate(len);
        Some(bytes)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn file(content: &[u8], mode: u32) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        (folder, path)
    }

    #[test]
    fn a_secret_is_long_and_its_owners_alone() {
        for (content, mode, good) in [
            (&b"sixteen bytes...\n"[..], 0o600, true),
            (b"sixteen bytes...", 0o400, true),
            (b"fifteen bytes..\n", 0o600, false),
            (b"", 0o600, false),
            (b"sixteen bytes...", 0o640, false),
            (b"sixteen bytes...", 0o604, false),
            (&[7; MAX_SECRET_BYTES + 1], 0o600, false),
        ] {
            let (_folder, path) = file(content, mode);
            assert_eq!(Secret::read(&path).is_ok(), good, "{content:?} {mode:o}");
        }
        assert!(matches!(Secret::read(Path::new("/nonexistent")), Err(SecretError::Read { .. })));
    }

    #[test]
    fn a_proof_is_of_one_secret_one_end_and_one_connection() {
        let (one, other) = (Secret::new(b"one"), Secret::new(b"other"));
        let proof = one.proof(End::Asking, &[1; 32]);
        assert_eq!(proof, Secret::new(b"one").proof(End::Asking, &[1; 32]));
        assert_ne!(proof, one.proof(End::Answering, &[1; 32]));
        assert_ne!(proof, one.proof(End::Asking, &[2; 32]));
        assert_ne!(proof, other.proof(End::Asking, &[1; 32]));
    }

    #[test]
    fn what_was_sealed_is_opened_by_the_same_secret_under_the_same_name() {
        let secret = Secret::new(b"one");
        let sealed = secret.seal("a", b"bytes");
        assert!(!sealed.windows(5).any(|window| window == b"bytes"));
        assert_ne!(sealed, secret.seal("a", b"bytes"), "no two are alike");
        assert_eq!(secret.open("a", &sealed).as_deref(), Some(&b"bytes"[..]));
        assert_eq!(secret.open("b", &sealed), None);
        assert_eq!(Secret::new(b"other").open("a", &sealed), None);
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_eq!(secret.open("a", &changed), None, "byte {at}");
            assert_eq!(secret.open("a", &sealed[..at]), None, "{at} bytes");
        }
    }
}
