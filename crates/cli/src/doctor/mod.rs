//! `plasmon doctor`: finds what makes Plasmon slower on this host than the hardware allows, and how to fix
//! it.
//!
//! Owns the [`Case`]. Main thread. [`files`] reads files of the kernel under `/proc` and `/sys`. [`daemon`]
//! asks the node of this host, and gives up after five seconds. `shell` and `print` write commands and
//! findings. The other modules are checks, each of which turns a [`Case`] into findings. Invariant: no check
//! changes the host, and a check whose files this kernel does not have returns no finding.

mod cpu;
mod daemon;
mod files;
mod finding;
mod fuse;
mod limits;
mod memory;
mod network;
mod numa;
mod pages;
mod print;
mod roce;
mod shell;
mod spill;
mod tier;

use std::cmp::Reverse;
use std::path::PathBuf;

use clap::Args as ClapArgs;
use plasmon::Socket;
use plasmon::status::Status;
use serde_json::json;

use crate::failure::Failure;
use crate::output::{self, line};
use crate::serve::setting;
use crate::serve_args::{self, DEFAULT_MEMORY};
use daemon::Answer;
use files::Files;
use finding::{Finding, Severity};
use shell::Shell;

/// Arguments of `plasmon doctor`.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examines huge pages, memory, limits, cores and RDMA devices, and how the node of this host uses \
them, if one runs. Changes nothing. Exit code 1 if there is a problem; advice alone is no problem.")]
pub(crate) struct Doctor {
    /// Memory that the store is to have [default: that of this host's node, or else 4GiB]
    #[arg(long, value_name = "SIZE", value_parser = serve_args::memory)]
    pub(crate) memory: Option<u64>,
    /// Directory for spilled objects [default: that of this host's node, or of the settings of one that is
    /// started here]
    #[arg(long, value_name = "DIR")]
    pub(crate) spill_dir: Option<PathBuf>,
}

/// Host and node that are examined.
struct Case {
    files: Files,
    shell: Shell,
    /// Memory in bytes that the node has, or is to have.
    memory: u64,
    /// Spill directory that the node has, or is to have.
    spill: Option<PathBuf>,
    /// Status of the running node.
    node: Option<Status>,
}

impl Case {
    /// Path of the running node's files under `/proc`, or else of this process's, whose limits a node started
    /// from here inherits. The flag says whether the files are the node's.
    fn process(&self) -> (String, bool) {
        let node = self.node.as_ref().map(|node| format!("/proc/{}", node.pid));
        // In another container the process id belongs to another process.
        let ours =
            |path: &String| self.files.text(&format!("{path}/comm")).as_deref() == Some("plasmon-node");
        match node.filter(ours) {
            Some(path) => (path, true),
            None => ("/proc/self".to_owned(), false),
        }
    }

    /// Base pages in bytes that the running node holds, and would give back if it stopped.
    fn node_base_bytes(&self) -> u64 {
        self.node
            .as_ref()
            .map(|node| &node.memory)
            .filter(|memory| memory.pages == "base")
            .map_or(0, |memory| memory.prefaulted.max(memory.used))
    }

    /// Command that starts a node with `memory` bytes, in place of the running one if there is one.
    fn serve(&self, memory: u64) -> String {
        shell::serve(&self.words(), memory, self.spill.as_deref(), None)
    }

    /// Command that starts the node anew on the memory node of the network card.
    fn serve_near(&self) -> String {
        shell::serve(&self.words(), self.memory, self.spill.as_deref(), Some("auto"))
    }

    /// Command line of the running node, with a NUL after each word.
    fn words(&self) -> String {
        let (process, is_node) = self.process();
        let line = Some(format!("{process}/cmdline")).filter(|_| is_node);
        line.and_then(|line| self.files.text(&line)).unwrap_or_default()
    }

    /// Instruction to replace the running node, or to start one.
    fn restart(&self) -> String {
        match &self.node {
            Some(node) => format!("stop the node (kill {}), then start it again", node.pid),
            None => "start the node".to_owned(),
        }
    }
}

/// Examines the host and the node, prints the findings, and fails if there is a problem.
pub(crate) fn doctor(socket: &Socket, as_json: bool, args: &Doctor) -> Result<(), Failure> {
    let answer = daemon::ask(socket);
    let default = serve_args::memory(DEFAULT_MEMORY).expect("it is a size");
    let node = answer.status().cloned();
    let told = node.as_ref().map(|node| node.memory.capacity);
    let spills = node.as_ref().map(|node| &node.spill.directory).filter(|directory| !directory.is_empty());
    let case = Case {
        files: Files::of_this_host(),
        shell: Shell::of_this_user(),
        memory: args.memory.or(told).unwrap_or(default),
        spill: args.spill_dir.clone().or_else(|| match &node {
            Some(_) => spills.map(PathBuf::from),
            None => setting("spill-dir").map(PathBuf::from),
        }),
        node,
    };
    let mut findings = examine(&case, &answer);
    findings.sort_by_key(|finding| Reverse(finding.severity));
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let (problems, advice) = (count(Severity::Problem), count(Severity::Advice));
    if as_json {
        let report = json!({
            "memory": case.memory,
            "node": case.node.as_ref().map(daemon::summary),
            "problems": problems,
            "advice": advice,
            "findings": findings.iter().map(Finding::json).collect::<Vec<_>>(),
        });
        output::json(&report.to_string())?;
    } else {
        for finding in &findings {
            print::finding(finding).lines().try_for_each(line)?;
        }
    }
    match problems {
        0 => Ok(()),
        problems => Err(Failure::Problems(problems)),
    }
}

fn examine(case: &Case, answer: &Answer) -> Vec<Finding> {
    let mut findings = daemon::check(answer);
    findings.extend(pages::check(case));
    findings.extend(numa::check(case));
    findings.extend(memory::check(case));
    findings.extend(limits::check(case));
    findings.extend(network::check(case));
    findings.extend(cpu::check(case));
    findings.extend(spill::check(case));
    findings.extend(tier::check(case));
    findings.extend(fuse::check(case));
    findings
}

#[cfg(test)]
mod tests;
