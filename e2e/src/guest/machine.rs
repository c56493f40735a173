//! One QEMU process, which runs one guest.
//!
//! Owns the process and the guest's folder. The thread that runs the job. A machine has no screen, no disk
//! and no connection to other networks. It has two shares of the host's files, a network card, and two serial
//! ports. Invariant: a machine ends when its guest switches it off, when the guest's kernel panics, when its
//! [`Machine`] is dropped, and when this process dies in any way.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

use super::console;
use super::error::GuestError;
use super::job::{self, Job};
use super::kernel::Kernel;

/// Number of cores of a guest. More cores would only take turns on the cores of a small machine.
const CORES: usize = 2;
/// Name of the network card's bus in a guest with several memory nodes.
const FAR_BUS: &str = "far";
/// Arguments of the guest's kernel. A panic ends the machine, which is not started again. An emulated timer
/// is not checked: it is late on a busy host.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 loglevel=6 panic=-1 mitigations=off no_timer_check";

/// Way in which the guest's processor is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Accelerator {
    /// The host's processor runs the guest.
    Kvm,
    /// Software emulates the processor, some ten times slower.
    Emulation,
}

/// Guest that was started. Dropping it kills the machine.
pub(super) struct Machine {
    number: usize,
    child: Child,
    output: Option<JoinHandle<()>>,
    folder: PathBuf,
    status: Option<i32>,
}

impl Machine {
    /// Starts guest `number` of a job, whose files are in `folder`.
    pub(super) fn start(
        kernel: &Kernel,
        initramfs: &Path,
        accelerator: Accelerator,
        job: &Job,
        folder: &Path,
        number: usize,
    ) -> Result<Self, GuestError> {
        let own = folder.join(format!("guest{number}"));
        let share = own.join("job");
        fs::create_dir_all(&share).map_err(GuestError::file("make", &share))?;
        job.write(&share, number)?;

        // With setpriv, QEMU dies when this process is killed.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "qemu-system-x86_64", "-nodefaults", "-display", "none"]);
        command.args(match accelerator {
            Accelerator::Kvm => ["-accel", "kvm", "-cpu", "host"],
            Accelerator::Emulation => ["-accel", "tcg,thread=multi", "-cpu", "max"],
        });
        let cores = CORES.max(job.memory_nodes).to_string();
        command.args(["-m", &format!("{}M", job.memory >> 20), "-smp", &cores, "-no-reboot"]);
        command.arg("-kernel").arg(kernel.image()).arg("-initrd").arg(initramfs);
        command.args(["-append", KERNEL_ARGUMENTS]);
        command.args(["-serial", &format!("file:{}", own.join("console").display()), "-serial", "stdio"]);
        let host = "path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap";
        command.args(["-virtfs", &format!("local,{host}")]);
        let share = format!("path={},mount_tag=job,security_model=none", share.display());
        command.args(["-virtfs", &format!("local,{share}")]);
        // The memory nodes and their bus come after the shares, which would otherwise be plugged into that
        // bus.
        command.args(memory_nodes(job));
        command.args(network(job, folder, number));

        let log = own.join("qemu");
        let log = File::create(&log).map_err(GuestError::file("write", &log))?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let spawned = command.spawn();
        let mut child =
            spawned.map_err(|source| GuestError::Program { program: "setpriv".to_owned(), source })?;
        let prefix = if job.guests > 1 { format!("guest {number}: ") } else { String::new() };
        let output = child.stdout.take().map(|output| console::stream(output, prefix));
        Ok(Self { number, child, output, folder: own, status: None })
    }

    /// Exit code of the guest's program. Returns `None` while the machine runs.
    pub(super) fn status(&mut self) -> Result<Option<i32>, GuestError> {
        if self.status.is_none() && matches!(self.child.try_wait(), Ok(Some(_))) {
            // The rest of the program's output is copied before the exit code is returned.
            if let Some(output) = self.output.take() {
                let _ = output.join();
            }
            let ended = || GuestError::Ended { number: self.number, console: self.tail() };
            self.status = Some(job::status(&self.folder.join("job")).ok_or_else(ended)?);
        }
        Ok(self.status)
    }

    /// Whether the machine ran when [`Machine::status`] was last asked.
    pub(super) fn is_running(&self) -> bool {
        self.status.is_none()
    }

    /// Last lines of the output of the guest's kernel and of QEMU.
    pub(super) fn tail(&self) -> String {
        console::tail(&self.folder.join("console")) + &console::tail(&self.folder.join("qemu"))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Both calls fail when the machine has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(output) = self.output.take() {
            let _ = output.join();
        }
    }
}

/// Arguments of QEMU for the memory nodes of a guest, and for a bus at the last node. There are none for a
/// guest with one memory node.
fn memory_nodes(job: &Job) -> Vec<String> {
    if job.memory_nodes < 2 {
        return Vec::new();
    }
    let share = (job.memory / job.memory_nodes as u64) >> 20;
    let node = |node: usize| {
        [
            "-object".to_owned(),
            format!("memory-backend-ram,id=memory{node},size={share}M"),
            "-numa".to_owned(),
            format!("node,nodeid={node},cpus={node},memdev=memory{node}"),
        ]
    };
    let bus = format!("pxb,id={FAR_BUS},bus=pci.0,bus_nr=8,numa_node={}", job.memory_nodes - 1);
    (0..job.memory_nodes).flat_map(node).chain(["-device".to_owned(), bus]).collect()
}

/// Arguments of QEMU for the network card of a guest, and for the other end of its cable.
fn network(job: &Job, folder: &Path, number: usize) -> [String; 4] {
    let end = |number: usize| folder.join(format!("cable{number}")).display().to_string();
    let cable = match job.guests {
        1 => "hubport,id=cable,hubid=0".to_owned(),
        _ => format!(
            "dgram,id=cable,local.type=unix,local.path={},remote.type=unix,remote.path={}",
            end(number),
            end(1 - number)
        ),
    };
    // The card has no boot ROM, because no guest boots from the network.
    let mut card = format!("virtio-net-pci,netdev=cable,romfile=,mac=52:54:00:77:00:{:02x}", number + 1);
    if job.memory_nodes > 1 {
        card.push_str(&format!(",bus={FAR_BUS}"));
    }
    ["-netdev".to_owned(), cable, "-device".to_owned(), card]
}
