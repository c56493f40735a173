//! The mount: a volume of files as a folder of this host.
//!
//! A [`Mount`] attaches to a volume by the node of this host, mounts a folder, and serves the kernel's
//! requests until the folder is unmounted. The crate has a transport of its own ([`device`], [`worker`]),
//! because the payload of a write is to land in a block of the node's arena, where it becomes an object.
//! Libraries read into buffers of their own, which copies each byte once more.
//!
//! | module | what it owns |
//! |---|---|
//! | [`kernel`] | the structures and requests of the protocol |
//! | [`device`], [`reply`] | reading and answering requests |
//! | [`worker`], [`running`] | the threads, and requests that are given up |
//! | [`negotiation`] | what kernel and mount agree on |
//! | [`serve`] | a volume, request by request |
//! | [`notify`] | telling the kernel to forget what others have changed |
//! | [`null`] | a file system without a node, to measure the transport by |
//! | [`mounting`] | mounting, changing mounts and unmounting |
//! | [`ending`] | the end that a signal asks for |
#![deny(unsafe_code)]

mod device;
mod ending;
mod kernel;
mod mounting;
mod negotiation;
mod notify;
mod null;
mod reply;
mod running;
mod serve;
mod worker;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use plasmon::Client;
use plasmon::files::{AttachOptions, Volume};

use crate::device::Device;
use crate::null::NullServer;
use crate::serve::VolumeServer;
use crate::worker::{Server, Workers};

pub use crate::ending::Ending;
pub use crate::mounting::{MountError, remount_folder, unmount_folder, volume_of};

/// Largest number of requests that are carried out at a time, unless another is chosen.
pub const DEFAULT_THREADS: usize = 32;
/// Read-ahead of a mount in KiB.
const READ_AHEAD_KIB: u32 = 4 << 10;

/// How a volume is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    /// Name of the volume.
    pub volume: String,
    /// Whether the volume is created if no volume has the name.
    pub create: bool,
    /// Whether other users may use the folder, as far as the modes of files allow.
    pub allow_other: bool,
    /// Whether the volume is mounted read-only.
    pub read_only: bool,
    /// Longest time for which the kernel keeps names and attributes.
    pub cache: Duration,
    /// Whether no file goes through the page cache.
    pub direct: bool,
    /// Largest number of requests that are carried out at a time, each by a thread.
    pub threads: usize,
    /// Longest time for which an operation waits for a node that is away, or for nodes that are to keep the
    /// bytes of a file.
    pub patience: Duration,
}

/// Failure to mount a volume.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// The node or the volume refused.
    #[error("{0}")]
    Volume(#[from] plasmon::Error),
    /// The folder cannot be mounted.
    #[error("{0}")]
    Mount(#[from] MountError),
}

/// Folder that is mounted.
pub struct Mount {
    folder: PathBuf,
    device: Device,
    threads: usize,
    content: Content,
}

/// Content of a mounted folder.
enum Content {
    Volume(Volume, serve::Manner),
    Null,
}

impl Mount {
    /// Attaches to a volume and mounts it. Requests wait until the mount [serves](Mount::serve) them.
    ///
    /// # Errors
    /// If there is no such volume, or this user may not use it; if the folder cannot be mounted.
    pub fn new(client: Client, folder: &Path, options: &MountOptions) -> Result<Self, Failed> {
        let folder = mounting::folder(folder)?;
        let attach = AttachOptions {
            create: options.create,
            read_only: options.read_only,
            checked: false,
            keeps: !options.cache.is_zero(),
            patience: options.patience,
        };
        let client = client.interruptible(running::given_up);
        let volume = Volume::attach(&client, &options.volume, &attach)?;
        if options.allow_other && !volume.is_trusted() {
            let text = "only root and the user of the node may mount a volume for other users: leave \
                        --allow-other out";
            return Err(plasmon::Error::new(plasmon::ErrorKind::NotAllowed, text).into());
        }
        let manner = mounting::Manner {
            source: options.volume.clone(),
            allow_other: options.allow_other,
            read_only: options.read_only,
        };
        let device = mounting::mount_at(&folder, &manner)?;
        let served = serve::Manner { cache: options.cache, direct: options.direct };
        Ok(Self { folder, device, threads: options.threads, content: Content::Volume(volume, served) })
    }

    /// Mounts a file system that has names and sizes of files in this process, and keeps none of their bytes.
    /// The file system serves to measure the time of the kernel and the transport.
    ///
    /// # Errors
    /// If the folder cannot be mounted.
    pub fn null(folder: &Path, threads: usize) -> Result<Self, Failed> {
        let folder = mounting::folder(folder)?;
        let manner = mounting::Manner { source: "null".to_owned(), allow_other: false, read_only: false };
        let device = mounting::mount_at(&folder, &manner)?;
        Ok(Self { folder, device, threads, content: Content::Null })
    }

    /// Absolute path of the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the ending of the mount, for whoever gets signals.
    pub fn ending(&self) -> Ending {
        Ending::of(&self.folder)
    }

    /// Serves the folder until it is unmounted. `ready` is called once the kernel has begun.
    ///
    /// # Errors
    /// If no thread can be started, or if one panics outside of a request.
    pub fn serve(self, ready: impl Fn() + Send + Sync + 'static) -> Result<(), MountError> {
        let Self { folder, device, threads, content } = self;
        let path = folder.clone();
        let begin = move |_| {
            if let Err(error) = mounting::set_read_ahead(&folder, READ_AHEAD_KIB) {
                tracing::debug!(%error, "the read-ahead stays as it is");
            }
            ready();
        };
        let served = match content {
            Content::Volume(volume, manner) => VolumeServer::new(volume, device.clone(), manner, begin)
                .and_then(|server| serve_by(device, server, threads)),
            Content::Null => serve_by(device, NullServer::new(begin), threads),
        };
        served.map_err(|source| MountError::Serving { path, source })
    }
}

fn serve_by<S: Server>(device: Device, server: S, threads: usize) -> std::io::Result<()> {
    Workers::new(device, Arc::new(server), threads).serve()
}

/// Entry for the fuzzer: reads bytes as a request of the kernel.
pub fn examine_request(bytes: &[u8]) {
    worker::examine(bytes);
}

/// Returns seeds for the fuzzer: requests of many kinds.
pub fn request_seeds() -> Vec<Vec<u8>> {
    kernel::seeds()
}
