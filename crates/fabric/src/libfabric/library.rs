//! Loading of the shared library libfabric at run time, so that a program can choose among several.
//!
//! Owns the process's one libfabric, which is never unloaded. Any thread may load it; the first load decides.
//! Invariant: the functions below, which the bindings and the inline functions of libfabric's headers call,
//! are the versions whose structures the headers of the build describe.

use std::env;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::ffi::{self, fi_fabric_attr, fi_info, fid_fabric};
use crate::error::{FabricError, string};

/// File name of libfabric.
const FILE: &str = "libfabric.so.1";

/// Version of the interface (major, minor) with which the structures of the headers came. Newer libraries
/// have the functions of older versions as well.
const STRUCTURES: &CStr = match (ffi::FI_MAJOR_VERSION, ffi::FI_MINOR_VERSION) {
    (1, ..20) => c"FABRIC_1.3",
    (1, _) => c"FABRIC_1.7",
    _ => c"FABRIC_1.8",
};

/// Choice of libfabric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Library {
    /// libfabric that was installed together with the program, in its directory.
    Bundled,
    /// libfabric of the host, which the dynamic loader finds.
    System,
    /// libfabric of this file.
    File(PathBuf),
}

/// libfabric after it was loaded.
struct Loaded {
    functions: Functions,
    /// Path of the library's file, as the dynamic loader found it.
    path: PathBuf,
}

static LOADED: OnceLock<Result<Loaded, FabricError>> = OnceLock::new();

/// Loads libfabric. Without a choice, loads the library in the program's directory, or else that of the host.
/// Only the first call of a process chooses.
///
/// # Errors
/// If there is no such library, or it is too old.
pub fn load(choice: Option<&Library>) -> Result<(), FabricError> {
    loaded(choice).map(|_| ())
}

/// Returns the path of libfabric's file. `None` if libfabric cannot be loaded.
pub fn library() -> Option<&'static Path> {
    Some(&loaded(None).ok()?.path)
}

/// Returns the version of the libfabric found at run time: (major, minor), or (0, 0) if there is none.
pub fn version() -> (u32, u32) {
    loaded(None).map_or((0, 0), |loaded| loaded.functions.version())
}

/// Returns the directory of the library, which has its providers, if the library is the bundled one.
pub(super) fn bundle() -> Option<&'static Path> {
    let path = library()?;
    (path == bundled()?).then(|| path.parent()).flatten()
}

fn loaded(choice: Option<&Library>) -> Result<&'static Loaded, FabricError> {
    LOADED.get_or_init(|| open(choice)).as_ref().map_err(Clone::clone)
}

fn open(choice: Option<&Library>) -> Result<Loaded, FabricError> {
    let path = match choice {
        Some(Library::File(path)) => path.clone(),
        Some(Library::System) => PathBuf::from(FILE),
        Some(Library::Bundled) => bundled().ok_or_else(|| {
            FabricError::NoLibrary("this program was installed without a libfabric of its own".into())
        })?,
        None => bundled().unwrap_or_else(|| FILE.into()),
    };
    let name = CString::new(path.as_os_str().as_bytes())
        .map_err(|_| FabricError::NoLibrary("its path has a NUL byte".into()))?;
    // SAFETY: the name is terminated. Libraries that initialise themselves are what the user asks for.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return Err(FabricError::NoLibrary(fault()));
    }
    let functions = Functions::find(handle).map_err(FabricError::NoLibrary)?;
    let path = functions.file().unwrap_or(path);
    let (major, minor) = functions.version();
    let (least_major, least_minor) = split(ffi::PLASMON_API_VERSION);
    if (major, minor) < (least_major, least_minor) {
        let text = format!("{} is {major}.{minor}, not {least_major}.{least_minor} or newer", path.display());
        return Err(FabricError::NoLibrary(text));
    }
    tracing::debug!("libfabric {major}.{minor} of {}", path.display());
    Ok(Loaded { functions, path })
}

