//! Names of objects.

use core::cmp::Ordering;
use core::fmt;
use core::hash::{Hash, Hasher};
use core::marker::PhantomData;

/// Stands for any class in [`Handle`].
#[derive(Clone, Copy, Debug)]
pub enum Any {}

/// Names one object: a network index, the same number for every connection, and a generation that
/// tells apart the objects that used the index one after the other. `T` is the replicated struct of
/// its class, or [`Any`].
pub struct Handle<T = Any> {
    index: u32,
    generation: u32,
    class: PhantomData<fn() -> T>,
}

impl Handle {
    /// Names no object; the value of a reference to nothing.
    pub const NONE: Self = Self::from_parts(0, 0);

    /// A handle from its parts, for instance from a game's own save file. Whether it names an
    /// object shows on use.
    #[must_use]
    pub const fn from_parts(index: u32, generation: u32) -> Self {
        Self { index, generation, class: PhantomData }
    }
}

impl<T> Handle<T> {
    /// The network index; 0 names nothing.
    #[must_use]
    pub const fn index(self) -> u32 {
        self.index
    }

    /// Counts the objects that had this index before.
    #[must_use]
    pub const fn generation(self) -> u32 {
        self.generation
    }

    /// Names nothing.
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.index == 0
    }

    /// The same name without its class.
    #[must_use]
    pub const fn untyped(self) -> Handle {
        Handle::from_parts(self.index, self.generation)
    }

    /// The same name with a class that the caller knows to be right.
    pub(crate) const fn assume(handle: Handle) -> Self {
        Self { index: handle.index, generation: handle.generation, class: PhantomData }
    }

    const fn key(self) -> (u32, u32) {
        (self.index, self.generation)
    }
}

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<T> {}

impl<T> Default for Handle<T> {
    fn default() -> Self {
        Self::assume(Handle::NONE)
    }
}

impl<T> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("index", &self.index).field("generation", &self.generation).finish()
    }
}

impl<T> PartialEq for Handle<T> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<T> Eq for Handle<T> {}

impl<T> Hash for Handle<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl<T> PartialOrd for Handle<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Handle<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}
