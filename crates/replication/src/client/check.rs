//! First pass over a packet: it validates every bit and changes no replica.

use std::sync::Arc;

use super::replica::{skim_property, skim_record};
use super::transfer::PartView;
use super::{CHECKS_MAX, Client, ClientEvent, Section};
use crate::attach::ItemView;
use crate::bits::BitReader;
use crate::class::{Class, ClassId};
use crate::connection::state_hash;
use crate::handle::Handle;
use crate::keyed::{Elements, Tally, apply_ops, check_ops};
use crate::server::DestroyReason;
use crate::tokens::{NAMES, key_of, read_export};
use crate::wire::{DecodeError, bits_of, kind, read_mask};

/// Sections of what arrived in parts.
const INNER_MAX: usize = 256;

/// Head of a create item.
pub(super) struct Create {
    pub(super) index: u32,
    pub(super) generation: u32,
    pub(super) id: ClassId,
    pub(super) class: Arc<Class>,
    pub(super) parent: Handle,
    pub(super) owner: bool,
    /// Token of its archetype, or of its name.
    pub(super) name: Option<u32>,
    pub(super) startup: bool,
    pub(super) mask: u64,
}

impl Client {
    /// Reads a packet's sections without changing a replica; what it needs to know for that is
    /// forgotten with the next.
    pub(super) fn check(&mut self, body: &[u8]) -> Result<(), DecodeError> {
        self.created.clear();
        self.referenced.clear();
        self.tallies.clear();
        self.new_tokens.clear();
        self.parts.clear();
        self.inner.clear();
        let mut sections = core::mem::take(&mut self.sections);
        let result = self.check_sections(body, &mut sections, false);
        self.sections = sections;
        result?;
        if !self.assembly.check(&self.parts, self.config.transfer_bytes_max)? {
            return Ok(());
        }
        let (mut joined, mut inner) = (Vec::new(), core::mem::take(&mut self.inner));
        self.assembly.join(&self.parts, body, &mut joined);
        let result = self.check_sections(&joined, &mut inner, true);
        (self.joined, self.inner) = (joined, inner);
        result
    }

    /// `inner`: they are what parts were put together to.
    fn check_sections(
        &mut self,
        body: &[u8],
        sections: &mut Vec<Section>,
        inner: bool,
    ) -> Result<(), DecodeError> {
        sections.clear();
        let mut reader = BitReader::new(body);
        // Creations first: updates of the same packet may speak of what it creates.
        while reader.bits_left() > 0 {
            let section = reader.get(8)? as u8;
            let count = reader.get_varint()?;
            let from = reader.byte_position();
            if inner {
                check_inner(section, count, sections.len())?;
            }
            if section >= kind::SKIPPABLE {
                let len = reader.get(16)? as usize;
                let from = reader.byte_position();
                reader.skip_bytes(len)?;
                if section == kind::CHECK {
                    // One to a packet and short, so that what differs needs little memory.
                    let twice = sections.iter().any(|(section, ..)| *section == kind::CHECK);
                    if twice || count > CHECKS_MAX {
                        return Err(DecodeError::TooLong);
                    }
                    self.each_check(count, &body[from..from + len], &mut |_, _, _, _| {})?;
                    sections.push((section, count, from));
                }
                continue;
            }
            // Every item has a byte at least.
            if count > body.len() as u64 {
                return Err(DecodeError::TooLong);
            }
            sections.push((section, count, from));
            for _ in 0..count {
                self.check_item(section, &mut reader)?;
                reader.align();
            }
        }
        Ok(())
    }

