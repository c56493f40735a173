//! Side that is read and written. It only polls the provider, and lends memory of two kinds: huge pages for
//! readers of one place, and memory like that of a store for those of many places.

use std::collections::HashMap;
use std::io::{Write, stdout};
use std::rc::Rc;

use plasmon_bench::Result;
use plasmon_bench::content::value;
use plasmon_bench::memory::Mapping;
use plasmon_fabric::{Access, Region};

use crate::node::{Node, POLL};

/// Largest length in bytes that can be read, of either kind.
pub(crate) const LARGEST: usize = 256 << 20;

/// Serves until the process is killed.
pub(crate) fn run(provider: &str, address: &str) -> Result<()> {
    let node = Node::open(provider, address)?;
    let one = filled(&node, Mapping::huge(LARGEST)?)?;
    let many = filled(&node, Mapping::new(LARGEST, true)?)?;
    let address: Vec<String> = node.endpoint.address().iter().map(|byte| format!("{byte:02x}")).collect();
    let regions = [one.remote(), many.remote()].map(|it| format!("{},{},{}", it.base, it.key, it.len));
    writeln!(stdout(), "{},{}", regions.join(","), address.concat())?;
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

fn filled(node: &Node, mut memory: Mapping) -> Result<Rc<Region>> {
    memory.bytes().copy_from_slice(&value(LARGEST));
    node.register(memory, Access::REMOTE_READ_WRITE)
}
