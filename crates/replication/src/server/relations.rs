//! Objects that go with others: sub-objects, dependents, creation parents.

use super::{DestroyReason, Follower, FollowerKind, Hint, ObjectError, Server};
use crate::class::ClassId;
use crate::handle::Handle;

/// Sub-objects of one root at most.
const SUBS_MAX: usize = 255;
/// Longest way from an object to one that it brings into scope.
const DEPTH_MAX: usize = 8;

impl Server {
    pub(crate) fn create_sub(&mut self, root: Handle, class: ClassId) -> Result<Handle, ObjectError> {
        let above = self.known(root)?;
        let is_sub = self.shared.objects.follows.get(above) && self.is_sub(above);
        if is_sub || self.count(above, |kind| kind == FollowerKind::Sub) >= SUBS_MAX {
            return Err(ObjectError::Relation);
        }
        let handle = self.create_object(class)?;
        let index = handle.index();
        self.set_filter(handle, super::Filter::Never)?;
        let owner = self.owner(root);
        self.shared.objects.parent[index as usize] = above;
        self.follow(above, Follower { object: index, kind: FollowerKind::Sub });
        self.set_owner(handle, owner)?;
        let (from, to) = (above as usize, index as usize);
        let objects = &mut self.shared.objects;
        objects.prioritiser[to] = objects.prioritiser[from];
        let throttled = objects.throttled.get(above);
        objects.throttled.assign(index, throttled);
        for axis in [&mut objects.x, &mut objects.y, &mut objects.z] {
            axis[to] = axis[from];
        }
        Ok(handle)
    }

    /// Names the object that must be on a receiver before this one is created there: what it is
    /// attached to. It comes into scope with the object. `None` ends that, as the end of the parent
    /// does. Clients that have the object follow
    /// ([`ClientEvent::ParentChanged`](crate::ClientEvent::ParentChanged)).
    ///
    /// # Errors
    /// When an object does not exist, is a sub-object, or the relation would form a circle or be
    /// deeper than 8.
    pub fn set_parent(&mut self, handle: Handle, parent: Option<Handle>) -> Result<(), ObjectError> {
        let index = self.known(handle)?;
        let above = parent.map(|parent| self.known(parent)).transpose()?;
        let old = self.shared.objects.parent[index as usize];
        if self.shared.objects.follows.get(index) && self.is_sub(index) {
            return Err(ObjectError::Relation);
        }
        if let Some(above) = above {
            self.check_relation(index, above)?;
            // The way back through creation parents: an object cannot wait for its own part.
            let mut before = above;
            while before != 0 {
                if before == index {
                    return Err(ObjectError::Relation);
                }
                before = self.shared.objects.parent[before as usize];
            }
        }
        if old != 0 {
            self.unfollow(index, old, |kind| kind == FollowerKind::Parent);
        }
        self.put_below(index, above.unwrap_or(0));
        if let Some(above) = above {
            self.follow(index, Follower { object: above, kind: FollowerKind::Parent });
        }
        Ok(())
    }

    /// Sets the parent, and notifies those who have the object.
    fn put_below(&mut self, index: u32, above: u32) {
        let before = core::mem::replace(&mut self.shared.objects.parent[index as usize], above);
        for conn in self.connections.iter_mut().flatten().filter(|_| before != above) {
            conn.queue_role(index);
        }
    }

    /// Makes `child` dependent on `parent`: no dynamic filter refuses it while the parent is in
    /// scope, and it is considered whenever the parent is sent.
    ///
    /// # Errors
    /// When an object does not exist or the relation would form a circle or be deeper than 8.
    pub fn add_dependent(&mut self, parent: Handle, child: Handle, hint: Hint) -> Result<(), ObjectError> {
        let (above, below) = (self.known(parent)?, self.known(child)?);
        self.check_relation(above, below)?;
        self.unfollow(above, below, |kind| matches!(kind, FollowerKind::Dependent(_)));
        self.follow(above, Follower { object: below, kind: FollowerKind::Dependent(hint) });
        Ok(())
    }

