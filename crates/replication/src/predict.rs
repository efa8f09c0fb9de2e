//! For players: their own character ahead of the server, the others smoothly behind it.

use std::collections::VecDeque;

/// A player's own state, moved at once by inputs that the server has not applied yet.
///
/// Inputs are numbered from 1. The game sends them, the server applies them by its own rules and
/// replicates, to the owner, the number of the last one together with the state.
/// [`reconcile`](Self::reconcile) goes back to what the server says and repeats what came after.
///
/// ```
/// use throng_replication::Prediction;
/// let step = |x: &mut f32, input: &f32| *x += input;
/// let mut own = Prediction::new(0.0_f32, 30);
/// assert_eq!(own.act(1.0, step), 1);
/// assert_eq!(own.act(1.0, step), 2);
/// assert_eq!(*own.state(), 2.0);
/// // The server met a wall in the first step; the second one is repeated from there.
/// let before = own.reconcile(1, 0.5, step);
/// assert_eq!((before, *own.state()), (2.0, 1.5));
/// ```
#[derive(Clone, Debug)]
pub struct Prediction<S, I> {
    state: S,
    /// Inputs that the server has not confirmed, oldest first.
    open: VecDeque<(u32, I)>,
    open_max: usize,
    number: u32,
}

impl<S, I> Prediction<S, I> {
    /// Begins at `state`. At most `open_max` inputs, one at least, are repeated; older ones are
    /// given up.
    #[must_use]
    pub fn new(state: S, open_max: usize) -> Self {
        Self { state, open: VecDeque::new(), open_max: open_max.max(1), number: 0 }
    }

    /// The state with all inputs so far.
    #[must_use]
    pub fn state(&self) -> &S {
        &self.state
    }

    /// Number of the newest input; 0 before the first.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Inputs that the server has not confirmed, oldest first: what a packet repeats so that a loss
    /// costs nothing.
    pub fn open(&self) -> impl DoubleEndedIterator<Item = (u32, &I)> + ExactSizeIterator {
        self.open.iter().map(|(number, input)| (*number, input))
    }

    /// Applies an input at once and returns its number.
    pub fn act(&mut self, input: I, step: impl FnOnce(&mut S, &I)) -> u32 {
        self.number = self.number.wrapping_add(1);
        step(&mut self.state, &input);
        if self.open.len() == self.open_max {
            self.open.pop_front();
        }
        self.open.push_back((self.number, input));
        self.number
    }

    /// Takes the server's state, which has the inputs up to `confirmed`, and repeats the later
    /// ones. Returns what had been predicted. `confirmed` must not go back: confirmed inputs are
    /// forgotten, and those after an older number would be missing. Costs a step for each
    /// unconfirmed input.
    pub fn reconcile(&mut self, confirmed: u32, state: S, mut step: impl FnMut(&mut S, &I)) -> S {
        while self.open.front().is_some_and(|(number, _)| number.wrapping_sub(confirmed) as i32 <= 0) {
            self.open.pop_front();
        }
        let predicted = core::mem::replace(&mut self.state, state);
        for (_, input) in &self.open {
            step(&mut self.state, input);
        }
        predicted
    }
}

/// Position and rotation of an object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pose {
    /// Metres.
    pub position: [f32; 3],
    /// Unit quaternion x, y, z, w.
    pub rotation: [f32; 4],
}

impl Default for Pose {
    fn default() -> Self {
        Self { position: [0.0; 3], rotation: [0.0, 0.0, 0.0, 1.0] }
    }
}

/// The last poses of an object by server frame, to show it smoothly a few frames behind the newest.
///
/// ```
/// use throng_replication::{Pose, Snapshots};
/// let at = |x| Pose { position: [x, 0.0, 0.0], ..Pose::default() };
/// let mut shown = Snapshots::new(4);
/// shown.push(10, at(0.0));
/// shown.push(12, at(1.0));
/// assert_eq!(shown.sample(11.0), Some(at(0.5)));
/// // Nothing newer is known: it stands where it was seen last.
/// assert_eq!(shown.sample(20.0), Some(at(1.0)));
/// ```
#[derive(Clone, Debug)]
pub struct Snapshots {
    poses: VecDeque<(u32, Pose)>,
    depth: usize,
}

/// Fewest and most poses that are kept.
const DEPTH: (usize, usize) = (2, 10);

impl Snapshots {
    /// Keeps the newest `depth` poses, 2 to 10.
    #[must_use]
    pub fn new(depth: usize) -> Self {
        let depth = depth.clamp(DEPTH.0, DEPTH.1);
        Self { poses: VecDeque::with_capacity(depth), depth }
    }

