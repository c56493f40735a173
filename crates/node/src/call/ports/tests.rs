//! Tests of ports by themselves: which port a call comes to, which thread is woken for it, who may have it,
//! and what becomes of calls that are late, put back, or at a port that ends.

use std::future::Future;
use std::pin::Pin;
use std::rc::Weak;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;

use super::*;
use crate::call::bodies::Body;
use crate::call::incoming::{Arriving, Asker, Ended};
use crate::kernel::random::{random_u64, seeded};

/// The user to whom the service belongs, and two others.
const OWNER: u32 = 7;
const FRIEND: u32 = 8;
const OTHER: u32 = 9;
const SECOND: Duration = Duration::from_secs(1);
/// How long callers wait.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A service, the ports of which tests make, and the time.
struct Bench {
    served: Rc<Served>,
    clock: Rc<Clock>,
    now: Rc<Cell<Instant>>,
}

/// A call, and the receiver of what its caller hears.
struct Made {
    call: Rc<Incoming>,
    answer: oneshot::Receiver<Result<Ended, Error>>,
}

/// A thread that receives.
type Thread = Pin<Box<dyn Future<Output = Result<Rc<Incoming>, Error>>>>;

impl Bench {
    fn new() -> Self {
        let now = Rc::new(Cell::new(Instant::now()));
        let source = Rc::clone(&now);
        let served = Served {
            name: "words".to_owned(),
            id: plasmon::service::service_id("words"),
            owner: OWNER,
            functions: vec!["count".to_owned(), "upper".to_owned()],
            ports: RefCell::default(),
            joined: Cell::default(),
            joining: RefCell::default(),
        };
        Self { served: Rc::new(served), clock: Clock::with_source(move || source.get(), Duration::ZERO), now }
    }

    fn port(&self, allow: Allow) -> Rc<Port> {
        let number = self.served.ports.borrow().len() as u32 + 1;
        let port = Port::new(number, ClientKey::MIN, &self.served, allow);
        self.served.ports.borrow_mut().push(Rc::clone(&port));
        port
    }

    /// Ends a port as its client does; returns the calls that waited there.
    fn end(&self, port: &Rc<Port>) -> usize {
        self.served.ports.borrow_mut().retain(|one| !Rc::ptr_eq(one, port));
        port.end(Error::new(ErrorKind::Disconnected, "the client is gone")).len()
    }

    fn call(&self, user: u32) -> Made {
        let (sender, answer) = oneshot::channel();
        let arriving = Arriving {
            user,
            from: NodeId::from_bytes([1; 16]),
            body: Rc::new(Body::carried(Bytes::new())),
            due: self.now.get() + TIMEOUT,
            one_way: false,
            asker: Asker::Here(sender),
        };
        Made { call: Incoming::with(Weak::new(), &self.clock, 0, arriving), answer }
    }

    /// Has a call enter a port.
    fn enter(&self, port: &Port, user: u32) -> Made {
        let made = self.call(user);
        port.enter(Rc::clone(&made.call));
        made
    }

    /// Returns a thread that has found nothing at its port, and is parked there.
    fn parked(&self, port: &Rc<Port>) -> Thread {
        let mut thread = self.thread(port);
        assert!(received(&mut thread).is_none(), "a call was there");
        thread
    }

    fn thread(&self, port: &Rc<Port>) -> Thread {
        let (port, clock) = (Rc::clone(port), Rc::clone(&self.clock));
        Box::pin(async move { port.next(&clock).await })
    }

    fn pass(&self, time: Duration) {
        self.now.set(self.now.get() + time);
    }

    fn port_for(&self, user: u32) -> Result<Option<u32>, ErrorKind> {
        let port = self.served.port_for(user, self.now.get());
        port.map(|port| port.map(|port| port.number)).map_err(|error| error.kind())
    }
}

/// Returns the call that a thread gets when it has its turn; `None` if the thread was not woken, or
/// found nothing.
fn received(thread: &mut Thread) -> Option<Result<Rc<Incoming>, ErrorKind>> {
    thread.now_or_never().map(|result| result.map_err(|error| error.kind()))
}

/// Whether a thread gets this call.
fn gets(thread: &mut Thread, made: &Made) -> bool {
    matches!(received(thread), Some(Ok(call)) if Rc::ptr_eq(&call, &made.call))
}

/// Returns the kind of the error that a caller has heard, if there is one.
fn heard(made: &mut Made) -> Option<ErrorKind> {
    let answer = made.answer.try_recv().expect("the call is not lost");
    answer.map(|result| result.err().expect("no function has run").kind())
}

#[test]
fn a_call_wakes_one_thread_and_calls_leave_in_their_order() {
    let bench = Bench::new();
    let port = bench.port(Allow::User);
    let (mut one, mut other) = (bench.parked(&port), bench.parked(&port));
    let first = bench.enter(&port, OWNER);
    assert!(received(&mut other).is_none(), "the first who waited was woken");
    assert!(gets(&mut one, &first));
    let (second, third) = (bench.enter(&port, OWNER), bench.enter(&port, OWNER));
    assert_eq!(port.count(), 2);
    assert!(gets(&mut other, &second));
    assert!(gets(&mut bench.thread(&port), &third), "who comes later finds it there");
    assert_eq!(port.count(), 0);
}