    /// Ends what [`add_dependent`](Self::add_dependent) began.
    ///
    /// # Errors
    /// When an object does not exist.
    pub fn remove_dependent(&mut self, parent: Handle, child: Handle) -> Result<(), ObjectError> {
        let (above, below) = (self.known(parent)?, self.known(child)?);
        self.unfollow(above, below, |kind| matches!(kind, FollowerKind::Dependent(_)));
        Ok(())
    }

    pub(super) fn is_sub(&self, index: u32) -> bool {
        let above = self.shared.objects.parent[index as usize];
        let followers = self.shared.followers.get(&above).map_or(&[][..], Vec::as_slice);
        followers.contains(&Follower { object: index, kind: FollowerKind::Sub })
    }

    fn count(&self, leader: u32, is: impl Fn(FollowerKind) -> bool) -> usize {
        let followers = self.shared.followers.get(&leader).map_or(&[][..], Vec::as_slice);
        followers.iter().filter(|follower| is(follower.kind)).count()
    }

    /// `leader` may bring `follower` into scope: no way leads back, and none gets too long.
    fn check_relation(&self, leader: u32, follower: u32) -> Result<(), ObjectError> {
        let mut level = vec![follower];
        for _ in 0..DEPTH_MAX {
            if level.contains(&leader) {
                return Err(ObjectError::Relation);
            }
            let followers = level.iter().filter_map(|object| self.shared.followers.get(object)).flatten();
            level = followers.map(|follower| follower.object).collect();
            if level.is_empty() {
                return Ok(());
            }
        }
        Err(ObjectError::Relation)
    }

    fn follow(&mut self, leader: u32, follower: Follower) {
        let list = self.shared.followers.entry(leader).or_default();
        if let Err(at) = list.binary_search(&follower) {
            list.insert(at, follower);
        }
        let leaders = self.leaders.entry(follower.object).or_default();
        if let Err(at) = leaders.binary_search(&leader) {
            leaders.insert(at, leader);
        }
        self.shared.objects.leads.set(leader);
        self.shared.objects.follows.set(follower.object);
        self.shared.any_follower = true;
    }

    /// Ends what makes `object` follow `leader`, as far as `which` says so.
    fn unfollow(&mut self, leader: u32, object: u32, which: impl Fn(FollowerKind) -> bool) {
        let Some(list) = self.shared.followers.get_mut(&leader) else { return };
        // Sorted by object: all of one lie side by side.
        let from = list.partition_point(|follower| follower.object < object);
        let mut to = from;
        let mut kept = false;
        while list.get(to).is_some_and(|follower| follower.object == object) {
            if which(list[to].kind) {
                list.remove(to);
            } else {
                (to, kept) = (to + 1, true);
            }
        }
        if list.is_empty() {
            self.shared.followers.remove(&leader);
            self.shared.objects.leads.clear(leader);
        }
        if kept {
            return;
        }
        if let Some(leaders) = self.leaders.get_mut(&object) {
            if let Ok(at) = leaders.binary_search(&leader) {
                leaders.remove(at);
            }
            if leaders.is_empty() {
                self.leaders.remove(&object);
                self.shared.objects.follows.clear(object);
            }
        }
    }

    /// The object ends: its parts end with it, and nothing follows it or is followed by it any
    /// more. Costs a look at each of its relations.
    pub(super) fn end_relations(&mut self, index: u32, reason: DestroyReason, flush: bool) {
        if !self.shared.objects.leads.get(index) && !self.shared.objects.follows.get(index) {
            return;
        }
        for follower in self.shared.followers.get(&index).cloned().unwrap_or_default() {
            self.stats.relations_ended += 1;
            self.unfollow(index, follower.object, |_| true);
            if follower.kind == FollowerKind::Sub {
                let generation = self.shared.objects.generation[follower.object as usize];
                // A part that was destroyed by itself is not listed any more.
                let _ = self.destroy(Handle::from_parts(follower.object, generation), reason, flush);
            }
        }
        for leader in self.leaders.get(&index).cloned().unwrap_or_default() {
            self.stats.relations_ended += 1;
            self.unfollow(leader, index, |_| true);
            // What was created after the object stands by itself now.
            if self.shared.objects.parent[leader as usize] == index {
                self.put_below(leader, 0);
            }
        }
        self.shared.any_follower = !self.shared.followers.is_empty();
    }
}
