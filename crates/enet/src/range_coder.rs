//! The range coder that ENet has built in: an adaptive order-2 context model. Spec: enet §4.2
//!
//! Both ends start from an empty model with every datagram, so nothing here outlives a call but the
//! memory of the arena. Output is byte for byte that of the C library: names and steps follow the
//! specification.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::compress::{Compressor, CorruptBlock};

/// The built-in compressor of ENet (`enet_host_compress_with_range_coder`, Godot's
/// `COMPRESS_RANGE_CODER`).
///
/// Holds 64 KiB of working memory, used afresh for every block. Small datagrams shrink by a third
/// to a half; the cost is 30 to 100 ns a byte in both directions.
///
/// ```
/// use throng_enet::{Compressor, RangeCoder};
///
/// let mut coder = RangeCoder::new();
/// let input = b"tick tock tick tock tick tock";
/// let (mut packed, mut unpacked) = (Vec::new(), Vec::new());
/// assert!(coder.compress(input, input.len(), &mut packed));
/// assert!(packed.len() < input.len());
/// coder.decompress(&packed, 4096, &mut unpacked).expect("the block is sound");
/// assert_eq!(unpacked, input);
/// ```
#[derive(Debug)]
pub struct RangeCoder {
    nodes: Box<[Node; ARENA_NODES]>,
    /// Nodes in use; node 0 is the root context.
    used: usize,
    /// The context that the next byte is looked up in first.
    predicted: u16,
    /// Length of that context in bytes, 0 to 2.
    order: u8,
}

impl RangeCoder {
    /// A coder with its working memory.
    #[must_use]
    pub fn new() -> Self {
        Self { nodes: Box::new([Node::EMPTY; ARENA_NODES]), used: 0, predicted: ROOT, order: 0 }
    }

    /// Empties the arena and creates the root context.
    fn start(&mut self) {
        self.nodes[0] = Node { escapes: 1, total: 1 + 256, ..Node::EMPTY };
        self.used = 1;
        self.predicted = ROOT;
        self.order = 0;
    }

    /// Model that follows every byte in both directions.
    fn advance(&mut self) {
        if self.order >= ORDER_MAX {
            self.predicted = self.node(self.predicted).parent;
        } else {
            self.order += 1;
        }
        if self.used >= ARENA_NODES - ORDER_MAX as usize {
            self.start();
        }
    }

    fn node(&mut self, index: u16) -> &mut Node {
        // The mask keeps the bound check out of the inner loops.
        &mut self.nodes[index as usize % ARENA_NODES]
    }

    fn create(&mut self, value: u8, count: u8) -> u16 {
        let index = self.used;
        // `advance` leaves room for the three nodes that one byte can create.
        self.nodes[index] = Node { value, count, under: u16::from(count), ..Node::EMPTY };
        self.used += 1;
        index as u16
    }

    /// Stores `node` in the slot that `place` names: the parent link of a node, or `predicted`
    /// itself.
    fn link(&mut self, place: Option<u16>, node: u16) {
        match place {
            Some(child) => self.node(child).parent = node,
            None => self.predicted = node,
        }
    }

    /// Looks `value` up in a context and adds it there.
    fn add(&mut self, context: u16, value: u8, increment: u8, floor: u8) -> Found {
        let mut under = u16::from(value) * u16::from(floor);
        let mut count = floor;
        let mut at = self.node(context).symbols;
        if at == NONE {
            let node = self.create(value, increment);
            self.node(context).symbols = node;
            return Found { node, under, count };
        }
        loop {
            let node = self.node(at);
            match value.cmp(&node.value) {
                core::cmp::Ordering::Less => {
                    node.under = node.under.wrapping_add(u16::from(increment));
                    if node.left == NONE {
                        let child = self.create(value, increment);
                        self.node(at).left = child;
                        return Found { node: child, under, count };
                    }
                    at = node.left;
                }
                core::cmp::Ordering::Greater => {
                    under = under.wrapping_add(node.under);
                    if node.right == NONE {
                        let child = self.create(value, increment);
                        self.node(at).right = child;
                        return Found { node: child, under, count };
                    }
                    at = node.right;
                }
                core::cmp::Ordering::Equal => {
                    count = count.wrapping_add(node.count);
                    under = under.wrapping_add(node.under.wrapping_sub(u16::from(node.count)));
                    node.hit(increment);
                    return Found { node: at, under, count };
                }
            }
        }
    }

