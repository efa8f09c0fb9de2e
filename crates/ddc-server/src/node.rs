//! A cache in a folder, with the threads that it needs.

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use throng_ddc_store::{Options, Store, StoreError};
use throng_platform::Folder;

use crate::blocking::{MAINTENANCE_NICE, give_way};
use crate::origin::Origin;
use crate::service::{Rules, Service};

/// How often a node looks whether the index should follow the log.
const CHECKPOINT_LOOK: Duration = Duration::from_secs(1);

/// Priority of merges, without which look-ups become slower: a quarter.
const MERGE_NICE: i32 = 5;

/// A cache in a folder. Dropping it commits what is queued and ends its threads.
#[derive(Debug)]
pub struct Node {
    service: Arc<Service>,
    threads: Vec<JoinHandle<()>>,
    /// Ends what the node does by itself, when it is dropped.
    maintenance: Vec<(mpsc::Sender<()>, JoinHandle<()>)>,
}

impl Node {
    /// Opens the cache in `folder`, or makes one there.
    ///
    /// # Errors
    /// As the system says.
    pub fn open(folder: &Path, options: Options, rules: Rules) -> Result<Node, StoreError> {
        Node::open_with(folder, options, rules, Origin::Alone)
    }

    /// The same, for a cache that gets what it does not have from elsewhere.
    ///
    /// # Errors
    /// As the system says.
    pub fn open_with(
        folder: &Path,
        options: Options,
        rules: Rules,
        origin: Origin,
    ) -> Result<Node, StoreError> {
        let store = Store::open(Arc::new(Folder::new(folder)?), options)?;
        let thread = |name: &str, work: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.to_owned()).spawn(work).map_err(StoreError::from)
        };
        let (commits, checkpoints, merges) = (Arc::clone(&store), Arc::clone(&store), Arc::clone(&store));
        let maintenance = rules.maintenance;
        let service = Service::new(store, rules, origin);
        let mut node = Node { service, threads: Vec::new(), maintenance: Vec::new() };
        node.threads.push(thread("cache commit", Box::new(move || commits.run()))?);
        node.threads
            .push(thread("cache index", Box::new(move || checkpoints.run_checkpoints(CHECKPOINT_LOOK)))?);
        let merge = move || {
            give_way(MERGE_NICE);
            merges.run_merges(CHECKPOINT_LOOK);
        };
        node.threads.push(thread("cache merge", Box::new(merge))?);
        let (end, ended) = mpsc::channel();
        let service = Arc::clone(&node.service);
        let upkeep = move || {
            give_way(MAINTENANCE_NICE);
            service.run_maintenance(maintenance, &ended);
        };
        let upkeep = thread("cache upkeep", Box::new(upkeep))?;
        node.maintenance.push((end, upkeep));
        let (end, ended) = mpsc::channel();
        let service = Arc::clone(&node.service);
        let scrub = move || {
            give_way(MAINTENANCE_NICE);
            service.run_scrubs(maintenance, &ended);
        };
        let scrubs = thread("cache scrub", Box::new(scrub))?;
        node.maintenance.push((end, scrubs));
        let (end, ended) = mpsc::channel();
        let service = Arc::clone(&node.service);
        let count = move || {
            give_way(MAINTENANCE_NICE);
            service.run_counts(&ended);
        };
        let counts = thread("cache count", Box::new(count))?;
        node.maintenance.push((end, counts));
        Ok(node)
    }

    /// What answers requests.
    #[must_use]
    pub fn service(&self) -> &Arc<Service> {
        &self.service
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // A collection or eviction that runs is for a later process.
        self.service.store().end_maintenance();
        // It has things to write down, so it ends before the store does.
        for (end, thread) in self.maintenance.drain(..) {
            drop(end);
            let _ = thread.join();
        }
        self.service.store().shut();
        for thread in self.threads.drain(..) {
            // A panic of that thread was reported when it happened.
            let _ = thread.join();
        }
        // The next start reads less.
        if let Err(error) = self.service.store().checkpoint() {
            tracing::warn!(%error, "the index could not be written at the end");
        }
    }
}