/// Returns the path of the libfabric in the program's directory, if there is one.
fn bundled() -> Option<PathBuf> {
    Some(env::current_exe().ok()?.with_file_name(FILE)).filter(|path| path.exists())
}

/// Returns the message of the dynamic loader about its last failure on this thread.
fn fault() -> String {
    // SAFETY: dlerror returns null or a string that stays until this thread's next call.
    unsafe { string(libc::dlerror()) }.unwrap_or_else(|| "the loader does not say why".into())
}

/// Returns major and minor version of a number in libfabric's form.
fn split(version: u32) -> (u32, u32) {
    (version >> 16, version & 0xffff)
}

/// Looks up a function of a loaded library.
fn address(handle: *mut c_void, name: &str, version: &CStr) -> Result<*mut c_void, String> {
    let name = CString::new(name).expect("a function's name has no NUL byte");
    // SAFETY: the handle is open, and both texts are terminated.
    let address = unsafe { libc::dlvsym(handle, name.as_ptr(), version.as_ptr()) };
    if address.is_null() { Err(fault()) } else { Ok(address) }
}

/// Defines the functions of libfabric that are no inline functions of its headers: the table of their
/// addresses, and for each a symbol that calls it.
macro_rules! functions {
    ($($field:ident: $name:ident of $version:expr, ($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        struct Functions {
            $($field: unsafe extern "C" fn($($type),*) -> $result,)*
        }

        impl Functions {
            /// Looks the functions up in a library. The error names the function that the library lacks.
            fn find(handle: *mut c_void) -> Result<Self, String> {
                Ok(Self {
                    $($field: {
                        let address = address(handle, stringify!($name), $version)?;
                        // SAFETY: the function of this name and version has this type.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($type),*) -> $result,
                            >(address)
                        }
                    },)*
                })
            }
        }

        $(
            /// Calls the function of the loaded library.
            ///
            /// # Safety
            /// As for the function of libfabric. The library was loaded.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($arg: $type),*) -> $result {
                let loaded = loaded(None).expect("libfabric was loaded before it is used");
                // SAFETY: as the caller has promised.
                unsafe { (loaded.functions.$field)($($arg),*) }
            }
        )*
    };
}

functions! {
    getinfo: fi_getinfo of STRUCTURES,
        (version: u32, node: *const c_char, service: *const c_char, flags: u64, hints: *const fi_info,
         info: *mut *mut fi_info) -> c_int;
    freeinfo: fi_freeinfo of STRUCTURES, (info: *mut fi_info) -> ();
    dupinfo: fi_dupinfo of STRUCTURES, (info: *const fi_info) -> *mut fi_info;
    fabric: fi_fabric of c"FABRIC_1.1",
        (attributes: *mut fi_fabric_attr, fabric: *mut *mut fid_fabric, context: *mut c_void) -> c_int;
    version: fi_version of c"FABRIC_1.0", () -> u32;
    strerror: fi_strerror of c"FABRIC_1.0", (code: c_int) -> *const c_char;
}

impl Functions {
    /// Returns the version of the library: (major, minor).
    fn version(&self) -> (u32, u32) {
        // SAFETY: the function takes no arguments and only reads a constant.
        split(unsafe { (self.version)() })
    }

    /// Returns the path of the library's file.
    fn file(&self) -> Option<PathBuf> {
        let mut found = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: the address is one of a loaded function, and the result has room.
        let known = unsafe { libc::dladdr(self.version as *const c_void, found.as_mut_ptr()) } != 0;
        // SAFETY: all fields may be zero; the name is null or terminated, and lives as long as the library.
        let name = known.then(|| unsafe { string(found.assume_init().dli_fname) }).flatten()?;
        Some(PathBuf::from(name))
    }
}

/// Returns libfabric's text for a positive error number. `None` if there is no text, or libfabric is not
/// loaded.
pub(crate) fn describe(code: i32) -> Option<String> {
    let loaded = loaded(None).ok()?;
    // SAFETY: the function takes any number and returns null or a static terminated string.
    unsafe { string((loaded.functions.strerror)(code)) }
}
