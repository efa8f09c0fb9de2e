//! Prioritisers: the rate at which an object's priority grows.

use std::sync::Arc;

/// Position and direction of a connection's view.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct View {
    /// Metres.
    pub position: [f32; 3],
    /// Unit vector.
    pub direction: [f32; 3],
}

/// Priority by distance: `p_in` up to `r_in`, linear to `p_out` at `r_out`, `p_outside` beyond.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sphere {
    /// Inner radius in metres.
    pub r_in: f32,
    /// Priority within it.
    pub p_in: f32,
    /// Outer radius in metres.
    pub r_out: f32,
    /// Priority at it.
    pub p_out: f32,
    /// Priority beyond it.
    pub p_outside: f32,
}

impl Default for Sphere {
    fn default() -> Self {
        Self { r_in: 20.0, p_in: 1.0, r_out: 100.0, p_out: 0.2, p_outside: 0.1 }
    }
}

impl Sphere {
    #[inline(always)]
    fn at(&self, square: f32, slope: f32) -> f32 {
        let distance = square.sqrt();
        let inside = self.p_in + (distance - self.r_in).max(0.0) * slope;
        if distance > self.r_out { self.p_outside } else { inside }
    }

    fn least(&self) -> f32 {
        self.p_in.min(self.p_out).min(self.p_outside)
    }

    fn slope(&self) -> f32 {
        let width = self.r_out - self.r_in;
        if width > 0.0 { (self.p_out - self.p_in) / width } else { 0.0 }
    }
}

/// Priority by what a player looks at: the largest of four shapes around the view.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FieldOfView {
    /// Radius and priority of the inner sphere.
    pub inner: (f32, f32),
    /// Radius and priority of the outer sphere.
    pub outer: (f32, f32),
    /// Cosine of half the cone's opening angle.
    pub cone_cosine: f32,
    /// Length up to which the cone has its full priority, and at which it ends.
    pub cone_length: (f32, f32),
    /// Priority at full and at the cone's end.
    pub cone_priority: (f32, f32),
    /// Half width and priority of the capsule along the line of sight, which is as long as the
    /// cone.
    pub sight: (f32, f32),
}

impl Default for FieldOfView {
    fn default() -> Self {
        Self {
            inner: (5.0, 1.0),
            outer: (50.0, 0.3),
            cone_cosine: 0.866,
            cone_length: (30.0, 100.0),
            cone_priority: (1.0, 0.3),
            sight: (2.0, 1.0),
        }
    }
}

impl FieldOfView {
    fn at(&self, view: &View, position: [f32; 3]) -> f32 {
        let to: [f32; 3] = core::array::from_fn(|i| position[i] - view.position[i]);
        let square = to.iter().map(|part| part * part).sum::<f32>();
        let distance = square.sqrt();
        let along: f32 = to.iter().zip(view.direction).map(|(a, b)| a * b).sum();
        let mut best = 0.0_f32;
        for (radius, priority) in [self.inner, self.outer] {
            if distance <= radius {
                best = best.max(priority);
            }
        }
        let (full, end) = self.cone_length;
        let (p_max, p_min) = self.cone_priority;
        if along >= self.cone_cosine * distance && distance <= end {
            let share = ((distance - full) / (end - full).max(f32::MIN_POSITIVE)).clamp(0.0, 1.0);
            best = best.max(p_max + (p_min - p_max) * share);
        }
        let (width, priority) = self.sight;
        let nearest = along.clamp(0.0, end.max(0.0));
        if square - 2.0 * along * nearest + nearest * nearest <= width * width {
            best = best.max(priority);
        }
        best
    }
}

/// Choice of a [`CountLimiter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitMode {
    /// The next objects in scope, in turn, whether they have changed or not.
    RoundRobin,
    /// Of the objects with changes those that were sent least recently.
    Fill,
}

/// So many objects a frame and connection, others wait: for crowds of equals such as
/// props.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CountLimiter {
    /// Objects a frame.
    pub count: u32,
    /// Which ones.
    pub mode: LimitMode,
    /// Priority of those.
    pub p: f32,
    /// Priority of the connection's own.
    pub owner_p: f32,
    /// The connection's own objects need not wait, and do not count.
    pub owner_always: bool,
}

impl Default for CountLimiter {
    /// Ten objects, those that were sent least recently; owners do not wait.
    fn default() -> Self {
        Self { count: 10, mode: LimitMode::Fill, p: 1.0, owner_p: 1.0, owner_always: true }
    }
}

/// A game's own priorities. Called with a batch, never for single objects.
pub trait CustomPrioritiser: Send + Sync + core::fmt::Debug {
    /// Writes the priority of each object (index and position) into `out`, which has the same
    /// length. NaN counts as zero.
    fn prioritise(&self, views: &[View], objects: &[u32], positions: &[[f32; 3]], out: &mut [f32]);
}

/// Source of an object's priority. A value p also is a rate: 0.25 sends at most every fourth frame.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Prioritiser {
    /// The same everywhere.
    Static(f32),
    /// By distance.
    Sphere(Sphere),
    /// By distance, and this much more for the owner.
    SphereOwnerBoost(Sphere, f32),
    /// By what the view looks at.
    FieldOfView(FieldOfView),
    /// So many a frame.
    CountLimiter(CountLimiter),
    /// The game's.
    Custom(Arc<dyn CustomPrioritiser>),
}

/// Up to 64 objects at once: gathered, so that the arithmetic runs over contiguous numbers.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub(crate) x: [f32; 64],
    pub(crate) y: [f32; 64],
    pub(crate) z: [f32; 64],
    pub(crate) p: [f32; 64],
    pub(crate) objects: [u32; 64],
    /// The objects are 64 consecutive ones from here; `objects` is not filled in then.
    pub(crate) first: Option<u32>,
    /// Bit i: owned by the connection.
    pub(crate) owned: u64,
    /// Bit i: a count limiter says that it is its turn.
    pub(crate) chosen: u64,
    pub(crate) len: usize,
}

