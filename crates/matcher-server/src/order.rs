//! Requests of one server about one room or team are processed in the order in which they came, though one that claims
//! players of other shards takes its time there.

use std::collections::{BTreeMap, VecDeque};

/// A server, and a room or team.
type Object = (String, Vec<u8>);

/// A request that claims, or one behind such a one.
struct Entry<T> {
    objects: Vec<Object>,
    claims: bool,
    /// Until it may go.
    held: Option<T>,
}

/// What is under way, as far as anything has to wait for it. Memory: as many entries as there are such requests.
pub(crate) struct Order<T> {
    /// By number of the request.
    entries: BTreeMap<u64, Entry<T>>,
    /// Requests about an object in order: nothing goes that is behind one that claims.
    queues: BTreeMap<Object, VecDeque<u64>>,
}

impl<T> Default for Order<T> {
    fn default() -> Order<T> {
        Order { entries: BTreeMap::new(), queues: BTreeMap::new() }
    }
}

impl<T> Order<T> {
    /// A request comes that names objects. Gives it back if it may go now.
    pub(crate) fn enter(
        &mut self,
        number: u64,
        srv: &str,
        named: &[&[u8]],
        claims: bool,
        request: T,
    ) -> Option<T> {
        if named.is_empty() || !claims && self.queues.is_empty() {
            return Some(request);
        }
        let objects: Vec<Object> = named.iter().map(|id| (srv.to_owned(), id.to_vec())).collect();
        let waits = objects.iter().any(|object| self.queues.contains_key(object));
        if !claims && !waits {
            return Some(request);
        }
        for object in &objects {
            self.queues.entry(object.clone()).or_default().push_back(number);
        }
        let (held, goes) = if waits { (Some(request), None) } else { (None, Some(request)) };
        self.entries.insert(number, Entry { objects, claims, held });
        goes
    }

    /// A request was answered. Gives those that may go now, in order.
    pub(crate) fn answered(&mut self, number: u64) -> Vec<T> {
        let mut goes = Vec::new();
        let Some(entry) = self.entries.remove(&number) else { return goes };
        self.leave(number, &entry.objects);
        for object in &entry.objects {
            // A request goes at once where it is the first of all its objects, and the next ones with it unless it claims.
            while let Some(first) = self.queues.get(object).and_then(VecDeque::front).copied() {
                let is_first = |object| self.queues.get(object).and_then(VecDeque::front) == Some(&first);
                let Some(entry) = self.entries.get(&first) else { break };
                if !entry.objects.iter().all(is_first) {
                    break;
                }
                let claims = entry.claims;
                if claims {
                    goes.extend(self.entries.get_mut(&first).and_then(|entry| entry.held.take()));
                    break;
                }
                let Some(entry) = self.entries.remove(&first) else { break };
                goes.extend(entry.held);
                self.leave(first, &entry.objects);
            }
        }
        goes
    }

    fn leave(&mut self, number: u64, objects: &[Object]) {
        for object in objects {
            if let Some(queue) = self.queues.get_mut(object) {
                // It is the first of each, but where an object was named twice.
                queue.retain(|other| *other != number);
                if queue.is_empty() {
                    self.queues.remove(object);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overtakes_a_request_that_claims() {
        let mut order: Order<u64> = Order::default();
        let mut enter = |number, named: &[&[u8]], claims| order.enter(number, "s", named, claims, number);
        assert_eq!(enter(1, &[b"room"], false), Some(1), "there is nothing to wait for");
        assert_eq!(enter(2, &[b"room", b"team"], true), Some(2));
        assert_eq!(enter(3, &[b"room"], false), None);
        assert_eq!(enter(4, &[b"other"], false), Some(4), "another room does not wait");
        assert_eq!(enter(5, &[b"room", b"team"], true), None);
        assert_eq!(enter(6, &[b"team"], false), None);
        assert_eq!(enter(7, &[], false), Some(7));
        assert_eq!(order.enter(8, "t", &[b"room"], false, 8), Some(8), "nor does another server");
        assert_eq!(order.answered(1), Vec::<u64>::new());
        assert_eq!(order.answered(2), [3, 5]);
        assert_eq!(order.answered(3), Vec::<u64>::new());
        assert_eq!(order.answered(5), [6]);
        assert!(order.queues.is_empty() && order.entries.is_empty());
    }
}
