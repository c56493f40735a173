//! The crate's one error type, and the names of libfabric's error numbers.
//!
//! Owns no state. Any thread may make errors. Invariants: a code that libfabric returns is negative, a code
//! that an error carries is positive; a failed operation is sorted into a variant that a caller can act
//! upon.

use std::ffi::CStr;

use crate::libfabric::{self, ffi};
use crate::names::OpKind;

/// Error number of a message that is longer than its receive buffer.
pub(crate) const TRUNCATED: i32 = ffi::PLASMON_ETRUNC;

/// Error of the fabric, with its object and a remedy in the text. Errors are cheap to clone, because one
/// broken connection may end many operations.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// libfabric cannot be loaded.
    #[error(
        "libfabric cannot be used: {0}; install libfabric 1.17 or newer (Debian's package libfabric1), or \
         choose another one"
    )]
    NoLibrary(String),
    /// There is no usable provider, or the provider that was asked for is not there.
    #[error(
        "no usable fabric provider{}{}; this host offers: {available}",
        .wanted.as_deref().map(|name| format!(" named {name:?}")).unwrap_or_default(),
        .source_address
            .as_deref()
            .map(|host| format!(" on address {host:?} (is it one of this host's?)"))
            .unwrap_or_default()
    )]
    NoProvider {
        /// Provider name that was asked for, if any.
        wanted: Option<String>,
        /// Local address that was asked for, if any.
        source_address: Option<String>,
        /// Names of the providers that libfabric offers here, comma-separated.
        available: String,
    },
    /// A peer's fabric address cannot be an address of this provider.
    #[error("not a fabric address of provider {provider}: {reason}; do both nodes use the same provider?")]
    InvalidAddress {
        /// Provider whose address was expected.
        provider: String,
        /// Fault of the address.
        reason: String,
    },
    /// The peer was disconnected, died, or closed the connection while the operation was under way.
    #[error("{operation} failed: the peer is gone ({text})")]
    PeerGone {
        /// Kind of the operation that failed.
        operation: OpKind,
        /// Message of the provider, or the reason why the peer counts as gone.
        text: String,
    },
    /// The peer cannot be connected to: the connection was refused, has no route, or timed out.
    #[error("{operation} failed: the peer cannot be reached ({text}); is it running, and is its port open?")]
    Unreachable {
        /// Kind of the operation that failed.
        operation: OpKind,
        /// Message of the provider.
        text: String,
    },
    /// A message was longer than the buffer posted for it.
    #[error("a message did not fit the receive buffer of {capacity} bytes ({text})")]
    Truncated {
        /// Length of the buffer in bytes.
        capacity: usize,
        /// Message of the provider.
        text: String,
    },
    /// The peer refused access to its memory: the key is wrong, the range is outside the region, or the
    /// region does not permit the access.
    #[error("{operation} refused by the peer's memory protection ({text}); fetch a fresh region key")]
    BadKey {
        /// Kind of the operation that failed.
        operation: OpKind,
        /// Message of the provider.
        text: String,
    },
    /// A range does not lie within its region. Nothing was sent.
    #[error("{operation}: bytes {offset}..+{len} lie outside a region of {limit} bytes")]
    OutOfBounds {
        /// Kind of the operation that failed.
        operation: OpKind,
        /// First byte asked for, counted from the start of the region.
        offset: u64,
        /// Number of bytes asked for.
        len: u64,
        /// Length of the region in bytes.
        limit: u64,
    },
    /// One operation asks for more bytes than the provider moves at once. Nothing was sent.
    #[error("{operation} of {len} bytes exceeds the provider's limit of {limit}; split it")]
    TooLong {
        /// Kind of the operation that failed.
        operation: OpKind,
        /// Number of bytes asked for.
        len: usize,
        /// Largest number of bytes that is possible.
        limit: usize,
    },
    /// This process may not lock as much memory as the provider has to lock.
    #[error(
        "{call} failed: {provider} locks the memory that it uses, and this process may lock {limit} bytes in \
         all; raise that (`ulimit -l unlimited` as root before the start, LimitMEMLOCK=infinity in a systemd \
         unit), or register less"
    )]
    NoMemlock {
        /// libfabric call that failed.
        call: String,
        /// Provider that locks the memory.
        provider: String,
        /// Limit of locked memory (RLIMIT_MEMLOCK) in bytes.
        limit: u64,
    },
    /// The provider does not support the operation.
    #[error("provider {provider} does not support {feature}")]
    Unsupported {
        /// Provider that was asked.
        provider: String,
        /// Feature that the provider lacks.
        feature: &'static str,
    },
    /// The endpoint was closed while the operation was under way.
    #[error("{operation} ended: its endpoint was closed")]
    Closed {
        /// Kind of the operation that failed.
        operation: OpKind,
    },
    /// Any other failure, with the provider's message.
    #[error("{operation} failed: {text} ({name}, code {code})")]
    Provider {
        /// Operation or libfabric call that failed.
        operation: String,
        /// Error number of libfabric, positive.
        code: i32,
        /// Symbolic name of the error number.
        name: &'static str,
        /// Message of the provider.
        text: String,
    },
}

