//! The kernel of guests, the modules that they load, and busybox, which holds their first programs.
//!
//! Owns the folder `target/guest`. Any thread or process may prepare a kernel. All files come from Debian's
//! packages: see [`super::package`]. They are kept until `cargo clean`, beside their checksums. Invariant: a
//! kernel is used only if its files have these checksums.

use std::collections::HashMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use super::error::GuestError;
use super::package::{check_room, command, unpack};

/// Names of the modules that guests load. Modules that these depend on are added. `crc32_generic` is listed
/// because `rdma_rxe` looks it up under another name.
const MODULES: [&str; 8] =
    ["virtio_pci", "virtio_net", "9p", "9pnet_virtio", "overlay", "crc32_generic", "rdma_ucm", "rdma_rxe"];

/// Patterns of the paths of the kernel and its modules in the kernel's package.
const PLACES: [&str; 13] = [
    "./boot/vmlinuz-*",
    "./lib/modules/*/kernel/arch/x86/crypto/*.ko",
    "./lib/modules/*/kernel/crypto/*.ko",
    "./lib/modules/*/kernel/drivers/infiniband/core/*.ko",
    "./lib/modules/*/kernel/drivers/infiniband/sw/rxe/*.ko",
    "./lib/modules/*/kernel/drivers/net/*.ko",
    "./lib/modules/*/kernel/drivers/virtio/*.ko",
    "./lib/modules/*/kernel/fs/*/*.ko",
    "./lib/modules/*/kernel/lib/*.ko",
    "./lib/modules/*/kernel/net/9p/*.ko",
    "./lib/modules/*/kernel/net/core/*.ko",
    "./lib/modules/*/kernel/net/ipv4/*.ko",
    "./lib/modules/*/kernel/net/ipv6/*.ko",
];

/// Name of the package that depends on the newest kernel.
const NEWEST: &str = "linux-image-amd64";
/// Name of the package with a busybox that needs no libraries.
const STATIC_BUSYBOX: &str = "busybox-static";
/// File name of the kernel.
const IMAGE: &str = "vmlinuz";
/// File name of busybox.
const BUSYBOX: &str = "busybox";
/// File name of the list of modules, in the order in which they can be loaded.
const ORDER: &str = "order";
/// File name of the checksums of all other files.
const CHECKSUMS: &str = "checksums";

/// Kernel with its modules and busybox, unpacked.
#[derive(Debug)]
pub struct Kernel {
    folder: PathBuf,
    modules: Vec<String>,
}

impl Kernel {
    /// Finds the kernel that was prepared before, or fetches it.
    ///
    /// # Errors
    /// Fails when no kernel can be fetched here, with the reason.
    pub fn prepare() -> Result<Self, GuestError> {
        let folder = cache()?;
        let kept = folder.join("kernel");
        if let Some(kernel) = Self::kept(&kept) {
            return Ok(kernel);
        }
        // The kernel is made elsewhere and moved into place whole, because others may be doing the same.
        fs::create_dir_all(&folder).map_err(GuestError::file("make", &folder))?;
        check_room(&folder)?;
        let work = tempfile::tempdir_in(&folder).map_err(GuestError::file("make a folder in", &folder))?;
        let new = fetch(work.path())?;
        if kept.exists() {
            fs::remove_dir_all(&kept).map_err(GuestError::file("remove", &kept))?;
        }
        fs::rename(&new, &kept).map_err(GuestError::file("make", &kept))?;
        Self::kept(&kept).ok_or_else(|| GuestError::Kernel {
            package: kept.display().to_string(),
            what: "files that can be read back".to_owned(),
        })
    }

    /// Kernel that is kept in a folder. Returns `None` if files are missing or changed.
    fn kept(folder: &Path) -> Option<Self> {
        let checksums = fs::read_to_string(folder.join(CHECKSUMS)).ok()?;
        let order = fs::read_to_string(folder.join(ORDER)).ok()?;
        let kernel = Self { folder: folder.to_owned(), modules: order.lines().map(str::to_owned).collect() };
        (checksums == kernel.checksums().ok()?).then_some(kernel)
    }

    /// Folder that the kernel is kept in. Notes about the kernel may be kept there as well.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Path of the kernel.
    pub(super) fn image(&self) -> PathBuf {
        self.folder.join(IMAGE)
    }

    /// Path of busybox.
    pub(super) fn busybox(&self) -> PathBuf {
        self.folder.join(BUSYBOX)
    }

    /// Name and path of every module, in the order in which the modules can be loaded.
    pub(super) fn modules(&self) -> impl Iterator<Item = (&str, PathBuf)> {
        self.modules.iter().map(|name| (name.as_str(), self.folder.join(format!("{name}.ko"))))
    }

    /// Text of the file of checksums, for the files as they are now.
    fn checksums(&self) -> Result<String, GuestError> {
        let others = [self.image(), self.busybox(), self.folder.join(ORDER)];
        let files = self.modules().map(|(_, path)| path).chain(others);
        let lines = files.map(|path| {
            let bytes = fs::read(&path).map_err(GuestError::file("read", &path))?;
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            Ok(format!("{} {name}\n", blake3::hash(&bytes)))
        });
        lines.collect()
    }
}

/// Folder `target/guest`, beside the program that runs.
fn cache() -> Result<PathBuf, GuestError> {
    let own = env::current_exe().map_err(GuestError::file("find", "this program"))?;
    // target/<profile>/<program>
    let target = own.ancestors().nth(2).unwrap_or(Path::new("."));
    Ok(target.join("guest"))
}

