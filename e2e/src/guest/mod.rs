//! Guests: virtual machines that see this machine's files and have an RDMA device.
//!
//! The device is Soft-RoCE (`rdma_rxe`), the kernel's own RDMA over Ethernet. To libibverbs, libfabric and
//! Plasmon it is a card like any other, only slow. The host's kernel may not have it, so that a stock Debian
//! kernel is booted in QEMU, which needs no rights. See [`kernel`] for the source of that kernel,
//! `e2e/guest/init` for what happens in a guest, and [`machine`] for the process that runs a guest.
//!
//! [`run`] boots one guest, or two on one cable, runs the same program in each, and gives its exit code.
//! All processes that it starts end before it returns.

mod console;
mod error;
mod initramfs;
mod job;
mod kernel;
mod machine;
mod package;

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

pub use error::GuestError;
pub use job::Job;
pub use kernel::Kernel;
use machine::{Accelerator, Machine};
use tempfile::TempDir;

use crate::network::{own_prefix, remove_stale};

/// Time between two looks whether a guest has ended.
const PERIOD: Duration = Duration::from_millis(20);
/// Time in which a trial guest has to boot under KVM. A kernel that boots takes a second or two.
const TRIAL: Duration = Duration::from_secs(15);

/// Runs a job in new guests, and gives the first exit code that is not 0, or else 0.
///
/// # Errors
/// Fails when a guest cannot be started, ends without an exit code, or exceeds the job's time.
pub fn run(kernel: &Kernel, job: &Job) -> Result<i32, GuestError> {
    remove_stale();
    let accelerator = accelerator(kernel)?;
    let folder = folder()?;
    boot(kernel, accelerator, job, folder.path())
}

/// Makes a temporary folder for the files of guests.
fn folder() -> Result<TempDir, GuestError> {
    let made = tempfile::Builder::new().prefix(&(own_prefix() + "guest-")).tempdir();
    made.map_err(GuestError::file("make", "a temporary folder"))
}

/// Boots the guests of a job, and gives the first exit code that is not 0, or else 0.
fn boot(kernel: &Kernel, accelerator: Accelerator, job: &Job, folder: &Path) -> Result<i32, GuestError> {
    let initramfs = initramfs::write(kernel, folder)?;
    let start = |number| Machine::start(kernel, &initramfs, accelerator, job, folder, number);
    let mut machines = (0..job.guests).map(start).collect::<Result<Vec<_>, _>>()?;
    let deadline = Instant::now() + job.limit;
    loop {
        let mut running = false;
        for machine in &mut machines {
            match machine.status()? {
                None => running = true,
                Some(0) => {}
                // Other guests would wait without end for a guest that has failed.
                Some(code) => return Ok(code),
            }
        }
        if !running {
            return Ok(0);
        }
        if Instant::now() >= deadline {
            let running = machines.iter().filter(|machine| machine.is_running());
            let console = running.map(Machine::tail).collect();
            return Err(GuestError::TooLate { limit: job.limit, console });
        }
        sleep(PERIOD);
    }
}

/// Chooses KVM if it boots this kernel, and emulation otherwise.
///
/// Within a virtual machine, KVM may be there and yet hang. It is therefore tried, once for each time that
/// the host was booted.
fn accelerator(kernel: &Kernel) -> Result<Accelerator, GuestError> {
    if fs::OpenOptions::new().read(true).write(true).open("/dev/kvm").is_err() {
        return Ok(Accelerator::Emulation);
    }
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let note = kernel.folder().join(format!("kvm-{}", boot.trim()));
    if let Ok(verdict) = fs::read_to_string(&note) {
        return Ok(if verdict == "works" { Accelerator::Kvm } else { Accelerator::Emulation });
    }
    let trial = Job { limit: TRIAL, rdma: vec![false], ..Job::new("/bin/true") };
    let works = matches!(boot_in_own_folder(kernel, &trial), Ok(0));
    fs::write(&note, if works { "works" } else { "does not boot" })
        .map_err(GuestError::file("write", &note))?;
    if works {
        return Ok(Accelerator::Kvm);
    }
    eprintln!("guest: KVM does not boot a kernel here: guests are emulated");
    Ok(Accelerator::Emulation)
}

/// Boots the guests of a trial job under KVM, in a new folder.
fn boot_in_own_folder(kernel: &Kernel, trial: &Job) -> Result<i32, GuestError> {
    boot(kernel, Accelerator::Kvm, trial, folder()?.path())
}
