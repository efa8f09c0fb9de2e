//! Objects by place, where the order of reuse is part of the state.

use std::marker::PhantomData;

use crate::key::Key;

/// No index.
pub(crate) const NONE: u32 = u32::MAX;

/// A vector whose places are reused, last freed first: the same commands give the same places, also
/// after a snapshot. It grows by pieces, so that what is there is never moved: a million
/// tickets are half a gigabyte.
#[derive(Clone, Debug)]
pub(crate) struct Slab<K, T> {
    pieces: Vec<Box<[Option<T>; PIECE]>>,
    len: u32,
    free: Vec<u32>,
    keys: PhantomData<fn() -> K>,
}

/// Items of a piece, as bits of the index.
const PIECE_BITS: u32 = 8;
const PIECE: usize = 1 << PIECE_BITS;

impl<K, T> Default for Slab<K, T> {
    fn default() -> Self {
        Slab { pieces: Vec::new(), len: 0, free: Vec::new(), keys: PhantomData }
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

impl<Kind, T> Slab<Key<Kind>, T> {
    /// The place that the next insertion takes.
    pub(crate) fn next_key(&self) -> Key<Kind> {
        Key::new(self.free.last().copied().unwrap_or(self.len))
    }

    /// The index after the last that was ever used.
    pub(crate) fn end(&self) -> u32 {
        self.len
    }

    pub(crate) fn insert(&mut self, item: T) -> Key<Kind> {
        let Some(index) = self.free.pop() else { return self.push(Some(item)) };
        let (piece, place) = at(index);
        self.pieces[piece][place] = Some(item);
        Key::new(index)
    }

    fn push(&mut self, item: Option<T>) -> Key<Kind> {
        let index = self.len;
        assert!(index < NONE, "fewer than 2^32 - 1 objects");
        let (piece, place) = at(index);
        if piece == self.pieces.len() {
            self.pieces.push(empty_piece());
        }
        self.pieces[piece][place] = item;
        self.len += 1;
        Key::new(index)
    }

    pub(crate) fn remove(&mut self, key: Key<Kind>) -> Option<T> {
        let (piece, place) = at(key.index());
        let item = self.pieces.get_mut(piece)?[place].take()?;
        self.free.push(key.index());
        Some(item)
    }

    /// Drops an item where it is.
    pub(crate) fn discard(&mut self, key: Key<Kind>) {
        if self.get(key).is_some() {
            let (piece, place) = at(key.index());
            self.pieces[piece][place] = None;
            self.free.push(key.index());
        }
    }

    #[inline]
    pub(crate) fn get(&self, key: Key<Kind>) -> Option<&T> {
        let (piece, place) = at(key.index());
        self.pieces.get(piece)?[place].as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: Key<Kind>) -> Option<&mut T> {
        let (piece, place) = at(key.index());
        self.pieces.get_mut(piece)?[place].as_mut()
    }

    pub(crate) fn len(&self) -> usize {
        self.len as usize - self.free.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key<Kind>, &T)> {
        self.iter_from(Key::new(0))
    }

    /// Those in a place and behind it.
    pub(crate) fn iter_from(&self, from: Key<Kind>) -> impl Iterator<Item = (Key<Kind>, &T)> {
        let (piece, place) = at(from.index());
        let pieces = self.pieces.get(piece..).unwrap_or_default();
        let all = pieces.iter().flat_map(|piece| piece.iter()).skip(place);
        (from.index()..self.len).zip(all).filter_map(|(index, item)| Some((Key::new(index), item.as_ref()?)))
    }

    /// Free places; the last is taken next.
    pub(crate) fn free(&self) -> &[u32] {
        &self.free
    }

    /// Objects by place and all places between them. `None` if a place is missing or there twice.
    pub(crate) fn from_places(
        objects: impl Iterator<Item = (u32, T)>,
        free: Vec<u32>,
    ) -> Option<Slab<Key<Kind>, T>> {
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

/// A place is forgotten before its object, so that one which is known has its object.
impl<Kind, T> std::ops::Index<Key<Kind>> for Slab<Key<Kind>, T> {
    type Output = T;

    #[inline]
    fn index(&self, key: Key<Kind>) -> &T {
        let (piece, place) = at(key.index());
        self.pieces[piece][place].as_ref().expect("a place is forgotten before its object")
    }
}

impl<Kind, T> std::ops::IndexMut<Key<Kind>> for Slab<Key<Kind>, T> {
    #[inline]
    fn index_mut(&mut self, key: Key<Kind>) -> &mut T {
        let (piece, place) = at(key.index());
        self.pieces[piece][place].as_mut().expect("a place is forgotten before its object")
    }
}
