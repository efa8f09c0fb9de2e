//! Objects: their lives, values, owners and sleep.

use std::sync::Arc;

use super::frame::absorb;
use super::{ConnId, DestroyReason, Event, Filter, FollowerKind, ObjectError, Server};
use crate::class::{ClassId, Condition};
use crate::connection::Connection;
use crate::handle::Handle;
use crate::keyed::KeyedArray;
use crate::objects::NOBODY;
use crate::quantise::Value;
use crate::typed::Creation;

/// Bytes of a creation around the object's properties at most.
const CREATE_BYTES: usize = 40;

impl Server {
    pub(super) fn index(&self, handle: Handle) -> Option<u32> {
        let at = handle.index() as usize;
        let objects = &self.shared.objects;
        (at < objects.class.len()
            && objects.alive.get(handle.index())
            && objects.generation[at] == handle.generation())
        .then_some(handle.index())
    }

    pub(super) fn known(&self, handle: Handle) -> Result<u32, ObjectError> {
        self.index(handle).ok_or(ObjectError::Unknown)
    }

    /// Creates an object: of a [`ClassId`] with the defaults of the class, or of a reference to a
    /// replicated struct with its values, which then names its handle. Receivers get it with the
    /// values it has at the next frame.
    ///
    /// # Errors
    /// For an unknown class, a value that does not fit, or at the limit of objects.
    pub fn create<C: Creation>(&mut self, what: C) -> Result<C::Handle, ObjectError> {
        what.create(self, None)
    }

    /// Creates a part of `root`, as [`create`](Self::create) does: a component that comes and goes.
    /// It is in scope where the root is, created after it and destroyed with it, and belongs to its
    /// owner. Where the root moves, the part moves, for prioritisers.
    ///
    /// # Errors
    /// As [`create`](Self::create), and when the root does not exist, is itself a part or has 255
    /// parts.
    pub fn create_part<T, C: Creation>(
        &mut self,
        root: Handle<T>,
        what: C,
    ) -> Result<C::Handle, ObjectError> {
        what.create(self, Some(root.untyped()))
    }

    /// The class of an object.
    #[must_use]
    pub fn class(&self, handle: Handle) -> Option<&crate::Class> {
        self.index(handle).map(|index| &*self.shared.store(index).class)
    }

    /// The class of an object, by number.
    #[must_use]
    pub fn class_id(&self, handle: Handle) -> Option<ClassId> {
        self.index(handle).map(|index| ClassId(self.shared.objects.class[index as usize]))
    }

    pub(crate) fn create_object(&mut self, class: ClassId) -> Result<Handle, ObjectError> {
        let objects = &mut self.shared.objects;
        let store = self.shared.stores.get_mut(usize::from(class.0)).ok_or(ObjectError::UnknownClass)?;
        let max = self.shared.config.objects_max;
        let index = objects.allocate(max).ok_or(ObjectError::TooMany(max))?;
        let at = index as usize;
        objects.class[at] = class.0;
        objects.slot[at] = store.allocate();
        objects.owner[at] = NOBODY;
        objects.cull[at] = store.class.cull_distance;
        objects.prioritiser[at] = 0;
        objects.parent[at] = 0;
        objects.disabled[at] = 0;
        objects.dirty_mask[at] = store.class.all_mask();
        objects.dirty.set(index);
        objects.alive.set(index);
        let class = &store.class;
        let special = !class.groups.is_empty() || class.hide_mask != 0 || class.dynamic_mask != 0;
        if !class.keyed.is_empty() {
            let arrays = class.keyed.iter().map(|_| KeyedArray::new()).collect();
            self.shared.keyed.insert(index, arrays);
        }
        objects.delta.assign(index, class.flags.delta);
        objects.atomic.assign(index, class.flags.atomic);
        objects.lod.assign(index, class.position.is_some());
        objects.throttled.assign(index, 1.0 < self.shared.config.send_threshold);
        objects.leads.clear(index);
        objects.follows.clear(index);
        objects.special.assign(index, special);
        objects.conditional.assign(index, class.is_conditional());
        self.shared.any_special |= special;
        objects.dormant.clear(index);
        objects.flush.clear(index);
        if self.filters.len() <= at {
            self.filters.resize(objects.class.len(), Filter::default());
        }
        self.filters[at] = Filter::Grid;
        objects.always.clear(index);
        [objects.x[at], objects.y[at], objects.z[at]] = [0.0; 3];
        let generation = objects.generation[at];
        for gathering in &mut self.shared.gatherings {
            gathering.forget(index);
        }
        for at in 0..self.refusing.len() {
            self.decide(index, self.refusing[at].index());
        }
        Ok(Handle::from_parts(index, generation))
    }

