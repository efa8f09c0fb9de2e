//! Variable-length unsigned integers of compact binary: big-endian, length in the leading one bits
//! of the first byte.

/// Appends the shortest form of `value`, 1 to 9 bytes.
pub fn write_varuint(out: &mut Vec<u8>, value: u64) {
    let bits = 64 - value.leading_zeros() as usize;
    // n bytes hold 7 * n bits; nine hold 64.
    let length = if bits > 56 { 9 } else { bits.div_ceil(7).max(1) };
    let bytes = value.to_be_bytes();
    if length == 9 {
        out.push(0xFF);
        out.extend_from_slice(&bytes);
    } else {
        let start = out.len();
        out.extend_from_slice(&bytes[8 - length..]);
        out[start] |= !(0xFF_u16 >> (length - 1)) as u8;
    }
}

/// Reads a value in any form, short or long: the value and how many bytes it took. `None` if
/// `bytes` end before it does.
#[must_use]
pub fn read_varuint(bytes: &[u8]) -> Option<(u64, usize)> {
    let first = *bytes.first()?;
    if first < 0x80 {
        return Some((u64::from(first), 1));
    }
    let extra = first.leading_ones() as usize;
    let rest = bytes.get(1..=extra)?;
    let head = if extra >= 7 { 0 } else { u64::from(first) & (0x7F >> extra) };
    let value = rest.iter().fold(head, |value, byte| value << 8 | u64::from(*byte));
    Some((value, 1 + extra))
}

/// How many bytes the shortest form of `value` takes.
#[must_use]
pub(crate) fn varuint_len(value: u64) -> usize {
    let bits = 64 - value.leading_zeros() as usize;
    if bits > 56 { 9 } else { bits.div_ceil(7).max(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_comes_back() {
        for shift in 0..64 {
            for value in [1_u64 << shift, (1 << shift) - 1, (1 << shift) + 1] {
                let mut bytes = Vec::new();
                write_varuint(&mut bytes, value);
                assert_eq!(bytes.len(), varuint_len(value));
                assert_eq!(read_varuint(&bytes), Some((value, bytes.len())), "{value}");
                assert_eq!(read_varuint(&bytes[..bytes.len() - 1]), None, "{value}");
            }
        }
    }
}
