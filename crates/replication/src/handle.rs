//! Names of objects.

/// Names one object: a network index, the same number for every connection, and a generation that tells apart the
/// objects that used the index one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle {
    index: u32,
    generation: u32,
}

impl Handle {
    /// Names no object; what a reference to nothing holds.
    pub const NONE: Self = Self { index: 0, generation: 0 };

    /// A handle from its parts, for instance from a game's own save file. Whether it names an object shows on use.
    #[must_use]
    pub const fn from_parts(index: u32, generation: u32) -> Self {
        Self { index, generation }
    }

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
}
