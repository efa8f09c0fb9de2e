//! Filters of objects: the dynamic filter, owners, lists, groups; and its prioritiser.

use super::{ConnId, Filter, FilterId, FilterSlot, Group, GroupKind, ObjectError, PrioritiserId, Server};
use crate::bitmap::{Bitmap, Sparse};
use crate::handle::Handle;
use crate::interest::CustomFilter;
use crate::priority::Prioritiser;

impl Server {
    /// Chooses the dynamic filter.
    ///
    /// # Errors
    /// When the object does not exist.
    pub fn set_filter(&mut self, handle: Handle, filter: Filter) -> Result<(), ObjectError> {
        let index = self.known(handle)?;
        self.leave_filter(index);
        self.filters[index as usize] = filter;
        self.set_detail(index, filter == Filter::Grid);
        self.shared.objects.always.assign(index, filter == Filter::Always);
        match filter {
            Filter::Teams(teams) => {
                self.shared.any_team = true;
                self.team_members.insert(index, teams);
                for conn in self.connections.iter_mut().flatten() {
                    conn.teamed.assign(index, conn.teams & teams != 0);
                }
            }
            Filter::Custom(id) => {
                if let Some(slot) = self.shared.custom.get_mut(usize::from(id.0)) {
                    slot.members.set(index);
                }
            }
            _ => {}
        }
        if filter == Filter::Grid {
            // Placed again by its position.
            if let Some(property) = self.shared.store(index).class.position {
                self.mark(index, 1 << property);
            }
            self.place(index);
        } else {
            self.shared.grid.remove(index);
        }
        Ok(())
    }

    /// Adds a filter of the game's own for [`Filter::Custom`]; 256 at most, `None` beyond. It is
    /// asked every `period` frames for each connection, different ones in different frames; in
    /// between its last answer counts.
    pub fn add_filter(&mut self, filter: Box<dyn CustomFilter>, period: u8) -> Option<FilterId> {
        let id = u8::try_from(self.shared.custom.len()).ok()?;
        let period = u32::from(period.max(1));
        self.shared.custom.push(FilterSlot { filter, period, members: Sparse::default() });
        Some(FilterId(id))
    }

    /// Takes an object out of what its dynamic filter keeps of it.
    pub(super) fn leave_filter(&mut self, index: u32) {
        match self.filters[index as usize] {
            Filter::Teams(_) => {
                self.team_members.remove(&index);
                for conn in self.connections.iter_mut().flatten() {
                    conn.teamed.clear(index);
                }
            }
            Filter::Custom(id) => {
                if let Some(slot) = self.shared.custom.get_mut(usize::from(id.0)) {
                    slot.members.clear(index);
                }
            }
            _ => {}
        }
    }

    /// Takes the object out of the bands of detail, or puts it back: out of them every change is
    /// sent in its frame. Only objects with a world position and the grid filter have bands.
    ///
    /// # Errors
    /// When the object does not exist.
    pub fn set_lod(&mut self, handle: Handle, on: bool) -> Result<(), ObjectError> {
        let index = self.known(handle)?;
        self.set_detail(index, on && self.filters[index as usize] == Filter::Grid);
        Ok(())
    }

    /// What had gathered in bands goes out when the pairs leave them in the next frame.
    fn set_detail(&mut self, index: u32, on: bool) {
        let on = on && self.shared.store(index).class.position.is_some();
        self.shared.objects.lod.assign(index, on);
    }

    /// Overrides the class' cull distance, in metres; negative numbers count as 0.
    ///
    /// # Errors
    /// When the object does not exist.
    pub fn set_cull_distance(&mut self, handle: Handle, metres: f32) -> Result<(), ObjectError> {
        let index = self.known(handle)?;
        self.shared.objects.cull[index as usize] = metres.max(0.0);
        self.place(index);
        Ok(())
    }

    /// Adds a prioritiser for [`set_prioritiser`](Self::set_prioritiser); 255 at most, `None`
    /// beyond.
    pub fn add_prioritiser(&mut self, mut prioritiser: Prioritiser) -> Option<PrioritiserId> {
        if let Prioritiser::Static(p) = &mut prioritiser {
            // Without a NaN, which no comparison puts in its place.
            *p = p.max(0.0);
        }
        let id = u8::try_from(self.shared.prioritisers.len()).ok()?;
        self.shared.any_limiter |= matches!(prioritiser, Prioritiser::CountLimiter(_));
        self.shared.prioritisers.push(prioritiser);
        Some(PrioritiserId(id))
    }

