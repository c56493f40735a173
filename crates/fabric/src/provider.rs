//! Finds the providers of this host, and chooses one with a reason.
//!
//! Owns libfabric's description (`fi_info`) of each [`Provider`]. A look-up may run on any thread; a
//! `Provider` stays on the thread that made it. Invariants: a look-up opens nothing; every attribute of a
//! `Provider` was checked to be there, so that the accessors read no null pointer.

use std::ffi::{CStr, CString};
use std::fmt;
use std::net::UdpSocket;
use std::ptr::{self, NonNull};
use std::rc::Rc;

use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

use crate::environment;
use crate::error::{FabricError, string};
use crate::ffi;

/// Providers that are chosen without being asked for, best first. `shm` is left out because it serves a
/// single host, `udp` because it is unreliable, `sockets` because it is deprecated, and `net` of 1.17 because
/// it is unstable.
const AUTOMATIC: [Wanted; 4] = [
    Wanted { name: "verbs;ofi_rxm", by_address: true },
    Wanted { name: "efa", by_address: false },
    Wanted { name: "cxi", by_address: false },
    Wanted { name: "tcp;ofi_rxm", by_address: true },
];

/// Provider to look for.
struct Wanted {
    name: &'static str,
    /// Whether an IP address selects the provider's interface.
    by_address: bool,
}

/// Fabric that can be opened: a provider on one of its interfaces.
#[derive(Clone)]
pub struct Provider {
    info: Rc<Info>,
    name: String,
    fabric: String,
    domain: String,
    reason: String,
}

impl Provider {
    /// Name that libfabric gives the provider, such as `tcp;ofi_rxm`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Name of the network that the provider is on.
    pub fn fabric(&self) -> &str {
        &self.fabric
    }

    /// Name of the provider's device or interface.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// Number of the wire protocol. Two nodes can only talk if their numbers are equal.
    pub fn protocol(&self) -> u32 {
        self.endpoint_attributes().protocol
    }

    /// Version of the wire protocol. Two nodes can only talk if their versions are equal.
    pub fn protocol_version(&self) -> u32 {
        self.endpoint_attributes().protocol_version
    }

    /// Reason why the provider was chosen, for logs and people.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Whether the network card moves one-sided data without this host's processor.
    pub fn is_rdma(&self) -> bool {
        !["tcp", "udp", "sockets", "net", "shm"].iter().any(|soft| self.name.starts_with(soft))
    }

    /// Whether reads by one endpoint from one peer take effect in the order in which they were posted: a read
    /// sees memory as it is when the read before it is done, or later. A processor that serves reads takes
    /// them from a connection one by one. A network card may fetch several at a time.
    pub fn reads_in_order(&self) -> bool {
        self.name.starts_with("tcp")
    }

    /// Whether a write may carry an immediate value; see [`Endpoint::write`](crate::Endpoint::write).
    ///
    /// Writes over verbs may not: with a shared receive queue, libfabric (1.17 to 2.6 at least) takes the
    /// arrival of the value for the arrival of a message, and delivers whatever lay in the buffer.
    pub fn carries_immediates(&self) -> bool {
        self.domain_attributes().cq_data_size >= size_of::<u32>() && !self.name.starts_with("verbs")
    }

    /// Whether messages go through ofi_rxm, which builds messages from connections and one-sided reads.
    pub(crate) fn is_layered(&self) -> bool {
        self.name.ends_with(";ofi_rxm")
    }

    /// Whether the provider crashes when a connection is closed during a read: see the module `closing`.
    pub(crate) fn must_read_to_the_end(&self) -> bool {
        self.name.starts_with("tcp") && version() < (1, 18)
    }

    /// Whether a write with data must not carry its immediate value. The *target* of such a write crashes if
    /// it closes the connection with part of the data received: ofi_rxm (1.17 to 2.6 at least) takes the null
    /// context of the write for one of its own. An empty write cannot be received in part, so that the value
    /// follows the data in an empty write.
    pub(crate) fn must_split_writes(&self) -> bool {
        self.name == "tcp;ofi_rxm"
    }

    /// Whether a connection is useless after a failed operation and yet stays open. An RDMA device stops the
    /// queue pair for good, and ofi_rxm is not told (libfabric before 1.18.1; see its pull request 8858).
    pub(crate) fn breaks_connections(&self) -> bool {
        self.name == "verbs;ofi_rxm"
    }

    /// Error of a libfabric function for which an RDMA device needs memory: [`FabricError::NoMemlock`] if the
    /// limit of locked memory may be the cause. `code` is what the function returned.
    pub(crate) fn memory_error(&self, call: &str, code: i32) -> FabricError {
        match memlock_limit() {
            Some(limit) if code == -libc::ENOMEM && self.is_rdma() => {
                FabricError::NoMemlock { call: call.to_owned(), provider: self.name.clone(), limit }
            }
            _ => FabricError::call(call, code),
        }
    }

