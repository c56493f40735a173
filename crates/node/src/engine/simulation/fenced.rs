//! Fenced writes of simulated nodes: clients add to a word by reading and writing it under a lock. Some stand
//! still for so long that they lose the lock, and still write. No addition is lost.

use std::cell::{Cell, RefCell};
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::time::Duration;

use plasmon::shared::{ARGUMENTS, CallPayload, CallRequest, CallResult};
use plasmon::wire::{BySlot, OnRegion, Operation, RegionCall, Reply, Request, SyncCall};
use plasmon::{Error, ErrorKind};

use super::counters::{SETTLED_TIME, end, mapped};
use super::{below, percent, span};
use crate::engine::Core;
use crate::kernel::ClientKey;
use crate::service::Return;

/// Seeds of the case.
const SEEDS: RangeInclusive<u64> = 1..=6;
/// Time to live of the leases.
const TTL: Duration = Duration::from_secs(1);
/// Longest time that a call may take.
const CALL_PATIENCE: Duration = Duration::from_secs(8);
/// Time for which clients work.
const WORK_TIME: Duration = Duration::from_secs(40);

/// Counts of what the clients have done.
#[derive(Default)]
struct Sums {
    done: Cell<u64>,
    unknown: Cell<u64>,
    fenced: Cell<u64>,
    wrong: RefCell<Vec<Error>>,
}

fn count(count: &Cell<u64>) {
    count.set(count.get() + 1);
}

/// A client that adds.
struct Adder {
    core: Rc<Core>,
    key: ClientKey,
    lock: u32,
    region: u32,
    sums: Rc<Sums>,
    ends: Rc<Cell<bool>>,
}

impl Adder {
    async fn call(
        &self,
        (opcode, arguments): (u8, [u64; ARGUMENTS]),
        payload: &[u8],
    ) -> Result<CallResult, Error> {
        let timeout_us = CALL_PATIENCE.as_micros() as u64;
        let payload = CallPayload::new(payload).expect("it fits a slot");
        let request = CallRequest { opcode, class: None, timeout_us, arguments, payload };
        match self.core.services.on_call(self.key, request) {
            Return::Now(result) => result,
            Return::Later { task, .. } => task.await,
        }
    }

    async fn run(self) {
        let mut ticket = 0;
        while !self.ends.get() {
            ticket += 1;
            let lock = SyncCall::Lock { lock: self.lock, ticket, shared: false };
            if self.call(lock.encode(), &[]).await.is_ok() {
                self.add(ticket).await;
            }
            // The lease may be over.
            _ = self.call(SyncCall::Unlock { ticket }.encode(), &[]).await;
            self.core.kernel.clock.sleep(span(Duration::from_millis(20))).await;
        }
    }

    /// Writes with the guard of a ticket.
    async fn write(&self, ticket: u64, bytes: &[u8]) -> Result<CallResult, Error> {
        let call = RegionCall::On(Operation::Write { offset: 0 });
        self.call(OnRegion { handle: self.region, guard: ticket, call }.encode(), bytes).await
    }

    async fn add(&self, ticket: u64) {
        // Earlier holders of the lock cannot write from here on, so the value that is read stays until it is
        // written.
        if self.write(ticket, &[]).await.is_err() {
            return;
        }
        let read = RegionCall::On(Operation::Read { offset: 0, len: 8 }).through(self.region).encode();
        let Ok(read) = self.call(read, &[]).await else { return };
        let value = u64::from_le_bytes((*read.payload).try_into().expect("a word"));
        if percent(20) {
            self.core.kernel.clock.sleep(span(TTL * 3)).await;
        }
        match self.write(ticket, &(value + 1).to_le_bytes()).await {
            Ok(_) => count(&self.sums.done),
            Err(error) => match error.kind() {
                ErrorKind::Fenced => count(&self.sums.fenced),
                ErrorKind::OutcomeUnknown => count(&self.sums.unknown),
                ErrorKind::Disconnected => {}
                _ => self.sums.wrong.borrow_mut().push(error),
            },
        }
    }
}

#[test]
fn no_sum_is_lost_although_holders_stand_still() {
    let mut fenced = 0;
    for seed in SEEDS {
        let (mut simulation, mut users) = mapped(seed);
        let (sums, ends) = (Rc::<Sums>::default(), Rc::<Cell<bool>>::default());
        for user in &mut users {
            let open = Request::OpenLock { name: "sum".to_owned(), public: false, ttl_ms: 1000 };
            let Ok(Reply::LockOpened { lock }) = user.ask(&mut simulation, open) else { panic!("no lock") };
            let core = Rc::clone(simulation.hosts[user.host].core().expect("it runs"));
            let (key, region) = (user.key, user.handle);
            let adder = Adder { core, key, lock, region, sums: Rc::clone(&sums), ends: Rc::clone(&ends) };
            simulation.hosts[user.host].spawn(adder.run());
        }
        simulation.network.change_faults(|faults| faults.cut_ppm = 2_000);
        let until = simulation.time.now() + WORK_TIME;
        while simulation.time.now() < until {
            let hosts = simulation.hosts.len();
            let until = simulation.time.now() + span(TTL * 2);
            simulation.hosts[below(hosts)].stall(until);
            simulation.pass(span(TTL));
            let (user, to) = (below(users.len()), below(hosts));
            let node = simulation.hosts[to].id().expect("it runs");
            let handle = users[user].handle;
            // The region moves with the fences that it was shown. The move may be refused.
            let moves = Request::MoveRegion { handle, node, timeout_us: 5_000_000 };
            users[user].begin_ask(&simulation, moves);
            simulation.pass(span(TTL * 4));
        }
        ends.set(true);
        simulation.mend();
        simulation.pass(SETTLED_TIME);
        let read = RegionCall::On(Operation::Read { offset: 0, len: 8 }).through(users[0].handle).encode();
        let read = users[0].call(&simulation, read, CALL_PATIENCE);
        simulation.pass(SETTLED_TIME);
        let read = read.get().expect("it ends").as_ref().expect("the region is there");
        let value = u64::from_le_bytes((*read.payload).try_into().expect("a word"));
        let (done, unknown) = (sums.done.get(), sums.unknown.get());
        assert!(sums.wrong.borrow().is_empty(), "seed {seed}: {:?}", sums.wrong.borrow());
        assert!(done > 5, "seed {seed}: {done} sums");
        assert!((done..=done + unknown).contains(&value), "seed {seed}: {value} of {done} and {unknown}");
        fenced += sums.fenced.get();
        end(simulation);
    }
    assert!(fenced > 0, "nobody was too late");
}