    /// Halves all counts of a context when they have grown too large.
    fn rescale_if_due(&mut self, context: u16, count: u8, increment: u8, floor: u16) {
        let count_max = if context == ROOT { 0xFF - 2 * increment + 1 } else { 0xFF - 2 * increment };
        if count <= count_max && u32::from(self.node(context).total) <= BOTTOM - 0x100 {
            return;
        }
        let symbols = self.node(context).symbols;
        let counts = if symbols == NONE { 0 } else { self.halve(symbols) };
        let node = self.node(context);
        node.escapes -= node.escapes >> 1;
        node.total = counts.wrapping_add(node.escapes).wrapping_add(256 * floor);
    }

    /// Halves the counts of a tree and returns their sum. As deep as the tree, at most 256.
    fn halve(&mut self, root: u16) -> u16 {
        let mut total = 0_u16;
        let mut at = root;
        loop {
            let node = self.node(at);
            node.count -= node.count >> 1;
            node.under = u16::from(node.count);
            let (left, right) = (node.left, node.right);
            if left != NONE {
                let below = self.halve(left);
                let node = self.node(at);
                node.under = node.under.wrapping_add(below);
            }
            total = total.wrapping_add(self.node(at).under);
            if right == NONE {
                return total;
            }
            at = right;
        }
    }

    /// Counts `value` in one of the longer contexts and links its node in. Returns what was found
    /// before.
    fn add_to_context(&mut self, context: u16, value: u8, place: &mut Option<u16>) -> Found {
        let found = self.add(context, value, SYMBOL_INCREMENT, 0);
        self.link(*place, found.node);
        *place = Some(found.node);
        found
    }

    /// The bookkeeping of a context after a byte was coded in it (`count` above 0) or escaped from
    /// it.
    fn settle(&mut self, context: u16, count: u8) {
        let node = self.node(context);
        if count == 0 {
            node.escapes = node.escapes.wrapping_add(ESCAPE_INCREMENT);
            node.total = node.total.wrapping_add(ESCAPE_INCREMENT);
        }
        node.total = node.total.wrapping_add(u16::from(SYMBOL_INCREMENT));
        self.rescale_if_due(context, count, SYMBOL_INCREMENT, 0);
    }

    fn encode_byte(&mut self, value: u8, encoder: &mut Encoder<'_>) -> Option<()> {
        let mut place = None;
        let mut context = self.predicted;
        while context != ROOT {
            let Node { total, escapes, parent, .. } = *self.node(context);
            let found = self.add_to_context(context, value, &mut place);
            if found.count > 0 {
                encoder.encode(
                    u32::from(escapes) + u32::from(found.under),
                    u32::from(found.count),
                    total.into(),
                )?;
            } else if escapes > 0 && escapes < total {
                encoder.encode(0, escapes.into(), total.into())?;
            }
            self.settle(context, found.count);
            if found.count > 0 {
                return Some(());
            }
            context = parent;
        }
        let Node { total, escapes, .. } = *self.node(ROOT);
        let found = self.add(ROOT, value, ROOT_INCREMENT, 1);
        self.link(place, found.node);
        encoder.encode(u32::from(escapes) + u32::from(found.under), found.count.into(), total.into())?;
        self.settle_root(found.count);
        Some(())
    }

    fn settle_root(&mut self, count: u8) {
        let root = self.node(ROOT);
        root.total = root.total.wrapping_add(u16::from(ROOT_INCREMENT));
        self.rescale_if_due(ROOT, count, ROOT_INCREMENT, 1);
    }

    /// The next byte, or `None` at the end of the data.
    fn decode_byte(&mut self, decoder: &mut Decoder<'_>) -> Result<Option<u8>, CorruptBlock> {
        let mut context = self.predicted;
        let mut hit = None;
        while context != ROOT {
            let Node { total, escapes, parent, .. } = *self.node(context);
            if escapes > 0 && escapes < total {
                let x = decoder.read(total)?;
                if x >= escapes {
                    let (node, under, count) = self.find(context, x - escapes)?;
                    decoder.consume(u32::from(escapes) + u32::from(under), count.into());
                    self.settle(context, count);
                    hit = Some(node);
                    break;
                }
                decoder.consume(0, escapes.into());
            }
            context = parent;
        }
        let node = match hit {
            Some(node) => node,
            None => {
                let Node { total, escapes, .. } = *self.node(ROOT);
                let x = decoder.read(total)?;
                if x < escapes {
                    return Ok(None);
                }
                let (node, under, count) = self.find_in_root(x - escapes)?;
                decoder.consume(u32::from(escapes) + u32::from(under), count.into());
                self.settle_root(count);
                node
            }
        };
        let value = self.node(node).value;
        // The longer contexts, which did not know the byte, learn it.
        let mut place = None;
        let mut longer = self.predicted;
        while longer != context {
            let parent = self.node(longer).parent;
            let found = self.add_to_context(longer, value, &mut place);
            self.settle(longer, found.count);
            longer = parent;
        }
        self.link(place, node);
        Ok(Some(value))
    }