    /// Description of the provider, as libfabric gave it.
    pub(crate) fn info(&self) -> *mut ffi::fi_info {
        self.info.0.as_ptr()
    }

    /// Attributes that libfabric gives the provider's endpoints.
    pub(crate) fn endpoint_attributes(&self) -> &ffi::fi_ep_attr {
        // SAFETY: fi_getinfo fills every attribute; `usable` has checked that this one is not null.
        unsafe { &*(*self.info()).ep_attr }
    }

    /// Attributes that libfabric gives the provider's domains.
    pub(crate) fn domain_attributes(&self) -> &ffi::fi_domain_attr {
        // SAFETY: fi_getinfo fills every attribute; `usable` has checked that this one is not null.
        unsafe { &*(*self.info()).domain_attr }
    }

    /// Attributes that libfabric gives the sending side of the provider's endpoints.
    pub(crate) fn transmit_attributes(&self) -> &ffi::fi_tx_attr {
        // SAFETY: fi_getinfo fills every attribute; `usable` has checked that this one is not null.
        unsafe { &*(*self.info()).tx_attr }
    }

    /// Copies an entry of libfabric's list, if this crate can work with it.
    fn from_entry(entry: &ffi::fi_info, reason: &dyn Fn(&str) -> String) -> Option<Self> {
        if !usable(entry) {
            return None;
        }
        // SAFETY: `entry` is one of a list that fi_getinfo returned.
        let info = Rc::new(Info(NonNull::new(unsafe { ffi::fi_dupinfo(entry) })?));
        // SAFETY: `usable` has checked both attributes; their names are null or terminated strings.
        let (name, fabric, domain) = unsafe {
            let (fabric, domain) = (&*entry.fabric_attr, &*entry.domain_attr);
            (string(fabric.prov_name)?, string(fabric.name)?, string(domain.name)?)
        };
        let reason = reason(&domain);
        Some(Provider { info, name, fabric, domain, reason })
    }
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provider")
            .field("name", &self.name)
            .field("fabric", &self.fabric)
            .field("domain", &self.domain)
            .field("reason", &self.reason)
            .finish()
    }
}

/// Owner of an `fi_info`, which is freed when the owner is dropped.
struct Info(NonNull<ffi::fi_info>);

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: made by fi_dupinfo, fi_getinfo or fi_allocinfo, and freed only here.
        unsafe { ffi::fi_freeinfo(self.0.as_ptr()) };
    }
}

/// Version of the libfabric found at run time: (major, minor).
pub fn version() -> (u32, u32) {
    // SAFETY: takes no arguments and only reads a constant.
    let version = unsafe { ffi::fi_version() };
    (version >> 16, version & 0xffff)
}

/// Number of bytes that this process may lock. Returns `None` if there is no limit.
fn memlock_limit() -> Option<u64> {
    let exempt = capabilities(None).is_ok_and(|own| own.effective.contains(CapabilitySet::IPC_LOCK));
    getrlimit(Resource::Memlock).current.filter(|_| !exempt)
}

/// Finds the providers that would be chosen automatically, best first. `source` is the address or host name
/// that this node listens on (`127.0.0.1`, `10.0.0.1`). The address selects the interface.
pub fn candidates(source: Option<&str>) -> Result<Vec<Provider>, FabricError> {
    let mut found: Vec<Provider> = Vec::new();
    if !is_ours(source) {
        return Ok(found);
    }
    for wanted in &AUTOMATIC {
        let source = source.filter(|_| wanted.by_address);
        let rdma = !wanted.name.starts_with("tcp");
        let devices = environment::devices().join(", ");
        let reason = |domain: &str| match rdma {
            true => format!("the fastest fabric found: device {domain}"),
            false if devices.is_empty() => format!("no RDMA device here; TCP on {domain} works everywhere"),
            false => format!("no RDMA ({devices}) at this address; TCP on {domain} works everywhere"),
        };
        for provider in query(Some(wanted.name), source, &reason)? {
            let same = |other: &Provider| other.name == provider.name && other.domain == provider.domain;
            if !found.iter().any(same) {
                found.push(provider);
            }
        }
    }
    Ok(found)
}

/// Chooses the provider to use: the provider that `explicit` names, or else the first of [`candidates`]. The
/// names `tcp` and `verbs` stand for `tcp;ofi_rxm` and `verbs;ofi_rxm`.
pub fn choose(explicit: Option<&str>, source: Option<&str>) -> Result<Provider, FabricError> {
    let found = match explicit {
        None => candidates(source)?,
        Some(_) if !is_ours(source) => Vec::new(),
        Some(name) => {
            let name = match name {
                "tcp" => "tcp;ofi_rxm",
                "verbs" => "verbs;ofi_rxm",
                name => name,
            };
            let fixed = AUTOMATIC.iter().any(|wanted| wanted.name == name && !wanted.by_address);
            query(Some(name), source.filter(|_| !fixed), &|_| "asked for by name".to_owned())?
        }
    };
    match found.into_iter().next() {
        Some(provider) => Ok(provider),
        None => Err(FabricError::NoProvider {
            wanted: explicit.map(str::to_owned),
            source_address: source.map(str::to_owned),
            available: available()?,
        }),
    }
}

