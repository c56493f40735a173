//! The parameters of libfabric that Plasmon needs, and the RDMA devices that the kernel knows.
//!
//! Owns the environment variables of libfabric, which [`set_defaults`] sets once in a process. Any thread may
//! look at devices; `set_defaults` runs on the thread that first chooses a provider. libfabric reads its
//! parameters from the environment when its providers are initialised, which the first `fi_getinfo` does.
//! Invariant: a variable that the user has set is not touched, except those of [`REQUIRED`], without which
//! data would be wrong.

use std::env;
use std::fs;
use std::sync::Once;

use super::library;

/// Name, value and reason of a libfabric parameter.
type Default = (&'static str, &'static str, &'static str);

/// Parameters that override the user's. A provider that keeps a registration after its region is gone still
/// lets peers access the memory, and reaches the former pages when others are mapped in their place:
/// libfabric notices a new mapping only where memory is unmapped through the C library.
const REQUIRED: [Default; 1] =
    [("FI_MR_CACHE_MAX_COUNT", "0", "registrations end with their regions, and are made once anyway")];

/// Parameters that are set on every host.
const ALWAYS: [Default; 4] = [
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

/// Parameters that are set on hosts without an RDMA device. ofi_rxm opens a completion queue for each
/// endpoint, of universe x 128 + receives entries with 48 bytes each. The queue is a ring. Every entry is
/// written before one is written again, so all of the ring becomes resident, however few entries are in use
/// at a time. tcp keeps completions that find no room in a list, and address vectors grow: there may be more
/// peers.
const WITHOUT_RDMA: [Default; 1] =
    [("FI_UNIVERSE_SIZE", "64", "16,384 completions a queue, 0.8 MB; with 4,096 it is 50 MB an endpoint")];

/// Parameters that are set on hosts with an RDMA device. On verbs, ofi_rxm opens one completion queue of
/// universe x send queue + receives entries, and a device that has fewer entries refuses (EINVAL). The
/// smallest limit known is Soft-RoCE's 32,767 entries. No connection has more operations under way than its
/// send queue holds, so the completion queue cannot overflow while the peers are no more than
/// FI_UNIVERSE_SIZE.
const WITH_RDMA: [Default; 2] = [
    ("FI_UNIVERSE_SIZE", "768", "768 x 40 + 1024 completions are what every RDMA device has"),
    ("FI_OFI_RXM_MSG_TX_SIZE", "40", "operations under way to a peer; see FI_UNIVERSE_SIZE"),
];

/// Directories in which libfabric looks for providers: for a bundled libfabric, its own.
const PROVIDERS: &str = "FI_PROVIDER_PATH";

/// Sets libfabric's parameters. The function is called before every `fi_getinfo` and acts once in a process.
///
/// Setting an environment variable races with other threads that read it through C. Choose a provider
/// early, before threads that do so are started, or set these variables yourself.
pub(crate) fn set_defaults() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if let Some(folder) = library::bundle()
            && env::var_os(PROVIDERS).is_none()
        {
            // SAFETY: as for the variables below.
            unsafe { env::set_var(PROVIDERS, folder) };
        }
        // With a device, verbs is chosen if it works.
        let network: &[Default] = if devices().is_empty() { &WITHOUT_RDMA } else { &WITH_RDMA };
        for (name, value, reason) in REQUIRED.iter().chain(&ALWAYS).chain(network) {
            let theirs = env::var_os(name);
            let required = REQUIRED.iter().any(|(required, ..)| required == name);
            if let Some(theirs) = theirs.as_ref().filter(|theirs| required && *theirs != value) {
                tracing::warn!(name, value, ?theirs, reason, "a setting of libfabric is overridden");
            }
            if theirs.is_none() || required {
                tracing::debug!(name, value, reason, "setting a libfabric default");
                // SAFETY: Rust's own environment lock covers readers in Rust; that no other thread
                // reads the environment through C at this moment is documented as the caller's duty.
                unsafe { env::set_var(name, value) };
            }
        }
    });
}

/// Returns the names of the RDMA devices that the kernel knows, whether or not libfabric can use them.
pub fn devices() -> Vec<String> {
    let entries = fs::read_dir("/sys/class/infiniband").into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Returns the state of the link of an RDMA device, such as ACTIVE or DOWN. A device with several ports has
/// the state of its best port. Returns `None` if the kernel knows no such device. The call may wait for the
/// device.
pub fn link(device: &str) -> Option<String> {
    let ports = fs::read_dir(format!("/sys/class/infiniband/{device}/ports")).ok()?.flatten();
    let states = ports.filter_map(|port| {
        let text = |path: &str| Some(fs::read_to_string(port.path().join(path)).ok()?.trim().to_owned());
        // Some drivers write a message to the kernel's log whenever the device itself is asked.
        if let Some(interface) = text("gid_attrs/ndevs/0") {
            let carrier = fs::read_to_string(format!("/sys/class/net/{interface}/carrier"));
            return Some(
                if carrier.is_ok_and(|carrier| carrier.trim() == "1") { "ACTIVE" } else { "DOWN" }.to_owned(),
            );
        }
        // The text is such as `4: ACTIVE`.
        let state = text("state")?;
        Some(state.split_once(": ").map_or(state.as_str(), |(_, name)| name).to_owned())
    });
    let states: Vec<_> = states.collect();
    states.iter().find(|state| *state == "ACTIVE").or(states.first()).cloned()
}
