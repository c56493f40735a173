//! libfabric's tunables that Plasmon needs, set once before the library first looks at them.
//!
//! libfabric reads its parameters from the environment when its providers are initialised, which the
//! first `fi_getinfo` does. A variable that the user has set is never touched.

use std::env;
use std::sync::Once;

/// Name, value and reason of each default.
const DEFAULTS: [(&str, &str, &str); 5] = [
    ("FI_UNIVERSE_SIZE", "4096", "sizes shared queues; must exceed the number of nodes"),
    ("FI_AV_REMOVE_CLEANUP", "1", "forgetting a peer closes its connection and ends its operations"),
    ("FI_OFI_RXM_USE_SRX", "1", "one shared receive queue: memory does not grow with the peers"),
    ("FI_OFI_RXM_MSG_RX_SIZE", "1024", "16 MiB of receive buffers an endpoint instead of 64"),
    (
        "FI_OFI_RXM_CM_PROGRESS_INTERVAL",
        "1000",
        "microseconds until a poll looks for connections again; at 10,000 the first operation takes \
         20 ms longer, and a sleeper that is woken by a connection spins as long",
    ),
];

/// Sets the defaults. Called before every `fi_getinfo`, acts once a process.
///
/// Setting an environment variable races with other threads that read it through C. Choose a provider
/// early, before threads that do so are started, or set these variables yourself.
pub(crate) fn set_defaults() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for (name, value, reason) in DEFAULTS {
            if env::var_os(name).is_none() {
                tracing::debug!(name, value, reason, "setting a libfabric default");
                // SAFETY: Rust's own environment lock covers readers in Rust; that no other thread
                // reads the environment through C at this moment is documented as the caller's duty.
                unsafe { env::set_var(name, value) };
            }
        }
    });
}
