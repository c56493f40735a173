//! Calls by slot between simulated nodes: pings are answered, or end in time.

use std::cell::OnceCell;
use std::rc::Rc;
use std::time::Duration;

use plasmon::shared::{CallPayload, CallRequest, CallResult};
use plasmon::wire::{BySlot, ClusterCall};
use plasmon::{Error, ErrorKind, NodeId};

use super::{Simulation, seeded};
use crate::service::Return;

/// Longest time until a node answers.
const PING_PATIENCE: Duration = Duration::from_secs(5);

/// The result of a call, once the call has ended.
type Ended = Rc<OnceCell<Result<CallResult, Error>>>;

/// Has a client of a node call it.
fn call(simulation: &Simulation, host: usize, (opcode, arguments): (u8, [u64; 6])) -> Ended {
    let core = simulation.hosts[host].core().expect("it runs");
    let timeout_us = PING_PATIENCE.as_micros() as u64;
    let request = CallRequest { opcode, class: None, timeout_us, arguments, payload: CallPayload::EMPTY };
    let ended = Ended::default();
    let end = Rc::clone(&ended);
    match core.services.on_call(core.sessions.next_key(), request) {
        Return::Now(result) => end.set(result).expect("it ends once"),
        Return::Later { task, .. } => {
            simulation.hosts[host].spawn(async move { end.set(task.await).expect("it ends once") });
        }
    }
    ended
}

fn ping(simulation: &Simulation, host: usize, node: NodeId) -> Ended {
    call(simulation, host, ClusterCall::Ping { node }.encode())
}

fn failure(ended: &Ended) -> Option<ErrorKind> {
    Some(ended.get()?.as_ref().expect_err("nobody answers").kind())
}

#[test]
fn nodes_answer_pings_or_the_pings_end() {
    let mut simulation = Simulation::new(1, |_| Vec::new());
    let [here, there] = [0, 1].map(|host| simulation.hosts[host].id().expect("it runs"));
    let own = ping(&simulation, 0, here);
    assert_eq!(own.get(), Some(&Ok(CallResult::of(&[0]))), "its own node answers at once");
    let other = ping(&simulation, 0, there);
    simulation.pass(PING_PATIENCE);
    let took = other.get().expect("it ends").as_ref().expect("the node answers").values[0];
    assert!(took > 0);

    let until = simulation.time.now() + 4 * PING_PATIENCE;
    simulation.hosts[1].stall(until);
    let stalled = ping(&simulation, 0, there);
    let nobody = ping(&simulation, 0, NodeId::random());
    simulation.pass(2 * PING_PATIENCE);
    assert_eq!(failure(&stalled), Some(ErrorKind::TimedOut));
    assert_eq!(failure(&nobody), Some(ErrorKind::Disconnected));
    assert_eq!(failure(&call(&simulation, 0, (u8::MAX, [0; 6]))), Some(ErrorKind::Invalid));
    drop(simulation);
    seeded::set(None);
}