    /// Adds the pose of a server frame (see [`Replica::frame`](crate::Replica::frame)). One that is
    /// not newer than the last replaces it when the frame is the same, and is ignored otherwise.
    pub fn push(&mut self, frame: u32, pose: Pose) {
        if let Some((newest, last)) = self.poses.back_mut() {
            if *newest == frame {
                *last = pose;
                return;
            }
            if newest.wrapping_sub(frame) as i32 > 0 {
                return;
            }
        }
        if self.poses.len() == self.depth {
            self.poses.pop_front();
        }
        self.poses.push_back((frame, pose));
    }

    /// Forgets everything, as after a teleport.
    pub fn clear(&mut self) {
        self.poses.clear();
    }

    /// The pose at `frame`, which may lie between two: positions linear, rotations along the
    /// shorter way. Before the first and after the last pose these are held. `None` while nothing
    /// is known.
    #[must_use]
    pub fn sample(&self, frame: f64) -> Option<Pose> {
        // Frame numbers wrap; distances to the newest do not.
        let (newest, last) = *self.poses.back()?;
        let behind = |at: u32| f64::from(newest.wrapping_sub(at));
        let wanted = f64::from(newest) - frame;
        let mut after = (newest, last);
        for before in self.poses.iter().rev() {
            if behind(before.0) >= wanted {
                let span = behind(before.0) - behind(after.0);
                let share = if span > 0.0 { (behind(before.0) - wanted.max(0.0)) / span } else { 0.0 };
                return Some(between(&before.1, &after.1, share as f32));
            }
            after = *before;
        }
        Some(after.1)
    }
}

fn between(a: &Pose, b: &Pose, share: f32) -> Pose {
    let position = core::array::from_fn(|i| a.position[i] + (b.position[i] - a.position[i]) * share);
    // A rotation and its negative are the same one; the nearer name is the shorter way.
    let dot: f32 = a.rotation.iter().zip(b.rotation).map(|(a, b)| a * b).sum();
    let sign = if dot < 0.0 { -1.0 } else { 1.0 };
    let mixed: [f32; 4] =
        core::array::from_fn(|i| a.rotation[i] + (sign * b.rotation[i] - a.rotation[i]) * share);
    let length = mixed.iter().map(|part| part * part).sum::<f32>().sqrt();
    let rotation = if length > 1e-6 { mixed.map(|part| part / length) } else { a.rotation };
    Pose { position, rotation }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(x: f32) -> Pose {
        Pose { position: [x, 0.0, 0.0], ..Pose::default() }
    }

    #[test]
    fn confirmed_inputs_are_not_repeated() {
        let step = |state: &mut i32, input: &i32| *state += input;
        let mut own = Prediction::new(0, 3);
        for input in [1, 10, 100, 1000] {
            own.act(input, step);
        }
        // The first was given up: only three are kept.
        assert_eq!(own.open().map(|(number, _)| number).collect::<Vec<_>>(), [2, 3, 4]);
        assert_eq!(own.reconcile(3, 500, step), 1111);
        assert_eq!(*own.state(), 1500);
        // An old confirmation, which packets do not bring but a game might, changes nothing that is
        // open.
        own.reconcile(1, 0, step);
        assert_eq!((*own.state(), own.open().len()), (1000, 1));
    }

    #[test]
    fn poses_are_held_outside_and_mixed_between() {
        let mut shown = Snapshots::new(3);
        assert_eq!(shown.sample(1.0), None);
        for (frame, x) in [(5, 0.0), (7, 2.0), (6, 9.0), (10, 5.0), (11, 6.0)] {
            shown.push(frame, at(x));
        }
        // Frame 6 came late, frame 5 fell out.
        for (frame, x) in [(0.0, 2.0), (7.0, 2.0), (8.5, 3.5), (10.0, 5.0), (10.25, 5.25), (99.0, 6.0)] {
            assert_eq!(shown.sample(frame), Some(at(x)), "{frame}");
        }
        shown.push(11, at(7.0));
        assert_eq!(shown.sample(11.0), Some(at(7.0)));
    }

    #[test]
    fn rotations_take_the_shorter_way() {
        let turned = |w: f32, z: f32| Pose { rotation: [0.0, 0.0, z, w], ..Pose::default() };
        let mut shown = Snapshots::new(2);
        let half = core::f32::consts::FRAC_1_SQRT_2;
        shown.push(1, turned(1.0, 0.0));
        shown.push(2, turned(-half, -half));
        let middle = shown.sample(1.5).unwrap().rotation;
        assert!((middle[3] - 0.9239).abs() < 1e-3 && (middle[2] - 0.3827).abs() < 1e-3, "{middle:?}");
    }
}