    /// Finds the byte whose interval holds `x` in a context other than the root.
    fn find(&mut self, context: u16, x: u16) -> Result<(u16, u16, u8), CorruptBlock> {
        let mut under = 0_u16;
        let mut at = self.node(context).symbols;
        while at != NONE {
            let node = self.node(at);
            let after = u32::from(under) + u32::from(node.under);
            let start = after.checked_sub(node.count.into()).ok_or(CorruptBlock)?;
            if u32::from(x) >= after {
                under = after as u16;
                at = node.right;
            } else if u32::from(x) < start {
                node.under = node.under.wrapping_add(u16::from(SYMBOL_INCREMENT));
                at = node.left;
            } else {
                let count = node.count;
                node.hit(SYMBOL_INCREMENT);
                return Ok((at, start as u16, count));
            }
        }
        Err(CorruptBlock)
    }

    /// The same in the root, where every byte has a share of one even before it was seen.
    fn find_in_root(&mut self, x: u16) -> Result<(u16, u16, u8), CorruptBlock> {
        let x = i32::from(x);
        let mut under = 0_i32;
        let mut at = self.node(ROOT).symbols;
        if at == NONE {
            let node = self.create(u8::try_from(x).map_err(|_| CorruptBlock)?, ROOT_INCREMENT);
            self.node(ROOT).symbols = node;
            return Ok((node, x as u16, 1));
        }
        loop {
            let node = self.node(at);
            let after = under + i32::from(node.under) + i32::from(node.value) + 1;
            let start = after - i32::from(node.count) - 1;
            if x >= after {
                under += i32::from(node.under);
                if node.right == NONE {
                    let value = i32::from(node.value) + 1 + (x - after);
                    let child = self.create(u8::try_from(value).map_err(|_| CorruptBlock)?, ROOT_INCREMENT);
                    self.node(at).right = child;
                    return Ok((child, x as u16, 1));
                }
                at = node.right;
            } else if x < start {
                node.under = node.under.wrapping_add(u16::from(ROOT_INCREMENT));
                if node.left == NONE {
                    let value = i32::from(node.value) - 1 - (start - x - 1);
                    let child = self.create(u8::try_from(value).map_err(|_| CorruptBlock)?, ROOT_INCREMENT);
                    self.node(at).left = child;
                    return Ok((child, x as u16, 1));
                }
                at = node.left;
            } else {
                let count = node.count.wrapping_add(1);
                node.hit(ROOT_INCREMENT);
                return Ok((at, u16::try_from(start).map_err(|_| CorruptBlock)?, count));
            }
        }
    }
}

impl Default for RangeCoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Compressor for RangeCoder {
    fn compress(&mut self, input: &[u8], output_max: usize, output: &mut Vec<u8>) -> bool {
        self.start();
        let mut encoder = Encoder { low: 0, range: u32::MAX, output_max, output };
        for &value in input {
            if self.encode_byte(value, &mut encoder).is_none() {
                return false;
            }
            self.advance();
        }
        encoder.finish().is_some()
    }

    fn decompress(
        &mut self,
        input: &[u8],
        output_max: usize,
        output: &mut Vec<u8>,
    ) -> Result<(), CorruptBlock> {
        self.start();
        let mut decoder = Decoder::new(input);
        let start = output.len();
        while let Some(value) = self.decode_byte(&mut decoder)? {
            if output.len() - start >= output_max {
                return Err(CorruptBlock);
            }
            output.push(value);
            self.advance();
        }
        Ok(())
    }
}

/// A byte in one context and, at the same time, the context that the byte makes.
#[derive(Clone, Copy, Debug)]
struct Node {
    value: u8,
    count: u8,
    /// Sum of the counts of this node and of its left subtree.
    under: u16,
    left: u16,
    right: u16,
    /// Root of the tree of bytes seen in this context.
    symbols: u16,
    escapes: u16,
    total: u16,
    /// The node of the same byte in the next shorter context.
    parent: u16,
}

impl Node {
    const EMPTY: Self = Self {
        value: 0,
        count: 0,
        under: 0,
        left: NONE,
        right: NONE,
        symbols: NONE,
        escapes: 0,
        total: 0,
        parent: ROOT,
    };

    fn hit(&mut self, increment: u8) {
        self.under = self.under.wrapping_add(u16::from(increment));
        self.count = self.count.wrapping_add(increment);
    }
}

/// A byte's place in a context: its interval before it was counted. A count of 0 means that it is
/// new there.
struct Found {
    node: u16,
    under: u16,
    count: u8,
}

