//! Objects by index, where the order of reuse is part of the state.

/// No index.
pub(crate) const NONE: u32 = u32::MAX;

/// A vector whose places are reused, last freed first: the same commands give the same indexes,
/// also after a snapshot. It grows by pieces, so that what is there is never moved: a million
/// tickets are half a gigabyte.
#[derive(Clone, Debug)]
pub(crate) struct Slab<T> {
    pieces: Vec<Box<[Option<T>; PIECE]>>,
    len: u32,
    free: Vec<u32>,
}

/// Items of a piece, as bits of the index.
const PIECE_BITS: u32 = 8;
const PIECE: usize = 1 << PIECE_BITS;

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { pieces: Vec::new(), len: 0, free: Vec::new() }
    }
}

#[inline]
fn at(index: u32) -> (usize, usize) {
    ((index >> PIECE_BITS) as usize, index as usize % PIECE)
}

/// Made where it stays: a piece of large items is no size for a stack.
fn empty_piece<T>() -> Box<[Option<T>; PIECE]> {
    let places: Box<[Option<T>]> = std::iter::repeat_with(|| None).take(PIECE).collect();
    places.try_into().unwrap_or_else(|_| unreachable!("a piece has as many places"))
}

impl<T> Slab<T> {
    /// The index that the next insertion takes.
    pub(crate) fn next_index(&self) -> u32 {
        self.free.last().copied().unwrap_or(self.len)
    }

    /// The index after the last that was ever used.
    pub(crate) fn next_new(&self) -> u32 {
        self.len
    }

    pub(crate) fn insert(&mut self, item: T) -> u32 {
        if let Some(index) = self.free.pop() {
            let (piece, place) = at(index);
            self.pieces[piece][place] = Some(item);
            return index;
        }
        self.push(Some(item))
    }

    fn push(&mut self, item: Option<T>) -> u32 {
        let index = self.len;
        assert!(index < NONE, "fewer than 2^32 - 1 objects");
        let (piece, place) = at(index);
        if piece == self.pieces.len() {
            self.pieces.push(empty_piece());
        }
        self.pieces[piece][place] = item;
        self.len += 1;
        index
    }

    pub(crate) fn remove(&mut self, index: u32) -> Option<T> {
        let (piece, place) = at(index);
        let item = self.pieces.get_mut(piece)?[place].take()?;
        self.free.push(index);
        Some(item)
    }

    /// Drops an item where it is.
    pub(crate) fn discard(&mut self, index: u32) {
        if self.get(index).is_some() {
            let (piece, place) = at(index);
            self.pieces[piece][place] = None;
            self.free.push(index);
        }
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        let (piece, place) = at(index);
        self.pieces.get(piece)?[place].as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        let (piece, place) = at(index);
        self.pieces.get_mut(piece)?[place].as_mut()
    }

    pub(crate) fn len(&self) -> usize {
        self.len as usize - self.free.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let all = self.pieces.iter().flat_map(|piece| piece.iter());
        (0..self.len).zip(all).filter_map(|(index, item)| Some((index, item.as_ref()?)))
    }
}

impl<T> Slab<T> {
    /// Free places; the last is taken next.
    pub(crate) fn free(&self) -> &[u32] {
        &self.free
    }

    /// Objects by place and all places between them. `None` if a place is missing or there twice.
    pub(crate) fn from_places(objects: impl Iterator<Item = (u32, T)>, free: Vec<u32>) -> Option<Slab<T>> {
        let objects: Vec<(u32, T)> = objects.collect();
        let len = objects.len() + free.len();
        let mut places: Vec<Option<T>> = std::iter::repeat_with(|| None).take(len).collect();
        for (index, object) in objects {
            let place = places.get_mut(index as usize)?;
            if place.replace(object).is_some() {
                return None;
            }
        }
        let mut is_free = vec![false; len];
        for index in &free {
            let place = is_free.get_mut(*index as usize)?;
            if std::mem::replace(place, true) || places[*index as usize].is_some() {
                return None;
            }
        }
        let mut slab = Slab::default();
        for item in places {
            slab.push(item);
        }
        Some(Slab { free, ..slab })
    }
}

/// Indexes handed out by this matcher are valid until it removes the object, and it removes the
/// index first.
impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;

    #[inline]
    fn index(&self, index: u32) -> &T {
        let (piece, place) = at(index);
        self.pieces[piece][place].as_ref().expect("an index is forgotten before its object")
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut T {
        let (piece, place) = at(index);
        self.pieces[piece][place].as_mut().expect("an index is forgotten before its object")
    }
}