    /// Destroys an object. With `flush` its last changes are sent with its end: properties, and
    /// elements of keyed arrays, also those that are in flight or were kept while it slept. For
    /// [`TornOff`](DestroyReason::TornOff) they always are. A last state that is longer than
    /// [`transfer_bytes_max`](crate::ServerConfig::transfer_bytes_max) is left out and counted
    /// ([`oversized`](crate::ConnectionStats::oversized)).
    ///
    /// # Errors
    /// When the handle names nothing.
    pub fn destroy(&mut self, handle: Handle, reason: DestroyReason, flush: bool) -> Result<(), ObjectError> {
        let index = self.known(handle)?;
        let flush = flush || reason == DestroyReason::TornOff;
        self.end_relations(index, reason, flush);
        self.end_name(index, reason as u8);
        let owner = self.shared.objects.owner[index as usize];
        if let Some(Some(conn)) = self.connections.get_mut(owner as usize) {
            conn.owned.clear(index);
            conn.owned_special.clear(index);
        }
        let objects = &mut self.shared.objects;
        objects.alive.clear(index);
        objects.always.clear(index);
        objects.destroy_reason[index as usize] = reason as u8;
        objects.flushing.remove(&index);
        if flush {
            objects.flush.set(index);
            // Changes of its sleep are in the last state.
            objects.dirty.set(index);
            self.show_elements(index);
        } else {
            self.kept.remove(&index);
            objects.dirty.clear(index);
            objects.dirty_mask[index as usize] = 0;
            objects.settled.remove(&index);
            self.shared.keyed.remove(&index);
        }
        self.shared.grid.remove(index);
        self.shared.keyed_changed.clear(index);
        self.leave_filter(index);
        self.polled.remove(index);
        self.filters[index as usize] = Filter::Never;
        self.shared.conditions.remove(&index);
        if let Some(filter) = self.statics.remove(&index) {
            for group in filter.groups {
                if let Some(group) = self.groups.get_mut(&group) {
                    group.members.clear(index);
                }
            }
        }
        for conn in self.connections.iter_mut().flatten() {
            conn.forced_in.clear(index);
            conn.forced_out.clear(index);
            conn.end_retained(index, reason as u8, flush);
            // Connections that have the object in scope report their dropped calls when it leaves.
            if !conn.scope.get(index)
                && let count @ 1.. = conn.attachments.target_gone(index)
            {
                let connection = conn.id;
                self.events.push_back(Event::AttachmentsDropped { connection, object: handle, count });
            }
        }
        self.dying.push(index);
        Ok(())
    }

    /// True when the handle names an object.
    #[must_use]
    pub fn exists(&self, handle: Handle) -> bool {
        self.index(handle).is_some()
    }

    /// Sets a property and marks it. Costs some nanoseconds; setting the value it has sends
    /// nothing.
    ///
    /// # Errors
    /// When the object or property does not exist, the value does not fit, or the strings, blobs,
    /// lists, options and enums of the object would exceed
    /// [`transfer_bytes_max`](crate::ServerConfig::transfer_bytes_max) together.
    pub fn set(
        &mut self,
        handle: Handle,
        property: usize,
        value: impl Into<Value>,
    ) -> Result<(), ObjectError> {
        let index = self.known(handle)?;
        let store = &mut self.shared.stores[usize::from(self.shared.objects.class[index as usize])];
        let slot = self.shared.objects.slot[index as usize];
        let class = Arc::clone(&store.class);
        let prop = class.props.get(property).ok_or(ObjectError::UnknownProperty(property))?;
        let value = value.into();
        if prop.codec.is_heap() {
            let mut bytes = Vec::new();
            let bits = prop
                .codec
                .write_heap(&value, &mut bytes)
                .map_err(|error| ObjectError::Value(property, error))?;
            let staged = &mut store.staged[slot as usize * class.heap_count..][..class.heap_count];
            let held = store.heap[slot as usize * class.heap_count..].iter().zip(&*staged).enumerate();
            let others = held.filter(|(at, _)| *at != prop.heap);
            let others = others.map(|(_, (held, staged))| staged.as_ref().unwrap_or(held).0.len());
            // All of the object goes together when it is created.
            let longest = others.sum::<usize>() + bytes.len() + class.record_bytes_max + CREATE_BYTES;
            let max = self.shared.config.transfer_bytes_max;
            if longest > max {
                return Err(ObjectError::TooLong { property, bytes: longest, max });
            }
            staged[prop.heap] = Some((bytes, bits));
        } else {
            let live = &mut store.live_mut(slot)[prop.live..];
            prop.codec.store(&value, live).map_err(|error| ObjectError::Value(property, error))?;
        }
        self.mark(index, 1 << property);
        Ok(())
    }