/// Fetches packages, and makes a folder of a kernel of them in `work`.
fn fetch(work: &Path) -> Result<PathBuf, GuestError> {
    let package = newest()?;
    let mut files = HashMap::new();
    for path in files_below(&unpack(&package, &PLACES, work)?)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if let Some(module) = name.strip_suffix(".ko") {
            files.insert(module.replace('-', "_"), path);
        } else if name.starts_with(IMAGE) {
            files.insert(IMAGE.to_owned(), path);
        }
    }
    let busybox = unpack(STATIC_BUSYBOX, &["./bin/busybox"], work)?.join("bin/busybox");
    let keep = work.join("kernel");
    fs::create_dir(&keep).map_err(GuestError::file("make", &keep))?;
    fs::copy(&busybox, keep.join(BUSYBOX)).map_err(GuestError::file("copy", &busybox))?;

    let lacks = |what: &str| GuestError::Kernel { package: package.clone(), what: what.to_owned() };
    let copy = |name: &str, to: &str| {
        let from = files.get(name).ok_or_else(|| lacks(name))?;
        fs::copy(from, keep.join(to)).map_err(GuestError::file("copy", from))?;
        Ok(())
    };
    copy(IMAGE, IMAGE)?;
    let mut modules = Vec::new();
    for name in MODULES {
        add_with_needs(name, &files, &mut modules).map_err(|missing| lacks(&missing))?;
    }
    for name in &modules {
        copy(name, &format!("{name}.ko"))?;
    }
    let write = |name: &str, text: &str| {
        let path = keep.join(name);
        fs::write(&path, text).map_err(GuestError::file("write", &path))
    };
    write(ORDER, &modules.iter().map(|name| format!("{name}\n")).collect::<String>())?;
    write(CHECKSUMS, &Kernel { folder: keep.clone(), modules }.checksums()?)?;
    Ok(keep)
}

/// Name of the newest kernel's package.
fn newest() -> Result<String, GuestError> {
    let text = command("apt-cache", &["show", "--no-all-versions", NEWEST], Path::new("/"))?;
    let depends = text.lines().find_map(|line| line.strip_prefix("Depends: "));
    let name = depends.and_then(|depends| depends.split([' ', ',']).next());
    name.map(str::to_owned).ok_or_else(|| GuestError::Kernel {
        package: NEWEST.to_owned(),
        what: "kernel that it depends on (are apt's lists there? try apt-get update)".to_owned(),
    })
}

/// Adds a module to `order`, after all modules that it needs. Fails with the name of a module that is
/// missing.
fn add_with_needs(
    name: &str,
    files: &HashMap<String, PathBuf>,
    order: &mut Vec<String>,
) -> Result<(), String> {
    if order.iter().any(|known| known == name) {
        return Ok(());
    }
    let missing = || format!("module {name}");
    let module = files.get(name).and_then(|path| fs::read(path).ok()).ok_or_else(missing)?;
    for needed in needs(&module) {
        add_with_needs(&needed, files, order)?;
    }
    order.push(name.to_owned());
    Ok(())
}

/// Names of the modules that a module needs, as its own description (`.modinfo`) says.
fn needs(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"depends=";
    let mut texts = module.split(|byte| *byte == 0);
    let list = texts.find_map(|text| text.strip_prefix(KEY)).unwrap_or_default();
    let names = list.split(|byte| *byte == b',').filter(|name| !name.is_empty());
    names.map(|name| String::from_utf8_lossy(name).replace('-', "_")).collect()
}

/// Paths of all files below a folder, without symbolic links.
fn files_below(folder: &Path) -> Result<Vec<PathBuf>, GuestError> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(GuestError::file("list", &folder))? {
            let path = entry.map_err(GuestError::file("list", &folder))?.path();
            if path.is_symlink() {
                continue;
            }
            if path.is_dir() { &mut folders } else { &mut files }.push(path);
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_follow_what_they_need() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let mut files = HashMap::new();
        for (name, depends) in [("a", "b,c-d"), ("b", "c-d"), ("c_d", ""), ("e", "gone")] {
            let path = folder.path().join(name);
            fs::write(&path, format!("\x7fELF\0license=GPL\0depends={depends}\0name={name}\0"))
                .expect("write");
            files.insert(name.to_owned(), path);
        }
        let mut order = Vec::new();
        add_with_needs("a", &files, &mut order).expect("all are there");
        add_with_needs("b", &files, &mut order).expect("it is there already");
        assert_eq!(order, ["c_d", "b", "a"]);
        assert_eq!(add_with_needs("e", &files, &mut order), Err("module gone".to_owned()));
    }

    #[test]
    fn a_kernel_that_was_touched_is_not_used() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        for name in [IMAGE, BUSYBOX, "a.ko"] {
            fs::write(folder.path().join(name), name).expect("write");
        }
        fs::write(folder.path().join(ORDER), "a\n").expect("write");
        let kernel = Kernel { folder: folder.path().to_owned(), modules: vec!["a".to_owned()] };
        fs::write(folder.path().join(CHECKSUMS), kernel.checksums().expect("all can be read"))
            .expect("write");
        assert_eq!(Kernel::kept(folder.path()).expect("it is whole").modules, ["a"]);
        fs::write(folder.path().join("a.ko"), "half").expect("write");
        assert!(Kernel::kept(folder.path()).is_none());
    }
}
