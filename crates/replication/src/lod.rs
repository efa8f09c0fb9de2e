//! Levels of detail by distance: far objects are sent less often, and all connections
//! that see an object from one band share its records.

use crate::bitmap::Bitmap;
use crate::wire::bits_of;

/// Bands of a profile at most.
pub const BANDS_MAX: usize = 8;

/// One band of a profile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Band {
    /// Metres from the nearest view up to which, inclusive, the band reaches; the last band has no
    /// end.
    pub distance: f32,
    /// Updates a second; the frame rate and above mean every frame.
    pub rate: f32,
    /// Properties that are sent at this distance; the others wait until the object is in a nearer
    /// band.
    pub properties: u64,
}

impl Band {
    /// A band in which all properties are sent.
    #[must_use]
    pub const fn new(distance: f32, rate: f32) -> Self {
        Self { distance, rate, properties: u64::MAX }
    }
}

/// Bands, nearest first, and the frame rate that their rates refer to.
#[derive(Clone, Debug, PartialEq)]
pub struct LodProfile {
    /// At most [`BANDS_MAX`]; more are ignored.
    pub bands: Vec<Band>,
    /// Frames a second of the server.
    pub frame_rate: f32,
}

impl LodProfile {
    /// 20 Hz up to 10 m, 10 Hz up to 50 m, 1 Hz beyond, at 30 frames a second.
    #[must_use]
    pub fn reference() -> Self {
        let bands = vec![Band::new(10.0, 20.0), Band::new(50.0, 10.0), Band::new(f32::INFINITY, 1.0)];
        Self { bands, frame_rate: 30.0 }
    }

    /// Squared limits of all bands but the last, and squared distances at which objects leave them.
    pub(crate) fn limits(&self) -> Vec<(f32, f32)> {
        let count = self.bands.len().min(BANDS_MAX);
        let inner = &self.bands[..count.saturating_sub(1)];
        inner.iter().map(|band| (band.distance.powi(2), (band.distance * 1.1).powi(2))).collect()
    }
}

/// Changes that objects have gathered in one band since they were due last.
#[derive(Debug)]
pub(crate) struct Gathering {
    /// Updates a frame, at most 1.
    per_frame: f64,
    /// Frames over which objects are spread: one update's time.
    spread: u32,
    pub(crate) properties: u64,
    masks: Vec<u64>,
    /// Withheld properties that changed at any time.
    withheld: Vec<u64>,
    waiting: Bitmap,
}

impl Gathering {
    pub(crate) fn new(band: &Band, frame_rate: f32) -> Self {
        // The greater of a quotient that is not a number and the least is the least.
        let share = f64::from(band.rate / frame_rate).max(1.0 / 65_536.0);
        let per_frame = if band.rate >= frame_rate { 1.0 } else { share.min(1.0) };
        Self {
            per_frame,
            spread: (1.0 / per_frame).ceil() as u32,
            properties: band.properties,
            masks: Vec::new(),
            withheld: Vec::new(),
            waiting: Bitmap::default(),
        }
    }

    pub(crate) fn grow(&mut self, objects: usize) {
        if self.masks.len() < objects {
            self.masks.resize(objects, 0);
            if self.properties != u64::MAX {
                self.withheld.resize(objects, 0);
            }
            self.waiting.grow(objects / 64);
        }
    }

    #[inline]
    pub(crate) fn add(&mut self, object: u32, mask: u64) {
        let at = object as usize;
        if mask & !self.properties != 0 {
            self.withheld[at] |= mask & !self.properties;
        }
        let mask = mask & self.properties;
        if mask != 0 {
            self.masks[at] |= mask;
            self.waiting.set(object);
        }
    }

    pub(crate) fn forget(&mut self, object: u32) {
        if let Some(mask) = self.masks.get_mut(object as usize) {
            *mask = 0;
            self.waiting.clear(object);
        }
        if let Some(mask) = self.withheld.get_mut(object as usize) {
            *mask = 0;
        }
    }

    /// Changes since the object was due last.
    pub(crate) fn gathered(&self, object: u32) -> u64 {
        self.masks.get(object as usize).copied().unwrap_or(0)
    }

    /// Changes that a pair lacks when it leaves the band: gathered, and withheld.
    pub(crate) fn missing(&self, object: u32) -> u64 {
        let at = object as usize;
        self.masks.get(at).copied().unwrap_or(0) | self.withheld.get(at).copied().unwrap_or(0)
    }

    fn due(&self, frame: u32, object: u32) -> bool {
        let count = |frame: f64| (frame * self.per_frame + 1e-9).floor();
        let now = f64::from(frame.wrapping_add(object % self.spread));
        self.spread == 1 || count(now) > count(now - 1.0)
    }

    /// Takes the masks of all objects that are due in `frame`, in the order of their indices.
    pub(crate) fn take_due(&mut self, frame: u32, mut each: impl FnMut(u32, u64)) {
        for word in 0..self.waiting.words().len() {
            for bit in bits_of(self.waiting.word(word)) {
                let object = (word * 64 + bit) as u32;
                if self.due(frame, object) {
                    self.waiting.clear(object);
                    each(object, core::mem::take(&mut self.masks[object as usize]));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_kept_at_every_phase() {
        for (rate, expected) in [(30.0, 300), (20.0, 200), (10.0, 100), (7.0, 70), (1.0, 10)] {
            let gathering = Gathering::new(&Band::new(1.0, rate), 30.0);
            for object in 0..40 {
                let sent = (1..=300).filter(|frame| gathering.due(*frame, object)).count() as i32;
                assert!((sent - expected).abs() <= 1, "{rate} Hz, object {object}: {sent}");
            }
        }
    }
}
