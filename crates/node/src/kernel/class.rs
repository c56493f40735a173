//! The class of service that the engine works for at the moment.
//!
//! Owns the class of the work that a thread does now. Engine thread only; the engines of a simulation share
//! their thread. Whoever begins work for a client, or for a frame, says of which class it is ([`within`]). A
//! task is of the class of what spawned it, wherever it is polled, so nothing in between has to hand the
//! class on. Work of the node's own is *normal*.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::rc::Rc;

use plasmon::Class;

thread_local! {
    /// The class of what this thread does now.
    static CURRENT: Cell<Class> = const { Cell::new(Class::Normal) };
}

/// The class of the work at hand.
pub(crate) fn current() -> Class {
    CURRENT.get()
}

/// Does work of a class.
pub(crate) fn within<T>(class: Class, work: impl FnOnce() -> T) -> T {
    struct Former(Class);
    impl Drop for Former {
        fn drop(&mut self) {
            CURRENT.set(self.0);
        }
    }
    let _former = Former(CURRENT.replace(class));
    work()
}

/// Does work of a class that may change while the work is under way, such as a fetch that others join.
pub(crate) async fn working<T>(class: Rc<Cell<Class>>, work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    poll_fn(|context| within(class.get(), || work.as_mut().poll(context))).await
}

/// Does work for which others wait, such as the renewal of a lease, whatever the class of those who began it.
pub(crate) async fn urgently<T>(work: impl Future<Output = T>) -> T {
    working(Rc::new(Cell::new(Class::High)), work).await
}

/// Raises the class of work under way to that of the work at hand.
pub(crate) fn raise(class: &Cell<Class>) {
    if current().rank() < class.get().rank() {
        class.set(current());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::tasks::Tasks;

    #[test]
    fn a_task_is_of_the_class_of_what_spawned_it() {
        let mut tasks = Tasks::new();
        let spawner = Rc::new(tasks.spawner());
        let seen = Rc::new(Cell::new(None));
        let (again, see) = (Rc::clone(&spawner), Rc::clone(&seen));
        within(Class::Low, || {
            spawner.spawn(async move {
                let task = async move { see.set(Some(current())) };
                within(Class::High, || again.spawn(task));
                assert_eq!(current(), Class::Low);
            })
        });
        assert_eq!(current(), Class::Normal);
        tasks.run_until_stalled();
        assert_eq!((seen.get(), current()), (Some(Class::High), Class::Normal));
    }

    #[test]
    fn work_under_way_is_raised_and_never_lowered() {
        let class = Rc::new(Cell::new(Class::Normal));
        within(Class::Low, || raise(&class));
        assert_eq!(class.get(), Class::Normal);
        within(Class::High, || raise(&class));
        let seen = futures::executor::block_on(working(Rc::clone(&class), async { current() }));
        assert_eq!((class.get(), seen), (Class::High, Class::High));
    }
}