struct Encoder<'a> {
    low: u32,
    range: u32,
    output_max: usize,
    output: &'a mut Vec<u8>,
}

impl Encoder<'_> {
    /// `None` when the output is full.
    fn encode(&mut self, under: u32, count: u32, total: u32) -> Option<()> {
        self.range /= total;
        self.low = self.low.wrapping_add(under.wrapping_mul(self.range));
        self.range = self.range.wrapping_mul(count);
        while let Some(range) = shifted_range(self.low, self.range) {
            self.push()?;
            self.range = range;
        }
        Some(())
    }

    /// Writes what is left; trailing zeros are not sent.
    fn finish(&mut self) -> Option<()> {
        while self.low != 0 {
            self.push()?;
        }
        Some(())
    }

    fn push(&mut self) -> Option<()> {
        if self.output.len() >= self.output_max {
            return None;
        }
        self.output.push((self.low >> 24) as u8);
        self.low <<= 8;
        Some(())
    }
}

struct Decoder<'a> {
    low: u32,
    range: u32,
    code: u32,
    /// Bytes not yet read; zeros follow.
    rest: &'a [u8],
}

impl<'a> Decoder<'a> {
    fn new(input: &'a [u8]) -> Self {
        let mut decoder = Self { low: 0, range: u32::MAX, code: 0, rest: input };
        for _ in 0..4 {
            decoder.feed();
        }
        decoder
    }

    fn feed(&mut self) {
        let byte = self.rest.split_off_first().copied().unwrap_or(0);
        self.code = self.code << 8 | u32::from(byte);
    }

    fn read(&mut self, total: u16) -> Result<u16, CorruptBlock> {
        self.range /= u32::from(total.max(1));
        let x = self.code.wrapping_sub(self.low).checked_div(self.range).ok_or(CorruptBlock)?;
        if x >= u32::from(total) { Err(CorruptBlock) } else { Ok(x as u16) }
    }

    fn consume(&mut self, under: u32, count: u32) {
        self.low = self.low.wrapping_add(under.wrapping_mul(self.range));
        self.range = self.range.wrapping_mul(count);
        while let Some(range) = shifted_range(self.low, self.range) {
            self.feed();
            self.range = range;
            self.low <<= 8;
        }
    }
}

/// The range after one more byte has left the coder; `None` when none has to.
fn shifted_range(low: u32, range: u32) -> Option<u32> {
    let range = if low ^ low.wrapping_add(range) < TOP {
        range
    } else if range < BOTTOM {
        low.wrapping_neg() & (BOTTOM - 1)
    } else {
        return None;
    };
    Some(range << 8)
}

const TOP: u32 = 1 << 24;
const BOTTOM: u32 = 1 << 16;
const ROOT: u16 = 0;
/// No node: the root context is nobody's child.
const NONE: u16 = 0;
const ARENA_NODES: usize = 4096;
const ORDER_MAX: u8 = 2;
const ROOT_INCREMENT: u8 = 3;
const SYMBOL_INCREMENT: u8 = 2;
const ESCAPE_INCREMENT: u16 = 5;

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    fn round_trip(input: &[u8]) {
        let mut coder = RangeCoder::new();
        let (mut packed, mut unpacked) = (Vec::new(), Vec::new());
        assert!(coder.compress(input, 2 * input.len() + 16, &mut packed));
        coder.decompress(&packed, 4096, &mut unpacked).expect("sound");
        assert_eq!(unpacked, input);
    }

    #[test]
    fn output_never_passes_its_limit() {
        let mut coder = RangeCoder::new();
        let input: Vec<u8> = (0..=255).collect();
        let mut packed = Vec::new();
        assert!(!coder.compress(&input, 100, &mut packed));
        assert!(packed.len() <= 100);
        let zeros = vec![0; 4000];
        packed.clear();
        assert!(coder.compress(&zeros, 4000, &mut packed));
        assert_eq!(coder.decompress(&packed, 3999, &mut Vec::new()), Err(CorruptBlock));
    }

    proptest! {
        #[test]
        fn what_went_in_comes_out(input in prop::collection::vec(any::<u8>(), 0..4096)) {
            round_trip(&input);
        }

        #[test]
        fn text_like_input_too(input in prop::collection::vec(0_u8..6, 0..4096)) {
            round_trip(&input);
        }

        #[test]
        fn any_bytes_decode_or_are_corrupt(input in prop::collection::vec(any::<u8>(), 0..600)) {
            let mut output = Vec::new();
            let _ = RangeCoder::new().decompress(&input, 4092, &mut output);
            prop_assert!(output.len() <= 4092);
        }
    }
}
