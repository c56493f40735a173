//! Watchers, one a node: they get an event of every object that is sealed there, or the number of missed
//! events.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use plasmon::{ErrorKind, Event, ObjectId};

use super::model::{Place, Record};
use super::worker::Ground;

/// Events of one daemon.
#[derive(Default)]
struct Heard {
    sealed: HashMap<ObjectId, (u64, u32)>,
    here: HashSet<ObjectId>,
    missed: u64,
}

/// Events that all watchers have received.
#[derive(Default)]
pub(super) struct Watch(Mutex<HashMap<Place, Heard>>);

impl Watch {
    /// Watches a node, whichever daemon it has, until the end of the run.
    pub(super) fn watch(&self, ground: &Arc<Ground>, node: usize) {
        while !ground.ends() {
            let (client, place) = ground.connect(node);
            let Ok(mut events) = client.subscribe(&format!("watcher of node {node}")) else { continue };
            if !ground.model.lives(place) {
                continue;
            }
            self.0.lock().unwrap().entry(place).or_default();
            while !ground.ends() {
                match events.next(Some(Duration::from_millis(100)), None) {
                    Ok(event) => event.into_iter().for_each(|(_, event)| self.hear(place, event)),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Disconnected, "{error}");
                        assert!(!ground.model.lives(place), "the daemon of node {node} lives: {error}");
                        break;
                    }
                }
            }
        }
    }

    fn hear(&self, place: Place, event: Event) {
        let mut all = self.0.lock().unwrap();
        let heard = all.entry(place).or_default();
        match event {
            Event::Sealed { id, data_len, metadata_len, .. }
            | Event::Replaced { id, data_len, metadata_len, .. } => {
                heard.here.insert(id);
                heard.sealed.insert(id, (data_len, metadata_len));
            }
            Event::Deleted { id, .. } => {
                let known = heard.here.remove(&id);
                assert!(known || heard.missed > 0, "{id} left node {}, where it never was", place.node);
            }
            Event::Gap { missed } => heard.missed += missed,
        }
    }

    /// Whether the watcher of an object's home has received its event.
    ///
    /// # Panics
    /// If the event has other sizes.
    pub(super) fn heard(&self, record: &Record) -> bool {
        let all = self.0.lock().unwrap();
        let Some(heard) = all.get(&record.home) else { return false };
        let told = heard.sealed.get(&record.id);
        let meant = |told: &(u64, u32)| {
            record.lives.begun().any(|life| *told == (life.len as u64, life.metadata().len() as u32))
        };
        assert!(told.is_none_or(meant), "{told:?} was told of {record:?}");
        told.is_some() || heard.missed > 0
    }
}
