//! Objects by index, where the order of reuse is part of the state.

use serde::{Deserialize, Serialize};

/// No index.
pub(crate) const NONE: u32 = u32::MAX;

/// A vector whose places are reused, last freed first: the same commands give the same indexes, also after a snapshot.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Slab<T> {
    items: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { items: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// The index that the next insertion takes.
    pub(crate) fn next_index(&self) -> u32 {
        self.free.last().copied().unwrap_or(self.items.len() as u32)
    }

    /// The index after the last that was ever used.
    pub(crate) fn next_new(&self) -> u32 {
        self.items.len() as u32
    }

    pub(crate) fn insert(&mut self, item: T) -> u32 {
        if let Some(index) = self.free.pop() {
            self.items[index as usize] = Some(item);
            return index;
        }
        let index = self.items.len() as u32;
        assert!(index < NONE, "fewer than 2^32 - 1 objects");
        self.items.push(Some(item));
        index
    }

    pub(crate) fn remove(&mut self, index: u32) -> Option<T> {
        let item = self.items.get_mut(index as usize)?.take()?;
        self.free.push(index);
        Some(item)
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        self.items.get(index as usize)?.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.items.get_mut(index as usize)?.as_mut()
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len() - self.free.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.items.iter().enumerate().filter_map(|(index, item)| Some((index as u32, item.as_ref()?)))
    }
}

/// Indexes handed out by this matcher are valid until it removes the object, and it removes the index first.
impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;

    #[inline]
    fn index(&self, index: u32) -> &T {
        self.items[index as usize].as_ref().expect("an index is forgotten before its object")
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut T {
        self.items[index as usize].as_mut().expect("an index is forgotten before its object")
    }
}