    fn check_item(&mut self, section: u8, reader: &mut BitReader<'_>) -> Result<(), DecodeError> {
        match section {
            kind::UPDATE => {
                let index = self.read_index(reader)?;
                self.referenced.push(index);
                let class = self.class_of(index).ok_or(DecodeError::UnknownObject)?;
                skim_record(&class, reader)
            }
            kind::SIZED_UPDATE => {
                let len = reader.get(16)? as usize;
                let from = reader.byte_position();
                reader.skip_bytes(len)?;
                let mut record = BitReader::new(&reader.bytes()[from..from + len]);
                let index = self.read_index(&mut record)?;
                self.referenced.push(index);
                match self.class_of(index) {
                    Some(class) => skim_record(&class, &mut record),
                    None => Ok(()),
                }
            }
            kind::CREATE => {
                let create = self.read_create(reader)?;
                if create.startup {
                    self.check_name(create.name.unwrap_or(0))?;
                }
                // Creations are applied first, so what the packet says of the object elsewhere must
                // be of the same class.
                let of_other_class =
                    |class: Option<Arc<Class>>| class.is_none_or(|class| !Arc::ptr_eq(&class, &create.class));
                let again = self.created.iter().any(|(index, _)| *index == create.index)
                    || self.referenced.contains(&create.index);
                if again && of_other_class(self.class_of(create.index)) {
                    return Err(DecodeError::Class);
                }
                let mut sink = Vec::new();
                for at in bits_of(create.mask) {
                    skim_property(&create.class, at, reader, &mut sink)?;
                }
                self.created.push((create.index, create.id));
                Ok(())
            }
            kind::DESTROY => {
                let (index, _, name) = self.read_destroy(reader)?;
                if index == 0 { self.check_name(name) } else { Ok(()) }
            }
            kind::TOKENS => {
                let (key, text) = read_export(reader)?;
                if self.texts.check(key, text)? {
                    self.new_tokens.push(key);
                }
                let many = self.texts.len() + self.new_tokens.len() > self.config.tokens_max;
                if many { Err(DecodeError::TooLong) } else { Ok(()) }
            }
            kind::PART => {
                let index = self.read_index(reader)?;
                let part = PartView::read(index, reader)?;
                self.parts.push(part);
                Ok(())
            }
            kind::ATTACH => {
                let item = ItemView::read(reader)?;
                if item.object > self.config.objects_max { Err(DecodeError::Index) } else { Ok(()) }
            }
            kind::TIME => reader.get(64).map(|_| ()),
            kind::ROLE => self.read_role(reader).map(|_| ()),
            kind::KEYED => self.check_keyed(reader),
            _ => Err(DecodeError::Section),
        }
    }

    /// Index, whether this client owns the object, and what the object belongs to.
    pub(super) fn read_role(&self, reader: &mut BitReader<'_>) -> Result<(u32, bool, Handle), DecodeError> {
        let index = self.read_index(reader)?;
        let flags = reader.get(8)?;
        if flags >> 2 != 0 {
            return Err(DecodeError::Value);
        }
        Ok((index, flags & 1 != 0, self.read_parent(flags & 2 != 0, reader)?))
    }

    fn read_parent(&self, named: bool, reader: &mut BitReader<'_>) -> Result<Handle, DecodeError> {
        if !named {
            return Ok(Handle::NONE);
        }
        let index = self.read_index(reader)?;
        let generation = u32::try_from(reader.get_varint()?).map_err(|_| DecodeError::Value)?;
        Ok(Handle::from_parts(index, generation))
    }

    /// A name must have been told, in this packet at the latest.
    fn check_name(&self, id: u32) -> Result<(), DecodeError> {
        let new = key_of(NAMES, id).is_some_and(|key| self.new_tokens.contains(&key));
        if new || self.texts.get(NAMES, id).is_some() { Ok(()) } else { Err(DecodeError::Value) }
    }

    /// Index, reason, and the token of the name of a startup object if the index is 0.
    pub(super) fn read_destroy(
        &self,
        reader: &mut BitReader<'_>,
    ) -> Result<(u32, DestroyReason, u32), DecodeError> {
        let index = reader.get_varint()?;
        if index > u64::from(self.config.objects_max) {
            return Err(DecodeError::Index);
        }
        let reason = DestroyReason::from_wire(reader.get(8)? as u8)?;
        let name = if index == 0 { reader.get_varint()? } else { 0 };
        Ok((index as u32, reason, u32::try_from(name).map_err(|_| DecodeError::Value)?))
    }

