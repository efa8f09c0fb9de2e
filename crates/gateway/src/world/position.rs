//! Where an entity is, read from the wire bytes of its data. Spec §9.4.
//!
//! A [`Locator`] is compiled once per data type. It remembers nothing; an [`Entity`](super::Entity)
//! keeps the latest position of each place in its data, because an update may carry some components
//! only.

use smallvec::SmallVec;
use throng_spatial::Point;

use super::config::PositionPath;
use crate::data::{Plan, records, shape};

/// Finds positions, the object reference and the owning client in encoded entity data.
#[derive(Debug)]
pub(crate) struct Locator {
    /// Field number of the object reference, if the type has one.
    object: Option<u32>,
    places: SmallVec<[PathSlot; 3]>,
}

/// One place where a position may stand.
#[derive(Debug)]
struct PathSlot {
    path: SmallVec<[u32; 3]>,
    /// Field numbers of the plane's two axes and of height.
    axes: [u32; 3],
}

/// Latest known components at each place, in the order of the places: x, z, height.
pub(crate) type Known = SmallVec<[Option<[f64; 3]>; 3]>;

impl Locator {
    pub(crate) fn compile(plan: &Plan, paths: &[PositionPath]) -> Self {
        let object = shape::field(plan, &["objRef"]).map(|field| field.number);
        let places = paths.iter().filter_map(|position| {
            let shape::Vector { path, components: [x, y, z] } = shape::vector(plan, &position.path)?;
            Some(PathSlot { path, axes: if position.z_up { [x, y, z] } else { [x, z, y] } })
        });
        Self { object, places: places.collect() }
    }

    /// Whether data of the type can say where an entity is.
    pub(crate) fn has_position(&self) -> bool {
        !self.places.is_empty()
    }

    /// Nothing known yet.
    pub(crate) fn unknown(&self) -> Known {
        SmallVec::from_elem(None, self.places.len())
    }

    /// Takes in the positions that encoded data or an update holds, which must be places
    /// ([`Self::is_nowhere`]). Where the first one lies that has changed, if any has.
    pub(crate) fn observe(&self, known: &mut Known, bytes: &[u8]) -> Option<Point> {
        let mut moved = None;
        for (place, known) in self.places.iter().zip(known) {
            let Some(read) = place.read(bytes) else { continue };
            let old = known.unwrap_or_default();
            let mut new = old;
            for (component, read) in new.iter_mut().zip(read) {
                *component = read.unwrap_or(*component);
            }
            let changed = known.is_none() || new != old;
            *known = Some(new);
            if changed && moved.is_none() {
                moved = Some(Point { x: new[0], z: new[1] });
            }
        }
        moved
    }

    /// Whether a position in encoded data or an update is no place: a component is infinite or not
    /// a number.
    pub(crate) fn is_nowhere(&self, bytes: &[u8]) -> bool {
        let components = self.places.iter().filter_map(|place| place.read(bytes)).flatten();
        components.flatten().any(|component| !component.is_finite())
    }

    /// The object reference in encoded data, as it stands there.
    pub(crate) fn object<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let number = self.object?;
        records(bytes).filter(|record| record.number == number && record.wire == 2).last().map(|r| r.payload)
    }

    /// The same data with another object reference; `None` when the type has none.
    pub(crate) fn with_object(&self, bytes: &[u8], object: &[u8]) -> Option<Vec<u8>> {
        let number = self.object?;
        let mut out = Vec::with_capacity(bytes.len() + object.len() + 8);
        throng_wire::write_varint(&mut out, u64::from(number) << 3 | 2);
        throng_wire::write_varint(&mut out, object.len() as u64);
        out.extend_from_slice(object);
        for record in records(bytes).filter(|record| record.number != number) {
            out.extend_from_slice(record.raw);
        }
        Some(out)
    }
}

impl PathSlot {
    /// The components present at this place, `None` when nothing stands there.
    fn read(&self, bytes: &[u8]) -> Option<[Option<f64>; 3]> {
        let mut message = bytes;
        for &number in &self.path {
            // Checked bytes hold a singular field once.
            message = records(message).find(|record| record.number == number && record.wire == 2)?.payload;
        }
        let mut components = [None; 3];
        for record in records(message) {
            if let Some(at) = self.axes.iter().position(|&number| number == record.number) {
                components[at] = match (record.wire, record.payload) {
                    (5, &[a, b, c, d]) => Some(f64::from(f32::from_le_bytes([a, b, c, d]))),
                    (1, bytes) => bytes.try_into().ok().map(f64::from_le_bytes),
                    _ => components[at],
                };
            }
        }
        Some(components)
    }
}