#[test]
fn a_call_comes_to_a_port_with_parked_threads_or_the_fewest_calls() {
    let bench = Bench::new();
    assert_eq!(bench.port_for(OWNER), Ok(None), "nobody serves");
    let (one, two) = (bench.port(Allow::User), bench.port(Allow::Users(vec![FRIEND])));
    let _waits = [bench.enter(&one, OWNER), bench.enter(&one, OWNER), bench.enter(&two, OWNER)];
    assert_eq!(bench.port_for(OWNER), Ok(Some(2)));
    assert_eq!([bench.port_for(FRIEND), bench.port_for(0)], [Ok(Some(2)); 2]);
    assert_eq!(bench.port_for(OTHER), Err(ErrorKind::NotAllowed));
    let _more = [bench.enter(&two, OWNER), bench.enter(&two, OWNER)];
    assert_eq!([bench.port_for(OWNER), bench.port_for(FRIEND)], [Ok(Some(1)), Ok(Some(2))]);
    let bench = Bench::new();
    let (_, two) = (bench.port(Allow::User), bench.port(Allow::User));
    let thread = bench.parked(&two);
    assert_eq!(bench.port_for(OWNER), Ok(Some(2)), "a thread waits there");
    drop(thread);
    assert_eq!(bench.port_for(OWNER), Ok(Some(1)), "it waits no more");
}

#[test]
fn functions_are_found_by_name() {
    let served = Bench::new().served;
    let found = ["count", "upper", ""].map(|name| served.function(name).expect("there is one"));
    assert_eq!(found, [0, 1, PING]);
    assert_eq!(found.map(|number| served.name_of(number)), ["count", "upper", "ping"]);
    let error = served.function("lower").expect_err("there is none");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.message().contains("count, upper"), "{error}");
}

#[test]
fn a_thread_takes_what_waits_at_other_ports_if_it_may() {
    let bench = Bench::new();
    let (open, own) = (bench.port(Allow::Everyone), bench.port(Allow::User));
    let foreign = bench.enter(&open, OTHER);
    let mut thread = bench.parked(&own);
    let first = bench.enter(&open, OWNER);
    assert!(gets(&mut thread, &first), "it passes the call that it may not have");
    let second = bench.enter(&open, OWNER);
    let mine = bench.enter(&own, OWNER);
    assert!(gets(&mut bench.thread(&own), &mine), "its own port comes first");
    assert!(gets(&mut bench.thread(&own), &second));
    assert!(gets(&mut bench.thread(&open), &foreign));
}

#[test]
fn a_full_port_refuses_calls_until_late_ones_are_dropped() {
    let bench = Bench::new();
    let port = bench.port(Allow::User);
    let mut late: Vec<_> = (0..MAX_WAITING).map(|_| bench.enter(&port, OWNER)).collect();
    assert_eq!(bench.port_for(OWNER), Err(ErrorKind::Busy));
    assert!(late.iter_mut().all(|made| heard(made).is_none()), "those that wait go on waiting");
    bench.pass(TIMEOUT);
    assert_eq!(bench.port_for(OWNER), Ok(Some(1)));
    assert_eq!(port.count(), 0);
    assert!(late.iter_mut().all(|made| heard(made) == Some(ErrorKind::TimedOut)));
}

#[test]
fn what_nobody_waits_for_is_given_to_no_thread() {
    let bench = Bench::new();
    let port = bench.port(Allow::User);
    let mut late = bench.enter(&port, OWNER);
    bench.pass(TIMEOUT - SECOND);
    let (mut given_up, gone, wanted) =
        (bench.enter(&port, OWNER), bench.enter(&port, OWNER), bench.enter(&port, OWNER));
    given_up.call.give_up();
    drop(gone.answer);
    bench.pass(SECOND);
    assert!(gets(&mut bench.thread(&port), &wanted));
    assert_eq!([heard(&mut late), heard(&mut given_up)], [Some(ErrorKind::TimedOut); 2]);
    assert!(received(&mut bench.thread(&port)).is_none(), "there is no other");
}

#[test]
fn late_calls_are_dropped_and_others_keep_their_order() {
    let bench = Bench::new();
    let port = bench.port(Allow::User);
    let mut late = bench.enter(&port, OWNER);
    bench.pass(SECOND);
    let (first, second) = (bench.enter(&port, OWNER), bench.enter(&port, OWNER));
    bench.pass(TIMEOUT - SECOND);
    port.drop_late(bench.now.get());
    assert_eq!((heard(&mut late), port.count()), (Some(ErrorKind::TimedOut), 2));
    assert!(gets(&mut bench.thread(&port), &first) && gets(&mut bench.thread(&port), &second));
}

