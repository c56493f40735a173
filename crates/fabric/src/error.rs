//! The crate's one error type and the names of libfabric's error numbers.

use std::ffi::CStr;

use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

use crate::ffi;
use crate::operation::OpKind;
use crate::provider::Provider;

/// What went wrong, to what, and what can be done about it. Cheap to clone, as one broken connection
/// may end many operations.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// No usable provider, or not the one that was asked for.
    #[error(
        "no usable fabric provider{}{}; this host offers: {available}",
        .wanted.as_deref().map(|name| format!(" named {name:?}")).unwrap_or_default(),
        .source_address.as_deref().map(|host| format!(" on address {host:?} (is it one of this host's?)")).unwrap_or_default()
    )]
    NoProvider {
        /// The name that was asked for, if any.
        wanted: Option<String>,
        /// The local address that was asked for, if any.
        source_address: Option<String>,
        /// What libfabric offers here, comma-separated.
        available: String,
    },
    /// A peer's fabric address cannot be one of this provider.
    #[error("not a fabric address of provider {provider}: {reason}; do both nodes use the same provider?")]
    InvalidAddress {
        /// The provider whose address was expected.
        provider: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The peer was disconnected, died, or closed the connection while the operation was under way.
    #[error("{operation} failed: the peer is gone ({text})")]
    PeerGone {
        /// What was being done.
        operation: OpKind,
        /// The provider's words, or why the peer counts as gone.
        text: String,
    },
    /// The peer cannot be connected to: refused, no route, timed out.
    #[error("{operation} failed: the peer cannot be reached ({text}); is it running, and is its port open?")]
    Unreachable {
        /// What was being done.
        operation: OpKind,
        /// The provider's words.
        text: String,
    },
    /// A message was longer than the buffer posted for it.
    #[error("a message did not fit the receive buffer of {capacity} bytes ({text})")]
    Truncated {
        /// Bytes the buffer holds.
        capacity: usize,
        /// The provider's words.
        text: String,
    },
    /// The peer refused access to its memory: wrong key, outside the region, or not permitted.
    #[error("{operation} refused by the peer's memory protection ({text}); fetch a fresh region key")]
    BadKey {
        /// What was being done.
        operation: OpKind,
        /// The provider's words.
        text: String,
    },
    /// A range does not lie within its region; nothing was sent.
    #[error("{operation}: bytes {offset}..+{len} lie outside a region of {limit} bytes")]
    OutOfBounds {
        /// What was being done.
        operation: OpKind,
        /// First byte asked for.
        offset: u64,
        /// Number of bytes asked for.
        len: u64,
        /// Length of the region.
        limit: u64,
    },
    /// One operation asks for more bytes than the provider moves at once; nothing was sent.
    #[error("{operation} of {len} bytes exceeds the provider's limit of {limit}; split it")]
    TooLong {
        /// What was being done.
        operation: OpKind,
        /// Bytes asked for.
        len: usize,
        /// Bytes possible.
        limit: usize,
    },
    /// This process may not lock as much memory as the provider has to.
    #[error(
        "{call} failed: {provider} locks the memory that it uses, and this process may lock {limit} bytes in \
         all; raise that (`ulimit -l unlimited` as root before the start, LimitMEMLOCK=infinity in a systemd \
         unit), or register less"
    )]
    NoMemlock {
        /// What was being done.
        call: String,
        /// The provider.
        provider: String,
        /// The limit (RLIMIT_MEMLOCK), in bytes.
        limit: u64,
    },
    /// The provider cannot do what was asked.
    #[error("provider {provider} does not support {feature}")]
    Unsupported {
        /// The provider.
        provider: String,
        /// What it lacks.
        feature: &'static str,
    },
    /// The endpoint was closed with the operation under way.
    #[error("{operation} ended: its endpoint was closed")]
    Closed {
        /// What was being done.
        operation: OpKind,
    },
    /// Any other failure, in the provider's own words.
    #[error("{operation} failed: {text} ({name}, code {code})")]
    Provider {
        /// What was being done: an operation or a libfabric call.
        operation: String,
        /// libfabric's positive error number.
        code: i32,
        /// Its symbolic name.
        name: &'static str,
        /// The provider's words.
        text: String,
    },
}

impl FabricError {
    /// The failure of a libfabric call that returned `code` (negative, as the library returns them).
    pub(crate) fn call(call: &str, code: impl Into<i64>) -> Self {
        let code = positive(code.into());
        FabricError::Provider {
            operation: call.to_owned(),
            code,
            name: error_name(code),
            text: describe(code),
        }
    }

    /// The failure of a call for which an RDMA device needs memory: may be for the limit of locked memory.
    pub(crate) fn locking(call: &str, code: i32, provider: &Provider) -> Self {
        match memlock_limit() {
            Some(limit) if code == -libc::ENOMEM && provider.is_rdma() => {
                FabricError::NoMemlock { call: call.to_owned(), provider: provider.name().to_owned(), limit }
            }
            _ => FabricError::call(call, code),
        }
    }

    /// The failure of an operation, sorted into what a caller can act upon.
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
            code if operation == OpKind::Receive
                && (code == ffi::PLASMON_ETRUNC || code == libc::EMSGSIZE) =>
            {
                FabricError::Truncated { capacity, text }
            }
            code => {
                FabricError::Provider { operation: operation.to_string(), code, name: error_name(code), text }
            }
        }
    }
}

/// How much this process may lock, unless it may lock everything.
fn memlock_limit() -> Option<u64> {
    let exempt = capabilities(None).is_ok_and(|own| own.effective.contains(CapabilitySet::IPC_LOCK));
    getrlimit(Resource::Memlock).current.filter(|_| !exempt)
}

/// libfabric returns negative numbers; errors name them positively.
pub(crate) fn positive(code: i64) -> i32 {
    i32::try_from(code.unsigned_abs()).unwrap_or(i32::MAX)
}

/// `fi_strerror` of a positive error number.
pub(crate) fn describe(code: i32) -> String {
    // SAFETY: fi_strerror takes any number and returns a static string or null.
    let text = unsafe { ffi::fi_strerror(code) };
    // SAFETY: a non-null result is a terminated string with static lifetime.
    unsafe { string(text) }.unwrap_or_else(|| "unknown error".to_owned())
}

/// Copies a C string that may be null.
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

/// The symbolic name of a positive error number.
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