    /// An item of operations on a keyed array: object, array, operations.
    fn read_keyed<'a>(&self, reader: &mut BitReader<'a>) -> Result<(u32, usize, BitReader<'a>), DecodeError> {
        let index = self.read_index(reader)?;
        let array = reader.get(8)? as usize;
        let len = reader.get(16)? as usize;
        let from = reader.byte_position();
        reader.skip_bytes(len)?;
        Ok((index, array, BitReader::new(&reader.bytes()[from..from + len])))
    }

    /// An object that is not known is passed over.
    fn check_keyed(&mut self, reader: &mut BitReader<'_>) -> Result<(), DecodeError> {
        static NONE: Elements = Elements::new();
        let (index, array, mut ops) = self.read_keyed(reader)?;
        self.referenced.push(index);
        let Some(class) = self.class_of(index) else { return Ok(()) };
        let class = class.keyed.get(array).ok_or(DecodeError::Value)?;
        // An array that the packet creates begins empty.
        let created = self.created.iter().any(|(created, _)| *created == index);
        let replica = self.replicas.get(index as usize).and_then(Option::as_deref).filter(|_| !created);
        let elements = match replica {
            Some(replica) => replica.keyed.get(array).ok_or(DecodeError::Value)?,
            None => &NONE,
        };
        // All items of the packet on one array count together.
        let place = match self.tallies.iter().position(|(of, _)| *of == (index, array)) {
            Some(place) => place,
            None => {
                self.tallies.push(((index, array), Tally::new(elements.len())));
                self.tallies.len() - 1
            }
        };
        check_ops(class, &mut ops, elements, &mut self.tallies[place].1)
    }

    pub(super) fn apply_keyed(&mut self, reader: &mut BitReader<'_>) -> Result<(), DecodeError> {
        let (index, array, mut ops) = self.read_keyed(reader)?;
        let Some(Some(replica)) = self.replicas.get_mut(index as usize) else { return Ok(()) };
        let class = Arc::clone(&replica.class);
        let class = class.keyed.get(array).ok_or(DecodeError::Value)?;
        apply_ops(class, &mut ops, replica.keyed.get_mut(array).ok_or(DecodeError::Value)?)?;
        let handle = Handle::from_parts(index, replica.generation);
        self.events.push_back(ClientEvent::Elements { handle, array });
        Ok(())
    }

    pub(super) fn read_index(&self, reader: &mut BitReader<'_>) -> Result<u32, DecodeError> {
        let index = reader.get_varint()?;
        if index == 0 || index > u64::from(self.config.objects_max) {
            return Err(DecodeError::Index);
        }
        Ok(index as u32)
    }

    pub(super) fn class_of(&self, index: u32) -> Option<Arc<Class>> {
        if let Some((_, id)) = self.created.iter().rev().find(|(created, _)| *created == index) {
            return self.classes.get(*id).cloned();
        }
        self.replica(index).map(|replica| Arc::clone(&replica.class))
    }

    pub(super) fn read_create(&self, reader: &mut BitReader<'_>) -> Result<Create, DecodeError> {
        let index = self.read_index(reader)?;
        let generation = reader.get(32)? as u32;
        let id = u16::try_from(reader.get_varint()?).map_err(|_| DecodeError::Class)?;
        let id = ClassId(id);
        let class = Arc::clone(self.classes.get(id).ok_or(DecodeError::Class)?);
        let flags = reader.get(8)?;
        // A startup object has a name.
        let startup = flags & 32 != 0;
        if flags >> 6 != 0 || startup && flags & 2 == 0 {
            return Err(DecodeError::Value);
        }
        let parent = self.read_parent(flags & 1 != 0, reader)?;
        let name = if flags & 2 != 0 { Some(reader.get_varint()?) } else { None };
        let name = name.map(u32::try_from).transpose().map_err(|_| DecodeError::Value)?;
        let owner = flags & 4 != 0 && reader.get_varint()? == 1;
        let mask = read_mask(reader, class.props.len() as u32)?;
        Ok(Create { index, generation, id, class, parent, owner, name, startup, mask })
    }

    /// Reads the hashes of a section: calls `each` with the oldest packet under way, index, mask
    /// and hash.
    fn each_check(
        &self,
        count: u64,
        bytes: &[u8],
        each: &mut dyn FnMut(u16, u32, u64, u32),
    ) -> Result<(), DecodeError> {
        let mut reader = BitReader::new(bytes);
        let since = reader.get(16)? as u16;
        for _ in 0..count {
            let index = self.read_index(&mut reader)?;
            let mask = reader.get_varint()?;
            each(since, index, mask, reader.get(32)? as u32);
        }
        Ok(())
    }

    /// Compares replicas with what the server says of them, if every packet that could make a
    /// difference has come.
    pub(super) fn compare(&mut self, seq: u16, count: u64, bytes: &[u8]) {
        let (_, applied) = self.acks.fields();
        let mut wrong = Vec::new();
        let result = self.each_check(count, bytes, &mut |since, index, mask, hash| {
            let under_way = u32::from(seq.wrapping_sub(since));
            let whole = under_way <= 64 && applied.trailing_ones() >= under_way;
            // The contents of a difference to a forgotten state have been requested already.
            let replica = self.replica(index).filter(|replica| whole && mask & replica.missing == 0);
            let Some(replica) = replica else { return };
            if state_hash(&replica.class, &replica.words, mask) != hash {
                wrong.push((index, mask, replica.words.clone()));
            }
        });
        debug_assert!(result.is_ok(), "a checked section failed: {result:?}");
        for (index, mask, words) in wrong {
            self.suspects
                .insert(index, (mask & self.class_of(index).map_or(0, |class| class.update_mask), words));
            self.resets.insert(index);
            self.ack_owed = true;
        }
    }
}

/// Parts make one creation, update or end, or a few, operations on keyed arrays, and the texts that
/// these use.
fn check_inner(section: u8, count: u64, before: usize) -> Result<(), DecodeError> {
    match section {
        _ if before >= INNER_MAX => Err(DecodeError::TooLong),
        kind::TOKENS | kind::KEYED => Ok(()),
        kind::UPDATE | kind::CREATE | kind::DESTROY | kind::SIZED_UPDATE if count == 1 => Ok(()),
        _ => Err(DecodeError::Section),
    }
}
