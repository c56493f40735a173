//! The side that is read: it only lends the provider its thread.

use std::collections::HashMap;
use std::io::{Write, stdout};

use plasmon_bench::Result;
use plasmon_bench::content::value;
use plasmon_bench::memory::Mapping;
use plasmon_fabric::Access;

use crate::node::{Node, POLL};

/// The most that can be read.
pub(crate) const LARGEST: usize = 256 << 20;

/// Serves until the process is ended.
pub(crate) fn run(provider: &str, address: &str) -> Result<()> {
    let node = Node::open(provider, address)?;
    let mut memory = Mapping::huge(LARGEST)?;
    memory.bytes().copy_from_slice(&value(LARGEST));
    let region = node.register(memory, Access::REMOTE_READ)?;
    let remote = region.remote();
    let address: Vec<String> = node.endpoint.address().iter().map(|byte| format!("{byte:02x}")).collect();
    writeln!(stdout(), "{},{},{},{}", remote.base, remote.key, remote.len, address.concat())?;
    let mut peers = HashMap::new();
    let mut polling = false;
    loop {
        let (word, sender) = node.next_message(polling)?;
        polling = word == POLL;
        let peer = match peers.get(&sender) {
            Some(peer) => *peer,
            None => {
                let peer = node.endpoint.connect(&sender)?;
                peers.insert(sender, peer);
                peer
            }
        };
        node.send(peer, word)?;
    }
}