#[test]
fn a_thread_that_was_woken_and_gives_up_passes_the_call_on() {
    let bench = Bench::new();
    let (one, other) = (bench.port(Allow::User), bench.port(Allow::User));
    let (first, mut second, mut third) = (bench.parked(&one), bench.parked(&one), bench.parked(&other));
    let call = bench.enter(&one, OWNER);
    drop(first);
    assert!(received(&mut third).is_none(), "a thread of the same port comes first");
    assert!(gets(&mut second, &call));
    let (fourth, call) = (bench.parked(&one), bench.enter(&one, OWNER));
    drop(fourth);
    assert!(gets(&mut third, &call), "a thread of another port has it");
}

#[test]
fn a_call_that_is_put_back_comes_next_and_wakes_whoever_may_have_it() {
    let bench = Bench::new();
    let (one, other) = (bench.port(Allow::User), bench.port(Allow::User));
    let (call, later) = (bench.enter(&one, OWNER), bench.enter(&one, OWNER));
    let taken = received(&mut bench.thread(&one)).expect("it is there").expect("the port serves");
    one.put_back(taken);
    assert!(gets(&mut bench.thread(&one), &call) && gets(&mut bench.thread(&one), &later));
    let mut parked = bench.parked(&other);
    one.put_back(Rc::clone(&call.call));
    assert!(gets(&mut parked, &call));
}

#[test]
fn an_ended_port_tells_its_threads_and_gives_its_calls_back() {
    let bench = Bench::new();
    let (one, other, third) = (bench.port(Allow::User), bench.port(Allow::User), bench.port(Allow::User));
    let (mut parked, mut woken) = (bench.parked(&one), bench.parked(&other));
    let mut last = bench.parked(&third);
    // This thread was woken for a call of the first port, of which all threads had been woken.
    let [near, far] = [bench.enter(&one, OWNER), bench.enter(&one, OWNER)];
    assert_eq!(bench.end(&other), 0);
    assert_eq!(received(&mut woken).map(|result| result.err()), Some(Some(ErrorKind::Disconnected)));
    assert!(gets(&mut parked, &near));
    assert!(gets(&mut last, &far), "the call of a thread that does not come is another's");
    let waits = [bench.enter(&one, OWNER), bench.enter(&one, OWNER)];
    assert_eq!((bench.end(&one), one.count()), (waits.len(), 0));
    assert_eq!(
        received(&mut bench.thread(&one)).map(|result| result.err()),
        Some(Some(ErrorKind::Disconnected))
    );
}

/// Whether a call waits although a thread is parked that may have it, and all that were woken have had their
/// turn.
fn is_stuck(bench: &Bench, threads: &mut Vec<Thread>) -> bool {
    let mut runs = true;
    while runs {
        let before = threads.len();
        threads.retain_mut(|thread| received(thread).is_none());
        runs = threads.len() < before;
    }
    let ports = bench.served.ports.borrow();
    let parked = |port: &&Rc<Port>| port.parked.borrow().iter().any(|thread| !thread.is_canceled());
    ports
        .iter()
        .filter(parked)
        .any(|port| ports.iter().any(|other| other.waiting.borrow().iter().any(|call| port.may_have(call))))
}

#[test]
fn no_call_waits_beside_a_thread_that_may_have_it() {
    let mut all_received = 0;
    for seed in 1..=300 {
        seeded::set(Some(seed));
        let below = |limit: usize| (random_u64() % limit as u64) as usize;
        let bench = Bench::new();
        let allows = || [Allow::User, Allow::Everyone, Allow::Users(vec![FRIEND])][below(3)].clone();
        let (mut threads, mut made) = (Vec::<Thread>::new(), Vec::new());
        let mut taken: Vec<(Rc<Port>, Rc<Incoming>)> = Vec::new();
        for _ in 0..4 {
            bench.port(allows());
        }
        for _ in 0..200 {
            let port = Rc::clone(&bench.served.ports.borrow()[below(bench.served.ports.borrow().len())]);
            match below(100) {
                0..30 => {
                    let user = [OWNER, FRIEND, OTHER][below(3)];
                    if port.allow.permits(OWNER, user) {
                        made.push(bench.enter(&port, user));
                    }
                }
                30..55 => threads.push(bench.thread(&port)),
                // A thread has its turn.
                55..80 if !threads.is_empty() => {
                    let at = below(threads.len());
                    if let Some(result) = received(&mut threads[at]) {
                        taken.extend(result.ok().map(|call| (port, call)));
                        drop(threads.swap_remove(at));
                    }
                }
                80..90 if !threads.is_empty() => drop(threads.swap_remove(below(threads.len()))),
                90..94 => {
                    // A thread could not be given what it took.
                    if let Some((port, call)) = taken.pop() {
                        let serves = port.ended.borrow().is_none();
                        let _ = serves.then(|| port.put_back(call));
                    }
                }
                94..96 if bench.served.ports.borrow().len() > 2 => _ = bench.end(&port),
                96.. => bench.pass(SECOND / 2),
                _ => {}
            }
        }
        all_received += taken.len();
        assert!(!is_stuck(&bench, &mut threads), "seed {seed}");
        seeded::set(None);
    }
    assert!(all_received > 0, "nothing was tried");
}