    /// Chooses the prioritiser; without one an object has priority 1. One whose least value reaches
    /// [`ServerConfig::send_threshold`](crate::ServerConfig::send_threshold) costs nothing before a
    /// budget runs out.
    ///
    /// # Errors
    /// When the object or the prioritiser does not exist.
    pub fn set_prioritiser(&mut self, handle: Handle, prioritiser: PrioritiserId) -> Result<(), ObjectError> {
        let index = self.known(handle)?;
        let shared = &mut self.shared;
        let kind = shared.prioritisers.get(usize::from(prioritiser.0)).ok_or(ObjectError::Prioritiser)?;
        shared.objects.prioritiser[index as usize] = prioritiser.0;
        shared.objects.throttled.assign(index, kind.least() < shared.config.send_threshold);
        Ok(())
    }

    /// Shows the object to its owner only.
    ///
    /// # Errors
    /// When the object does not exist.
    pub fn set_only_to_owner(&mut self, handle: Handle, on: bool) -> Result<(), ObjectError> {
        let index = self.known(handle)?;
        self.statics.entry(index).or_default().only_to_owner = on;
        self.decide_all(index);
        Ok(())
    }

    /// Shows the object to the listed connections only (`allow`), or to all but them. Takes it out
    /// of its dynamic filter. An empty list of refused connections shows it to everybody.
    ///
    /// # Errors
    /// When the object does not exist.
    pub fn set_connection_filter(
        &mut self,
        handle: Handle,
        allow: bool,
        connections: &[ConnId],
    ) -> Result<(), ObjectError> {
        let index = self.known(handle)?;
        self.statics.entry(index).or_default().list = Some((allow, connections.to_vec()));
        self.set_filter(handle, Filter::Always)?;
        self.decide_all(index);
        Ok(())
    }

    /// Creates a group, closed for every connection. An existing group keeps its kind.
    pub fn add_group(&mut self, group: u16, kind: GroupKind) {
        self.groups.entry(group).or_insert_with(|| Group {
            kind,
            members: Bitmap::default(),
            open: Bitmap::default(),
        });
    }

    /// Puts the object into groups, 16 at most; others are ignored, as are groups that do not
    /// exist.
    ///
    /// # Errors
    /// When the object does not exist.
    pub fn set_groups(&mut self, handle: Handle, groups: &[u16]) -> Result<(), ObjectError> {
        let index = self.known(handle)?;
        let filter = self.statics.entry(index).or_default();
        for group in filter.groups.drain(..) {
            if let Some(group) = self.groups.get_mut(&group) {
                group.members.clear(index);
            }
        }
        for name in groups.iter().take(16) {
            if let Some(group) = self.groups.get_mut(name) {
                group.members.set(index);
                filter.groups.push(*name);
            }
        }
        self.decide_all(index);
        Ok(())
    }

    /// Opens a group for a connection, or closes it. Costs a look at each member.
    pub fn open_group(&mut self, group: u16, id: ConnId, open: bool) {
        if self.conn(id).is_none() {
            return;
        }
        let Some(entry) = self.groups.get_mut(&group) else { return };
        entry.open.assign(id.index(), open);
        let members: Vec<u32> = entry.members.iter().collect();
        for object in members {
            self.decide(object, id.index());
        }
    }

    pub(super) fn decide_all(&mut self, object: u32) {
        for id in 0..self.connections.len() as u32 {
            self.decide(object, id);
        }
    }

    /// Every step but the dynamic filter: refusals first, then admissions that pass over the
    /// dynamic filter.
    pub(super) fn decide(&mut self, object: u32, id: u32) {
        let Some(Some(conn)) = self.connections.get_mut(id as usize) else { return };
        let owner = self.shared.objects.owner[object as usize] == id;
        let class = self.shared.objects.class[object as usize];
        let (mut refused, mut forced) = (conn.refused_classes.contains(&class), owner);
        if let Some(filter) = self.statics.get(&object) {
            refused |= filter.only_to_owner && !owner;
            forced |= filter.only_to_owner && owner;
            if let Some((allow, list)) = &filter.list {
                refused |= list.contains(&conn.id) != *allow;
            }
            for name in &filter.groups {
                let Some(group) = self.groups.get(name) else { continue };
                let open = group.open.get(id);
                match group.kind {
                    GroupKind::Exclusion => refused |= !open,
                    GroupKind::Inclusion => forced |= open,
                }
            }
        }
        conn.forced_out.assign(object, refused);
        conn.forced_in.assign(object, forced && !refused);
    }

    /// Puts an object with a grid filter where its position says.
    pub(super) fn place(&mut self, index: u32) {
        let at = index as usize;
        if self.filters[at] == Filter::Grid && self.shared.store(index).class.position.is_some() {
            let objects = &self.shared.objects;
            let position = [objects.x[at], objects.y[at], objects.z[at]];
            self.shared.grid.place(index, position, objects.cull[at]);
        }
    }
}
