//! Peer ids given to remote sockets, and their owners. Spec: enet A1
//!
//! The address is found first and the id under it, so that the free ids of an address are known
//! without a look at each of its 4,095. Almost every address has one id; those that have more share
//! a small table, and a bitmap from 33 ids on.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::hash::BuildHasher as _;
use core::net::SocketAddr;

use hashbrown::hash_table::Entry;
use hashbrown::{HashMap, HashTable};

use super::Owner;
use crate::address::Key;
use crate::secret::{Keyed, Secret};
use crate::wire::PEER_ID_NONE;
use crate::work;

/// Owners of the ids in use, by remote address and id.
#[derive(Debug)]
pub(super) struct LocalIds {
    addresses: HashTable<(Key, Ids)>,
    keyed: Keyed,
    /// Keys the tables of addresses with several ids.
    hasher: Keyed,
    len: usize,
}

/// Ids in use towards one address.
#[derive(Debug)]
enum Ids {
    One(u16, Owner),
    Many(Box<Crowd>),
}

#[derive(Debug)]
struct Crowd {
    owners: HashMap<u16, Owner, Keyed>,
    /// Owners that are peers.
    peers: usize,
    /// A bit for each id in use, once there are many.
    used: Option<Box<[u64; WORDS]>>,
}

impl LocalIds {
    pub(super) fn new(secret: &mut Secret) -> Self {
        let (keyed, hasher) = (secret.table_key(), secret.table_key());
        Self { addresses: HashTable::new(), keyed, hasher, len: 0 }
    }

    fn find(&self, address: SocketAddr) -> Option<&Ids> {
        let key = Key::new(address, 0);
        let found = self.addresses.find(self.keyed.hash_one(key), |(known, _)| *known == key);
        found.map(|(_, ids)| ids)
    }

    /// Ids in use, over all addresses.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn get(&self, address: SocketAddr, id: u16) -> Option<Owner> {
        match self.find(address)? {
            Ids::One(used, owner) => (*used == id).then_some(*owner),
            Ids::Many(crowd) => crowd.owners.get(&id).copied(),
        }
    }

    /// Owners of the ids towards `address`.
    pub(super) fn owners_at(&self, address: SocketAddr) -> Vec<Owner> {
        match self.find(address) {
            None => Vec::new(),
            Some(Ids::One(_, owner)) => Vec::from([*owner]),
            Some(Ids::Many(crowd)) => crowd.owners.values().copied().collect(),
        }
    }

    /// True if an id towards `address` belongs to a peer.
    pub(super) fn has_peer_at(&self, address: SocketAddr) -> bool {
        self.find(address).is_some_and(|ids| match ids {
            Ids::One(_, owner) => is_peer(owner),
            Ids::Many(crowd) => crowd.peers > 0,
        })
    }

    /// The first free id towards `address`, counted from `first` on and around; `None` when all
    /// 4,095 are in use.
    pub(super) fn free_id(&self, address: SocketAddr, first: u16) -> Option<u16> {
        let around = |offset: u16| (first + offset) % PEER_ID_NONE;
        match self.find(address) {
            None => Some(first),
            Some(Ids::One(used, _)) => Some(if *used == first { around(1) } else { first }),
            Some(Ids::Many(crowd)) => match &crowd.used {
                Some(used) => free_bit(used, first),
                None => (0..=crowd.owners.len() as u16).map(around).find(|id| {
                    work::step();
                    !crowd.owners.contains_key(id)
                }),
            },
        }
    }

    pub(super) fn insert(&mut self, address: SocketAddr, id: u16, owner: Owner) {
        debug_assert!(id < PEER_ID_NONE && self.get(address, id).is_none());
        self.len += 1;
        let (key, keyed) = (Key::new(address, 0), &self.keyed);
        let hash = keyed.hash_one(key);
        match self.addresses.entry(hash, |(known, _)| *known == key, |(known, _)| keyed.hash_one(known)) {
            Entry::Vacant(entry) => {
                entry.insert((key, Ids::One(id, owner)));
            }
            Entry::Occupied(mut entry) => {
                let ids = &mut entry.get_mut().1;
                if let Ids::One(first, first_owner) = *ids {
                    let owners = HashMap::with_hasher(self.hasher.clone());
                    let mut crowd = Box::new(Crowd { owners, peers: 0, used: None });
                    crowd.insert(first, first_owner);
                    *ids = Ids::Many(crowd);
                }
                if let Ids::Many(crowd) = ids {
                    crowd.insert(id, owner);
                }
            }
        }
    }

    pub(super) fn remove(&mut self, address: SocketAddr, id: u16) {
        let key = Key::new(address, 0);
        let hash = self.keyed.hash_one(key);
        let Ok(mut entry) = self.addresses.find_entry(hash, |(known, _)| *known == key) else { return };
        let ids = &mut entry.get_mut().1;
        match ids {
            Ids::One(used, _) => {
                if *used == id {
                    entry.remove();
                    self.len -= 1;
                }
            }
            Ids::Many(crowd) => {
                self.len -= usize::from(crowd.remove(id));
                if let (1, Some((&id, &owner))) = (crowd.owners.len(), crowd.owners.iter().next()) {
                    *ids = Ids::One(id, owner);
                }
            }
        }
    }
}