impl FabricError {
    /// Makes the error of the libfabric function `call` that returned `code`. Codes of libfabric are
    /// negative.
    pub(crate) fn call(call: &str, code: impl Into<i64>) -> Self {
        let code = positive(code.into());
        FabricError::Provider {
            operation: call.to_owned(),
            code,
            name: error_name(code),
            text: describe(code),
        }
    }

    /// Makes the error of a failed operation, sorted by what a caller can do about the failure. `code` is
    /// positive; `capacity` is the length of the operation's buffer in bytes.
    pub(crate) fn operation(operation: OpKind, code: i32, text: String, capacity: usize) -> Self {
        match code {
            libc::ECONNREFUSED | libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EHOSTDOWN => {
                FabricError::Unreachable { operation, text }
            }
            libc::ETIMEDOUT
            | libc::ECONNRESET
            | libc::ECONNABORTED
            | libc::ENOTCONN
            | libc::EPIPE
            | libc::ESHUTDOWN
            | libc::ECANCELED => FabricError::PeerGone { operation, text },
            libc::EACCES | libc::EPERM | libc::EKEYREJECTED => FabricError::BadKey { operation, text },
            code if code == ffi::PLASMON_ENOKEY => FabricError::BadKey { operation, text },
            code if operation == OpKind::Receive && (code == TRUNCATED || code == libc::EMSGSIZE) => {
                FabricError::Truncated { capacity, text }
            }
            code => {
                FabricError::Provider { operation: operation.to_string(), code, name: error_name(code), text }
            }
        }
    }
}

/// Returns the positive error number of `code`, which libfabric returned as a negative number.
pub(crate) fn positive(code: i64) -> i32 {
    i32::try_from(code.unsigned_abs()).unwrap_or(i32::MAX)
}

/// Returns the text for a positive error number: that of libfabric, if libfabric is loaded.
pub(crate) fn describe(code: i32) -> String {
    libfabric::describe(code).unwrap_or_else(|| "unknown error".to_owned())
}

/// Copies a C string. Returns `None` for a null pointer.
///
/// # Safety
/// `text` is null or points to a terminated string that stays valid during the call.
pub(crate) unsafe fn string(text: *const std::ffi::c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: checked not null; the caller vouches for the rest.
    Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// Returns the symbolic name of a positive error number.
fn error_name(code: i32) -> &'static str {
    match code {
        libc::EPERM => "EPERM",
        libc::ENOENT => "ENOENT",
        libc::EINTR => "EINTR",
        libc::EIO => "EIO",
        libc::EBADF => "EBADF",
        libc::EAGAIN => "EAGAIN",
        libc::ENOMEM => "ENOMEM",
        libc::EACCES => "EACCES",
        libc::EFAULT => "EFAULT",
        libc::EBUSY => "EBUSY",
        libc::ENODEV => "ENODEV",
        libc::EINVAL => "EINVAL",
        libc::EMFILE => "EMFILE",
        libc::ENOSPC => "ENOSPC",
        libc::EPIPE => "EPIPE",
        libc::ENOSYS => "ENOSYS",
        libc::ENODATA => "ENODATA",
        libc::EREMOTEIO => "EREMOTEIO",
        libc::EMSGSIZE => "EMSGSIZE",
        libc::EPROTO => "EPROTO",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        libc::EADDRINUSE => "EADDRINUSE",
        libc::EADDRNOTAVAIL => "EADDRNOTAVAIL",
        libc::ENETDOWN => "ENETDOWN",
        libc::ENETUNREACH => "ENETUNREACH",
        libc::ECONNABORTED => "ECONNABORTED",
        libc::ECONNRESET => "ECONNRESET",
        libc::ENOTCONN => "ENOTCONN",
        libc::ESHUTDOWN => "ESHUTDOWN",
        libc::ETIMEDOUT => "ETIMEDOUT",
        libc::ECONNREFUSED => "ECONNREFUSED",
        libc::EHOSTUNREACH => "EHOSTUNREACH",
        libc::ECANCELED => "ECANCELED",
        256 => "FI_EOTHER",
        257 => "FI_ETOOSMALL",
        258 => "FI_EOPBADSTATE",
        259 => "FI_EAVAIL",
        260 => "FI_EBADFLAGS",
        261 => "FI_ENOEQ",
        262 => "FI_EDOMAIN",
        263 => "FI_ENOCQ",
        264 => "FI_ECRC",
        265 => "FI_ETRUNC",
        266 => "FI_ENOKEY",
        267 => "FI_ENOAV",
        268 => "FI_EOVERRUN",
        269 => "FI_ENORX",
        270 => "FI_ENOMR",
        _ => "unnamed",
    }
}