    /// Lets `write` change the object's live block (see [`Class::layout`](crate::Class::layout))
    /// and marks the properties of `mask`, bit n for property n: the fast way to set many. Values
    /// outside what a quantiser holds are clamped as by [`set`](Self::set). A change of a property
    /// that is not in `mask` stays unseen until that property is marked, polled or forced.
    ///
    /// # Errors
    /// When the object does not exist.
    #[inline]
    pub fn write_live(
        &mut self,
        handle: Handle,
        mask: u64,
        write: impl FnOnce(&mut [u32]),
    ) -> Result<(), ObjectError> {
        let index = self.known(handle)?;
        let store = &mut self.shared.stores[usize::from(self.shared.objects.class[index as usize])];
        write(store.live_mut(self.shared.objects.slot[index as usize]));
        self.mark(index, mask);
        Ok(())
    }

    /// Marks properties without setting them.
    pub fn mark_dirty(&mut self, handle: Handle, mask: u64) {
        match self.index(handle) {
            Some(index) => self.mark(index, mask),
            None => self.stats.stale_marks += 1,
        }
    }

    #[inline]
    pub(super) fn mark(&mut self, index: u32, mask: u64) {
        self.shared.objects.dirty_mask[index as usize] |= mask;
        self.shared.objects.dirty.set(index);
    }

    /// The value that receivers see, or will see: what the quantised copy holds. With it a
    /// simulation can go on from exactly what its clients have. Changes of this frame, and those
    /// that a sleeping object keeps, are not in it.
    ///
    /// # Errors
    /// When the object or property does not exist.
    pub fn quantised(&self, handle: Handle, property: usize) -> Result<Value, ObjectError> {
        let index = self.known(handle)?;
        let store = self.shared.store(index);
        let slot = self.shared.objects.slot[index as usize];
        let prop = store.class.props.get(property).ok_or(ObjectError::UnknownProperty(property))?;
        if prop.codec.is_heap() {
            let bytes = &store.heap(slot)[prop.heap].0;
            return Ok(prop.codec.read_heap(bytes).unwrap_or_else(|_| prop.codec.dequantise(&[0])));
        }
        Ok(prop.codec.dequantise(prop.words(store.quant(slot))))
    }

    /// The quantised words of an object, for comparisons with a replica's.
    #[must_use]
    pub fn quantised_words(&self, handle: Handle) -> Option<&[u64]> {
        let index = self.index(handle)?;
        Some(self.shared.store(index).quant(self.shared.objects.slot[index as usize]))
    }

    /// The owner of an object; `None` for an object without one, or that does not exist.
    #[must_use]
    pub fn owner(&self, handle: Handle) -> Option<ConnId> {
        let owner = self.shared.objects.owner[self.index(handle)? as usize];
        self.connections.get(owner as usize)?.as_ref().map(|conn| conn.id)
    }

    /// Gives the object to a connection, or to nobody. Its scope and conditions follow in the next
    /// frame; the former and the new owner are notified
    /// ([`ClientEvent::OwnerChanged`](crate::ClientEvent::OwnerChanged)). Its parts get the same
    /// owner; one that is set for a part alone holds until that of the root is set again.
    ///
    /// # Errors
    /// When the object or the connection does not exist.
    pub fn set_owner(&mut self, handle: Handle, owner: Option<ConnId>) -> Result<(), ObjectError> {
        let index = self.known(handle)?;
        if let Some(owner) = owner
            && self.conn(owner).is_none()
        {
            return Err(ObjectError::UnknownConnection);
        }
        let before = core::mem::replace(
            &mut self.shared.objects.owner[index as usize],
            owner.map_or(NOBODY, ConnId::index),
        );
        let special = self.shared.objects.conditional.get(index);
        let shared = &self.shared;
        let class = &shared.store(index).class;
        if let Some(Some(conn)) = self.connections.get_mut(before as usize) {
            conn.owned.clear(index);
            conn.recheck_arrays(index);
            conn.queue_role(index);
            conn.owned_special.clear(index);
            if special {
                conn.reveal(
                    shared,
                    index,
                    class.update_masks[0] & !class.update_masks[1] | class.dynamic_mask,
                );
            }
        }
        if let Some(owner) = owner
            && let Some(Some(conn)) = self.connections.get_mut(owner.at())
        {
            conn.owned.set(index);
            conn.recheck_arrays(index);
            conn.queue_role(index);
            if special {
                conn.owned_special.set(index);
                conn.reveal(
                    shared,
                    index,
                    class.update_masks[1] & !class.update_masks[0] | class.dynamic_mask,
                );
            }
        }
        self.decide_all(index);
        // Its parts get the same owner.
        let parts = self.shared.followers.get(&index).map_or(&[][..], Vec::as_slice);
        let parts = parts.iter().filter(|follower| follower.kind == FollowerKind::Sub);
        let parts: Vec<u32> = parts.map(|follower| follower.object).collect();
        for part in parts {
            let generation = self.shared.objects.generation[part as usize];
            self.set_owner(Handle::from_parts(part, generation), owner)?;
        }
        Ok(())
    }