fn is_peer(owner: &Owner) -> bool {
    matches!(owner, Owner::Peer(_))
}

impl Crowd {
    fn insert(&mut self, id: u16, owner: Owner) {
        self.owners.insert(id, owner);
        self.peers += usize::from(is_peer(&owner));
        if let Some(used) = &mut self.used {
            set(used, id, true);
        } else if self.owners.len() > SCANNED_MAX {
            let mut used = Box::new([0; WORDS]);
            for &id in self.owners.keys() {
                work::step();
                set(&mut used, id, true);
            }
            // No peer has this id.
            set(&mut used, PEER_ID_NONE, true);
            self.used = Some(used);
        }
    }

    fn remove(&mut self, id: u16) -> bool {
        let owner = self.owners.remove(&id);
        let was_used = owner.is_some();
        self.peers -= usize::from(owner.as_ref().is_some_and(is_peer));
        if self.owners.len() < SCANNED_MAX / 2 {
            self.used = None;
        } else if let Some(used) = self.used.as_mut().filter(|_| was_used) {
            set(used, id, false);
        }
        was_used
    }
}

fn set(used: &mut [u64; WORDS], id: u16, is_used: bool) {
    let (word, bit) = (&mut used[usize::from(id / 64)], 1 << (id % 64));
    if is_used { *word |= bit } else { *word &= !bit }
}

/// The first bit that is not set, from `first` on and around.
fn free_bit(used: &[u64; WORDS], first: u16) -> Option<u16> {
    let start = usize::from(first / 64);
    // The word of `first` twice: its upper part first, its lower part last.
    let from_first = u64::MAX << (first % 64);
    (0..=WORDS).find_map(|offset| {
        work::step();
        let at = (start + offset) % WORDS;
        let mask = match offset {
            0 => from_first,
            WORDS => !from_first,
            _ => u64::MAX,
        };
        let free = !used[at] & mask;
        (free != 0).then(|| at as u16 * 64 + free.trailing_zeros() as u16)
    })
}

const WORDS: usize = 64;
/// Ids towards one address up to which a free one is looked for in their table; a bitmap takes 512
/// bytes.
const SCANNED_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use throng_stdx::Rng;

    #[test]
    fn every_id_is_given_once_and_the_last_is_found() {
        let mut ids = LocalIds::new(&mut Secret::new(1));
        let mut rng = Rng::new(3);
        let address = SocketAddr::from(([10, 0, 0, 1], 7));
        let mut used = BTreeSet::new();
        for _ in 0..4_095 {
            let before = work::steps();
            let id = ids.free_id(address, rng.below(4_095) as u16).expect("an id is free");
            assert!(work::steps() - before <= 65);
            assert!(id < PEER_ID_NONE && used.insert(id));
            ids.insert(address, id, Owner::Peer(id.into()));
        }
        assert_eq!((ids.free_id(address, 5), ids.len()), (None, 4_095));
        for first in [0, 77, 78, 79, 4_094] {
            ids.remove(address, 78);
            assert_eq!(ids.free_id(address, first), Some(78));
            ids.insert(address, 78, Owner::Peer(78));
        }
    }

    #[test]
    fn it_agrees_with_a_plain_table() {
        let mut ids = LocalIds::new(&mut Secret::new(1));
        let mut rng = Rng::new(4);
        let mut model = BTreeSet::new();
        for step in 0..20_000 {
            let address = SocketAddr::from(([10, 0, 0, rng.below(3) as u8], 7));
            let id = rng.below(90) as u16;
            if model.remove(&(address, id)) {
                ids.remove(address, id);
                ids.remove(address, id);
            } else if rng.chance(if step / 2_000 % 2 == 0 { 0.9 } else { 0.1 }) {
                model.insert((address, id));
                ids.insert(address, id, Owner::Peer(id.into()));
            }
            let expected = model.contains(&(address, id)).then_some(Owner::Peer(id.into()));
            assert_eq!((ids.get(address, id), ids.len()), (expected, model.len()));
            let free = ids.free_id(address, id).expect("most are free");
            let is_first = (id..free).all(|id| model.contains(&(address, id)));
            assert!(is_first && !model.contains(&(address, free)), "{free} after {id}");
        }
    }
}