impl Default for Batch {
    fn default() -> Self {
        Self {
            x: [0.0; 64],
            y: [0.0; 64],
            z: [0.0; 64],
            p: [0.0; 64],
            objects: [0; 64],
            first: None,
            owned: 0,
            chosen: 0,
            len: 0,
        }
    }
}

impl Prioritiser {
    /// No object ever has a lower priority.
    pub(crate) fn least(&self) -> f32 {
        match self {
            Self::Static(p) => *p,
            Self::Sphere(sphere) => sphere.least(),
            Self::SphereOwnerBoost(sphere, boost) => sphere.least() + boost.min(0.0),
            Self::FieldOfView(_) | Self::CountLimiter(_) | Self::Custom(_) => f32::MIN,
        }
    }

    /// The priority of one object by itself, where that is quicker than a batch: the same value.
    #[inline]
    pub(crate) fn single(&self, views: &[View], [x, y, z]: [f32; 3]) -> Option<f32> {
        match self {
            Self::Static(p) => Some(*p),
            Self::Sphere(sphere) => {
                let slope = sphere.slope();
                let over = |view: &View| {
                    let [vx, vy, vz] = view.position;
                    let (dx, dy, dz) = (x - vx, y - vy, z - vz);
                    sphere.at(dx * dx + dy * dy + dz * dz, slope)
                };
                let outside = if views.is_empty() { sphere.p_outside } else { f32::MIN };
                Some(views.iter().map(over).fold(outside, f32::max))
            }
            _ => None,
        }
    }

    /// Fills `p` of the batch; the largest over all views counts.
    pub(crate) fn run(&self, views: &[View], batch: &mut Batch) {
        let len = batch.len;
        match self {
            Self::Static(p) => batch.p[..len].fill(*p),
            Self::Sphere(sphere) => run_sphere(sphere, views, batch),
            Self::SphereOwnerBoost(sphere, boost) => {
                run_sphere(sphere, views, batch);
                for at in crate::wire::bits_of(batch.owned) {
                    batch.p[at] += boost;
                }
            }
            Self::FieldOfView(shape) => {
                for at in 0..len {
                    let position = [batch.x[at], batch.y[at], batch.z[at]];
                    batch.p[at] = views.iter().map(|view| shape.at(view, position)).fold(0.0, f32::max);
                }
            }
            Self::CountLimiter(limiter) => {
                for at in 0..len {
                    let (owned, chosen) = (batch.owned >> at & 1 != 0, batch.chosen >> at & 1 != 0);
                    let waits = !(chosen || owned && limiter.owner_always);
                    batch.p[at] = match (waits, owned) {
                        (true, _) => 0.0,
                        (false, true) => limiter.owner_p,
                        (false, false) => limiter.p,
                    };
                }
            }
            Self::Custom(custom) => {
                if let Some(first) = batch.first {
                    for (object, index) in batch.objects.iter_mut().zip(first..) {
                        *object = index;
                    }
                }
                let positions: [[f32; 3]; 64] =
                    core::array::from_fn(|at| [batch.x[at], batch.y[at], batch.z[at]]);
                let p = &mut batch.p[..len];
                custom.prioritise(views, &batch.objects[..len], &positions[..len], p);
                p.iter_mut().filter(|p| p.is_nan()).for_each(|p| *p = 0.0);
            }
        }
    }
}

#[inline]
fn run_sphere(sphere: &Sphere, views: &[View], batch: &mut Batch) {
    let slope = sphere.slope();
    // Whole lanes of four; what the last one computes too much is never read.
    let len = batch.len.next_multiple_of(4);
    batch.p[..len].fill(if views.is_empty() { sphere.p_outside } else { f32::MIN });
    for view in views {
        let [vx, vy, vz] = view.position;
        let lanes = batch.p[..len].iter_mut().zip(&batch.x[..len]).zip(&batch.y[..len]).zip(&batch.z[..len]);
        for (((p, x), y), z) in lanes {
            let (dx, dy, dz) = (x - vx, y - vy, z - vz);
            *p = p.max(sphere.at(dx * dx + dy * dy + dz * dz, slope));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sphere_falls_off_linearly() {
        let view = View::default();
        let prioritiser =
            Prioritiser::Sphere(Sphere { p_in: 2.0, p_out: 1.0, p_outside: 0.5, ..Sphere::default() });
        let mut batch = Batch { len: 5, ..Batch::default() };
        batch.x[..5].copy_from_slice(&[0.0, 20.0, 60.0, 100.0, 100.1]);
        prioritiser.run(&[view], &mut batch);
        assert_eq!(batch.p[..5], [2.0, 2.0, 1.5, 1.0, 0.5]);
    }

    #[test]
    fn what_is_looked_at_comes_first() {
        let shape = FieldOfView::default();
        let view = View { position: [0.0; 3], direction: [1.0, 0.0, 0.0] };
        assert_eq!(shape.at(&view, [-4.0, 0.0, 0.0]), 1.0);
        assert_eq!(shape.at(&view, [-40.0, 0.0, 0.0]), 0.3);
        assert_eq!(shape.at(&view, [-60.0, 0.0, 0.0]), 0.0);
        assert_eq!(shape.at(&view, [25.0, 5.0, 0.0]), 1.0);
        assert!((shape.at(&view, [65.0, 5.0, 0.0]) - 0.65).abs() < 0.01);
        assert_eq!(shape.at(&view, [90.0, 1.0, 0.0]), 1.0);
    }
}
