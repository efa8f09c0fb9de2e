//! Rules shared by both sides: the character, its inputs, and its movement.

use throng_replication::{Axis, ClassError, ClassId, Classes, Condition, Quantiser, Replicate};

/// Frames a second, of the server and of players.
pub(super) const HZ: u32 = 30;
/// Half the side of the square that characters walk in, in metres. Its walls are the server's
/// secret.
pub(super) const HALF_SIDE: f32 = 500.0;
/// Metres up to which others are seen.
pub(super) const SIGHT: f32 = 150.0;
/// Metres a second.
const SPEED: f32 = 6.0;
/// Bytes of one input: number and heading.
const INPUT_BYTES: usize = 8;

const XY: Axis = Axis::new(-655.36, 0.01, 17);

#[derive(Clone, Copy, Debug, Default, Replicate)]
#[replicate(name = "character", cull_distance = SIGHT)]
pub(super) struct Character {
    #[replicate(Quantiser::Vec3([XY, XY, Axis::new(-20.48, 0.01, 12)]), position)]
    pub(super) position: [f32; 3],
    #[replicate(Quantiser::Angle(8))]
    pub(super) heading: f32,
    /// Newest input that the position contains.
    #[replicate(Quantiser::UInt(32), condition = Condition::OwnerOnly)]
    pub(super) input: u32,
}

pub(super) fn classes() -> Result<(Classes, ClassId), ClassError> {
    let mut classes = Classes::new();
    let character = classes.add::<Character>()?;
    Ok((classes, character))
}

/// Position after a step of one frame, computed alike by both sides.
pub(super) fn stepped([x, y, z]: [f32; 3], heading: f32) -> [f32; 3] {
    let way = SPEED / HZ as f32;
    [x + heading.cos() * way, y + heading.sin() * way, z]
}

pub(super) fn write_input(out: &mut Vec<u8>, number: u32, heading: f32) {
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&heading.to_le_bytes());
}

/// Inputs in the order of their numbers; invalid numbers and incomplete inputs are skipped.
pub(super) fn read_inputs(bytes: &[u8]) -> impl Iterator<Item = (u32, f32)> {
    bytes.as_chunks::<INPUT_BYTES>().0.iter().filter_map(|[a, b, c, d, rest @ ..]| {
        let heading = f32::from_le_bytes(*rest);
        heading.is_finite().then(|| (u32::from_le_bytes([*a, *b, *c, *d]), heading))
    })
}
