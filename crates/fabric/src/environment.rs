//! libfabric's tunables that Plasmon needs, set once before the library first looks at them.
//!
//! libfabric reads its parameters from the environment when its providers are initialised, which the
//! first `fi_getinfo` does. A variable that the user has set is not touched, but for those without which
//! data would be wrong.

use std::env;
use std::fs;
use std::sync::Once;

/// Name, value and reason of a default.
type Default = (&'static str, &'static str, &'static str);

/// Set whatever the user said. A registration that the provider keeps after its region is gone still lets
/// peers in, and reaches the former pages when others are mapped in their place: libfabric notices that
/// only where memory is unmapped through the C library.
const REQUIRED: [Default; 1] =
    [("FI_MR_CACHE_MAX_COUNT", "0", "registrations end with their regions, and are made once anyway")];

/// What holds everywhere.
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

const WITHOUT_RDMA: [Default; 1] =
    [("FI_UNIVERSE_SIZE", "4096", "sizes shared queues; must exceed the number of nodes")];

/// On verbs, ofi_rxm makes one completion queue of universe x send queue + receives entries, and a device
/// that has fewer refuses (EINVAL). The smallest limit known is Soft-RoCE's 32,767. As no connection has more
/// under way than its send queue holds, the queue cannot overflow while there are no more peers than that.
const WITH_RDMA: [Default; 2] = [
    ("FI_UNIVERSE_SIZE", "768", "768 x 40 + 1024 completions are what every RDMA device has"),
    ("FI_OFI_RXM_MSG_TX_SIZE", "40", "operations under way to a peer; see FI_UNIVERSE_SIZE"),
];

/// Sets the defaults. Called before every `fi_getinfo`, acts once a process.
///
/// Setting an environment variable races with other threads that read it through C. Choose a provider
/// early, before threads that do so are started, or set these variables yourself.
pub(crate) fn set_defaults() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Verbs is chosen then, if it works.
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

/// The RDMA devices that the kernel knows, whether or not libfabric can use them.
pub fn devices() -> Vec<String> {
    let entries = fs::read_dir("/sys/class/infiniband").into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// The link of an RDMA device, such as ACTIVE or DOWN: of its best port, if it has several; nothing if the kernel knows
/// no such device. May wait for the device.
pub fn link(device: &str) -> Option<String> {
    let ports = fs::read_dir(format!("/sys/class/infiniband/{device}/ports")).ok()?.flatten();
    let states = ports.filter_map(|port| {
        let text = |path: &str| Some(fs::read_to_string(port.path().join(path)).ok()?.trim().to_owned());
        // Asking the device itself has some drivers complain to the kernel's log every time.
        if let Some(interface) = text("gid_attrs/ndevs/0") {
            let carrier = fs::read_to_string(format!("/sys/class/net/{interface}/carrier"));
            return Some(
                if carrier.is_ok_and(|carrier| carrier.trim() == "1") { "ACTIVE" } else { "DOWN" }.to_owned(),
            );
        }
        // Such as `4: ACTIVE`.
        let state = text("state")?;
        Some(state.split_once(": ").map_or(state.as_str(), |(_, name)| name).to_owned())
    });
    let states: Vec<_> = states.collect();
    states.iter().find(|state| *state == "ACTIVE").or(states.first()).cloned()
}