/// Finds TCP as a second provider beside `best`, which not every node of a cluster may have. Returns `None`
/// if `best` is not an RDMA provider.
pub fn second(best: &Provider, source: Option<&str>) -> Result<Option<Provider>, FabricError> {
    const TCP: &str = "tcp;ofi_rxm";
    if !best.is_rdma() {
        return Ok(None);
    }
    let reason = |domain: &str| format!("for nodes that {} does not reach; TCP on {domain}", best.name);
    Ok(query(Some(TCP), source, &reason)?.into_iter().next())
}

/// Whether `source` is an address of this host. The provider tcp would find out only when an endpoint is
/// opened.
fn is_ours(source: Option<&str>) -> bool {
    source.is_none_or(|host| UdpSocket::bind((host, 0)).is_ok())
}

/// Names of all providers of this host that could be asked for, comma-separated.
fn available() -> Result<String, FabricError> {
    let mut names: Vec<String> = Vec::new();
    for provider in query(None, None, &|_| String::new())? {
        if !names.contains(&provider.name) {
            names.push(provider.name);
        }
    }
    Ok(if names.is_empty() { "none".to_owned() } else { names.join(", ") })
}

/// Looks up the usable entries for a provider name, in libfabric's order. There are none if libfabric knows
/// no such provider. Entries with ordered messages are looked up first; without any, entries without that
/// order are.
fn query(
    name: Option<&str>,
    source: Option<&str>,
    reason: &dyn Fn(&str) -> String,
) -> Result<Vec<Provider>, FabricError> {
    let (Ok(c_name), Ok(c_source)) =
        (name.map(CString::new).transpose(), source.map(CString::new).transpose())
    else {
        return Ok(Vec::new()); // A NUL byte: no provider or host is called that.
    };
    for order in [ffi::PLASMON_ORDER_SAS, 0] {
        let Some(list) = get_info(c_name.as_deref(), c_source.as_deref(), order)? else { continue };
        let mut providers = Vec::new();
        let mut next: *const ffi::fi_info = list.0.as_ptr();
        // SAFETY: `next` is null or an entry of the list, which lives until the end of this block.
        while let Some(entry) = unsafe { next.as_ref() } {
            let provider = Provider::from_entry(entry, reason);
            providers.extend(provider.filter(|provider| name.is_none_or(|name| name == provider.name)));
            next = entry.next;
        }
        if !providers.is_empty() {
            return Ok(providers);
        }
    }
    Ok(Vec::new())
}

/// Calls `fi_getinfo` once. Returns `None` if nothing matches.
fn get_info(name: Option<&CStr>, source: Option<&CStr>, order: u64) -> Result<Option<Info>, FabricError> {
    environment::set_defaults();
    let pointer = |text: Option<&CStr>| text.map_or(ptr::null(), CStr::as_ptr);
    // SAFETY: the name is null or terminated; the hints copy it.
    let hints = unsafe { ffi::plasmon_hints(pointer(name), order) };
    let Some(hints) = NonNull::new(hints).map(Info) else {
        return Err(FabricError::call("fi_allocinfo", -libc::ENOMEM));
    };
    let flags = if source.is_some() { ffi::PLASMON_SOURCE } else { 0 };
    let mut list = ptr::null_mut();
    // SAFETY: all pointers are valid for the call; `list` receives an owned list.
    let code = unsafe {
        ffi::fi_getinfo(
            ffi::PLASMON_API_VERSION,
            pointer(source),
            ptr::null(),
            flags,
            hints.0.as_ptr(),
            &mut list,
        )
    };
    match NonNull::new(list).map(Info) {
        Some(list) if code == 0 => Ok(Some(list)),
        // ENODATA means that nothing matches. An unknown host or an address of another machine has a code
        // that depends on the provider, so any failure here means "not this provider".
        _ => {
            tracing::trace!(?name, ?source, code, "fi_getinfo found nothing");
            Ok(None)
        }
    }
}

/// Whether this crate can work with an entry of libfabric's list. All attributes have to be there, keys have
/// to fit 64 bits, and the entry may ask for no mode or registration style that this crate does not
/// implement.
fn usable(entry: &ffi::fi_info) -> bool {
    // SAFETY: libfabric's attribute pointers are null or valid as long as the entry.
    let (Some(domain), Some(_), Some(_), Some(_)) = (unsafe {
        (
            entry.domain_attr.as_ref(),
            entry.fabric_attr.as_ref(),
            entry.ep_attr.as_ref(),
            entry.tx_attr.as_ref(),
        )
    }) else {
        return false;
    };
    entry.mode & !ffi::PLASMON_MODES == 0
        && domain.mr_mode & !ffi::PLASMON_MR_MODES == 0
        && domain.mr_key_size <= size_of::<u64>()
}
