//! Rates by distance: the published table, and the deliveries that it promises for a world.

use super::oracle::Oracle;

/// Characters up to this far away are sent this often.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rate {
    /// In words, for reports.
    pub(crate) name: &'static str,
    /// Up to this distance in metres.
    pub(crate) metres: f32,
    pub(crate) interval_ms: u32,
}

/// Bands of the table.
pub(crate) const BANDS: usize = 3;

/// The published table.
pub(crate) const TABLE: [Rate; BANDS] = [
    Rate { name: "20 Hz (0-10 m)", metres: 10.0, interval_ms: 50 },
    Rate { name: "10 Hz (10-50 m)", metres: 50.0, interval_ms: 100 },
    Rate { name: "1 Hz (beyond 50 m)", metres: f32::INFINITY, interval_ms: 1_000 },
];

/// A pair counts for a band from this far inside it, in metres: rates follow positions, and
/// positions change in steps.
const BORDER_METRES: f32 = 0.5;

/// The band that two places are judged by.
pub(crate) fn band(one: (f32, f32), other: (f32, f32)) -> usize {
    let distance = (one.0 - other.0).hypot(one.1 - other.1) + BORDER_METRES;
    TABLE.iter().position(|rate| distance < rate.metres).unwrap_or(BANDS - 1)
}

/// Adds the deliveries due in `seconds` of the current world, by band, if all players see each
/// other.
pub(crate) fn expect(oracle: &Oracle, seconds: f64, expected: &mut [f64; BANDS]) {
    let places: Vec<(f32, f32)> =
        oracle.entities[..oracle.count()].iter().map(super::oracle::Entity::place).collect();
    let mut pairs = [0u64; BANDS];
    for (index, &one) in places.iter().enumerate() {
        // Everyone is in its own nearest band.
        pairs[0] += 1;
        for &other in &places[index + 1..] {
            pairs[band(one, other)] += 2;
        }
    }
    for ((expected, pairs), rate) in expected.iter_mut().zip(pairs).zip(TABLE) {
        *expected += pairs as f64 * seconds * 1e3 / f64::from(rate.interval_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_promises_what_distances_say() {
        let oracle = Oracle::new(3);
        for (index, x) in [(0, 0.0), (1, 5.0), (2, 100.0)] {
            oracle.allocate();
            oracle.entities[index].put(x, 0.0);
        }
        let mut expected = [0.0; BANDS];
        expect(&oracle, 2.0, &mut expected);
        // Three see themselves and two see each other at 20 Hz; four pairs are far apart.
        assert_eq!(expected, [5.0 * 20.0 * 2.0, 0.0, 4.0 * 2.0]);
        assert_eq!(band((0.0, 0.0), (30.0, 40.0)), 2, "50 m are beyond 50 m");
    }
}
