//! Finds the providers of this host, and chooses one with a reason.
//!
//! Owns no state. A look-up may run on any thread; the [`Provider`]s that it finds stay there. Invariant: a
//! look-up opens nothing.

use std::ffi::{CStr, CString};
use std::net::UdpSocket;
use std::ptr;

use super::environment;
use super::ffi;
use super::info::Info;
use super::library;
use crate::error::FabricError;
use crate::provider::Provider;

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
            let same =
                |other: &Provider| other.name() == provider.name() && other.domain() == provider.domain();
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
    let reason = |domain: &str| format!("for nodes that {} does not reach; TCP on {domain}", best.name());
    Ok(query(Some(TCP), source, &reason)?.into_iter().next())
}

/// Whether `source` is an address of this host. The provider tcp would detect another address only when an
/// endpoint is opened.
fn is_ours(source: Option<&str>) -> bool {
    source.is_none_or(|host| UdpSocket::bind((host, 0)).is_ok())
}

/// Returns the names of all providers of this host that could be asked for, comma-separated.
fn available() -> Result<String, FabricError> {
    let mut names: Vec<String> = Vec::new();
    for provider in query(None, None, &|_| String::new())? {
        if !names.iter().any(|name| name == provider.name()) {
            names.push(provider.name().to_owned());
        }
    }
    Ok(if names.is_empty() { "none".to_owned() } else { names.join(", ") })
}

/// Returns the usable entries for a provider name, in libfabric's order, and none if libfabric knows no such
/// provider. Entries with ordered messages are looked up first; if there are none, entries without that
/// order.
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
        let mut next: *const ffi::fi_info = list.as_ptr();
        // SAFETY: `next` is null or an entry of the list, which lives until the end of this block.
        while let Some(entry) = unsafe { next.as_ref() } {
            if let Some((info, names)) = Info::copy(entry)
                && name.is_none_or(|name| name == names.0)
            {
                let reason = reason(&names.2);
                providers.push(Provider::of_libfabric(info, names, reason));
            }
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
    library::load(None)?;
    environment::set_defaults();
    let pointer = |text: Option<&CStr>| text.map_or(ptr::null(), CStr::as_ptr);
    // SAFETY: the name is null or terminated; the hints copy it.
    let hints = unsafe { Info::own(ffi::plasmon_hints(pointer(name), order)) };
    let Some(hints) = hints else {
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
            hints.as_ptr(),
            &mut list,
        )
    };
    // SAFETY: the list is null or ours.
    match unsafe { Info::own(list) } {
        Some(list) if code == 0 => Ok(Some(list)),
        // ENODATA means that nothing matches. An unknown host or an address of another machine has a code
        // that depends on the provider, so any failure here means "not this provider".
        _ => {
            tracing::trace!(?name, ?source, code, "fi_getinfo found nothing");
            Ok(None)
        }
    }
}
