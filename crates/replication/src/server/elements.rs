//! Elements of keyed arrays.

use std::sync::Arc;

use super::{ElementError, Server};
use crate::handle::Handle;
use crate::keyed::KeyedArray;
use crate::quantise::Value;

impl Server {
    /// Sets an element of the object's keyed array number `array`, all fields in order; a new key
    /// adds it. Fields that keep their quantised value cost nothing. Costs about a microsecond,
    /// whatever the array's length; the first one in an object's sleep copies its arrays.
    ///
    /// # Errors
    /// When the object or array does not exist, the values do not fit the fields, or the array is
    /// full.
    pub fn set_element(
        &mut self,
        handle: Handle,
        array: usize,
        key: u32,
        values: &[Value],
    ) -> Result<(), ElementError> {
        let index = self.index(handle).ok_or(ElementError::Unknown)?;
        let class = Arc::clone(&self.shared.store(index).class);
        let class = class.keyed.get(array).ok_or(ElementError::Unknown)?;
        let arrays = self.arrays_mut(index).ok_or(ElementError::Unknown)?;
        if arrays[array].set(class, key, values)? {
            self.shared.keyed_changed.set(index);
        }
        Ok(())
    }

    /// Removes an element; returns whether it was there.
    ///
    /// # Errors
    /// When the object or array does not exist.
    pub fn remove_element(&mut self, handle: Handle, array: usize, key: u32) -> Result<bool, ElementError> {
        let index = self.index(handle).ok_or(ElementError::Unknown)?;
        let arrays = self.arrays_mut(index).ok_or(ElementError::Unknown)?;
        let removed = arrays.get_mut(array).ok_or(ElementError::Unknown)?.remove(key);
        if removed {
            self.shared.keyed_changed.set(index);
        }
        Ok(removed)
    }

    /// The values of an element that receivers see, or will see.
    #[must_use]
    pub fn element(&self, handle: Handle, array: usize, key: u32) -> Option<Vec<Value>> {
        let index = self.index(handle)?;
        let class = self.shared.store(index).class.keyed.get(array)?;
        Some(class.values(self.elements(index, array)?.words(key)?))
    }

    /// Keys of an array, ascending. None for an object or array that does not exist.
    pub fn element_keys(&self, handle: Handle, array: usize) -> impl Iterator<Item = u32> {
        let elements = self.index(handle).and_then(|index| self.elements(index, array));
        elements.into_iter().flat_map(KeyedArray::keys)
    }

    fn elements(&self, index: u32, array: usize) -> Option<&KeyedArray> {
        self.kept.get(&index).or_else(|| self.shared.keyed.get(&index))?.get(array)
    }

    /// The arrays of an object, to be changed. Receivers of a sleeper keep those of before.
    fn arrays_mut(&mut self, index: u32) -> Option<&mut Vec<KeyedArray>> {
        if self.shared.objects.sleeps(index) {
            let before = self.shared.keyed.get(&index)?;
            return Some(self.kept.entry(index).or_insert_with(|| before.clone()));
        }
        self.shared.keyed.get_mut(&index)
    }

    /// The object wakes or is flushed: receivers get the elements that it has kept.
    pub(super) fn show_elements(&mut self, index: u32) {
        if let Some(arrays) = self.kept.remove(&index) {
            self.shared.keyed.insert(index, arrays);
            self.shared.keyed_changed.set(index);
        }
    }
}