    /// Chooses who gets a property with the condition [`Dynamic`](Condition::Dynamic) of this
    /// object. Connections to which it becomes visible get its present value. Costs a look at each
    /// connection.
    ///
    /// # Errors
    /// When the object does not exist, or the property's condition is not dynamic.
    pub fn set_condition(
        &mut self,
        handle: Handle,
        property: usize,
        condition: Condition,
    ) -> Result<(), ObjectError> {
        let index = self.known(handle)?;
        let bit = 1_u64.checked_shl(property as u32).unwrap_or(0);
        let chosen = !matches!(condition, Condition::Dynamic | Condition::Group(64..));
        if self.shared.store(index).class.dynamic_mask & bit == 0 || !chosen {
            return Err(ObjectError::Condition(property));
        }
        let shared = &self.shared;
        let visible = |conn: &Connection| conn.mask_for(shared, index, false) & bit != 0;
        let before: Vec<bool> =
            self.connections.iter().map(|conn| conn.as_deref().is_some_and(visible)).collect();
        let list = self.shared.conditions.entry(index).or_default();
        list.retain(|(properties, _)| *properties != bit);
        list.push((bit, condition));
        let shared = &self.shared;
        for (conn, before) in self.connections.iter_mut().zip(before) {
            if let Some(conn) = conn
                && !before
                && conn.keeps(index)
            {
                conn.reveal(shared, index, bit);
            }
        }
        Ok(())
    }

    /// Switches properties with the condition `Custom` on or off, for all connections. Those
    /// switched on are sent with their present value.
    ///
    /// # Errors
    /// When the object does not exist.
    pub fn set_condition_enabled(
        &mut self,
        handle: Handle,
        properties: u64,
        enabled: bool,
    ) -> Result<(), ObjectError> {
        let index = self.known(handle)?;
        let class = &self.shared.store(index).class;
        let mask = properties & (class.custom_mask | class.dynamic_mask);
        let disabled = &mut self.shared.objects.disabled[index as usize];
        let revealed = if enabled { *disabled & mask } else { 0 };
        *disabled = if enabled { *disabled & !mask } else { *disabled | mask };
        let shared = &self.shared;
        for conn in self.connections.iter_mut().flatten() {
            if revealed != 0 && conn.keeps(index) {
                conn.reveal(shared, index, revealed);
            }
        }
        Ok(())
    }

    /// Puts the object to sleep or wakes it. All receivers have the state in which it fell asleep:
    /// changes from before are still sent, and sent again after a loss, with the values of that
    /// moment, and a client that gets the object or one of its properties later gets these values
    /// too. Changes in its sleep, including those of position and elements, wait until it wakes or
    /// is flushed.
    ///
    /// # Errors
    /// When the object does not exist.
    pub fn set_dormant(&mut self, handle: Handle, dormant: bool) -> Result<(), ObjectError> {
        let index = self.known(handle)?;
        if dormant && !self.shared.objects.dormant.get(index) {
            let mask = core::mem::take(&mut self.shared.objects.dirty_mask[index as usize]);
            let changed = absorb(&mut self.shared, &self.filters, &mut self.stats.nans, (index, mask));
            if changed != 0 {
                *self.shared.objects.settled.entry(index).or_default() |= changed;
            }
        }
        self.shared.objects.dormant.assign(index, dormant);
        if !dormant {
            self.shared.objects.flushing.remove(&index);
            self.shared.objects.dirty.set(index);
            self.show_elements(index);
        }
        Ok(())
    }

    /// Sends the changes of the object's sleep, up to the next frame; it sleeps on.
    ///
    /// # Errors
    /// When the object does not exist.
    pub fn flush_dormant(&mut self, handle: Handle) -> Result<(), ObjectError> {
        let index = self.known(handle)?;
        let objects = &mut self.shared.objects;
        if objects.dormant.get(index) {
            objects.flushing.insert(index);
            objects.dirty.set(index);
            self.show_elements(index);
        }
        Ok(())
    }
}
