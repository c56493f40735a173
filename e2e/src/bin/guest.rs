//! Boots guests by hand: see `plasmon_e2e::guest`.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand, value_parser};
use plasmon_e2e::guest::{self, GuestError, Job, Kernel};

/// Exit code that tells `scripts/test-rdma.sh` that the disk is full.
const DISK_FULL: u8 = 74;

/// Virtual machines with an RDMA device (Soft-RoCE) that see this machine's files
#[derive(Debug, Parser)]
#[command(name = "plasmon-e2e-guest")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Fetch the kernel, unless it is there
    Prepare,
    /// Run a program in new guests, and end with its exit code
    ///
    /// The program finds the host's files where they are, and may write anywhere; all it writes is gone with
    /// the guest. Variables whose names begin with PLASMON_, FI_ or RUST_ are passed on; PLASMON_GUEST is the
    /// guest's number and PLASMON_E2E_ADDRESS its address.
    Run {
        /// How many guests: two are joined by a cable
        #[arg(long, default_value = "1", value_parser = value_parser!(u8).range(1..=2))]
        guests: u8,
        /// The time that all may take, boot included
        #[arg(long, default_value = "300")]
        seconds: u64,
        /// Memory of each guest in MiB
        #[arg(long, default_value = "2048")]
        memory: u64,
        /// Memory nodes (NUMA) of each guest; the network card is at the last
        #[arg(long, default_value = "1", value_parser = value_parser!(u8).range(1..=8))]
        memory_nodes: u8,
        /// A guest that has no RDMA device
        #[arg(long, value_name = "GUEST")]
        no_rdma: Vec<usize>,
        /// The program and its arguments
        #[arg(last = true, required = true)]
        program: Vec<String>,
    },
}

fn main() -> ExitCode {
    match act(Args::parse().command) {
        // Exit codes have eight bits. A larger code is reported as another failure.
        Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)),
        Err(error) => {
            eprintln!("guest: {error}");
            // Guests work here once there is room, so that a full disk is no reason to do without them.
            if matches!(error, GuestError::DiskFull { .. }) { DISK_FULL.into() } else { ExitCode::FAILURE }
        }
    }
}

fn act(command: Command) -> Result<i32, GuestError> {
    let kernel = Kernel::prepare()?;
    let Command::Run { guests, seconds, memory, memory_nodes, no_rdma, mut program } = command else {
        return Ok(0);
    };
    let args = program.split_off(1);
    let program = PathBuf::from(program.remove(0));
    let guests = usize::from(guests);
    guest::run(
        &kernel,
        &Job {
            args,
            guests,
            rdma: (0..guests).map(|guest| !no_rdma.contains(&guest)).collect(),
            memory: memory << 20,
            memory_nodes: usize::from(memory_nodes),
            limit: Duration::from_secs(seconds),
            ..Job::new(program)
        },
    )
}
