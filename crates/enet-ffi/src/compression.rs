//! Compressors of programs for the host, and the range coder for programs.

use std::ffi::c_void;
use std::ptr;

use throng_enet::{Compressor, CorruptBlock, RangeCoder};

use crate::abi::{ENetBuffer, ENetCompressor};
use crate::packet::slice;

/// A compressor that the program brought.
pub(crate) struct Foreign(ENetCompressor);

// SAFETY: a host and all it has are used by one thread at a time, as the header demands.
unsafe impl Send for Foreign {}

impl Foreign {
    /// # Safety
    /// The functions and the context are valid as long as the value exists.
    pub(crate) unsafe fn new(compressor: ENetCompressor) -> Self {
        Self(compressor)
    }
}

impl Compressor for Foreign {
    fn compress(&mut self, input: &[u8], output_max: usize, output: &mut Vec<u8>) -> bool {
        let Some(compress) = self.0.compress else { return false };
        output.resize(output_max, 0);
        let buffer = ENetBuffer { iov_base: input.as_ptr().cast_mut().cast(), iov_len: input.len() };
        // SAFETY: `new`; all buffers have the stated lengths.
        let len = unsafe {
            compress(self.0.context, &raw const buffer, 1, input.len(), output.as_mut_ptr(), output_max)
        };
        output.truncate(len.min(output_max));
        len > 0 && len <= output_max
    }

    fn decompress(
        &mut self,
        input: &[u8],
        output_max: usize,
        output: &mut Vec<u8>,
    ) -> Result<(), CorruptBlock> {
        let decompress = self.0.decompress.ok_or(CorruptBlock)?;
        output.resize(output_max, 0);
        // SAFETY: as above.
        let len = unsafe {
            decompress(self.0.context, input.as_ptr(), input.len(), output.as_mut_ptr(), output_max)
        };
        output.truncate(len.min(output_max));
        if len > 0 && len <= output_max { Ok(()) } else { Err(CorruptBlock) }
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        if let Some(destroy) = self.0.destroy.filter(|_| !self.0.context.is_null()) {
            // SAFETY: `new`; the context is not used again.
            unsafe { destroy(self.0.context) };
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn enet_range_coder_create() -> *mut c_void {
    Box::into_raw(Box::new(RangeCoder::new())).cast()
}

/// # Safety
/// `context` is null, or came from [`enet_range_coder_create`] and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_range_coder_destroy(context: *mut c_void) {
    if !context.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(context.cast::<RangeCoder>()) });
    }
}

/// # Safety
/// `context` came from [`enet_range_coder_create`]; the buffers have the stated lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_range_coder_compress(
    context: *mut c_void,
    buffers: *const ENetBuffer,
    buffer_count: usize,
    limit: usize,
    out: *mut u8,
    out_max: usize,
) -> usize {
    let mut input = Vec::with_capacity(limit);
    for index in 0..buffer_count {
        // SAFETY: the caller's promise.
        unsafe {
            let buffer = &*buffers.add(index);
            input.extend_from_slice(slice(buffer.iov_base.cast(), buffer.iov_len));
        }
    }
    input.truncate(limit);
    let mut packed = Vec::new();
    // SAFETY: the caller's promise.
    let coder = unsafe { context.cast::<RangeCoder>().as_mut() };
    let is_packed = coder.is_some_and(|coder| coder.compress(&input, out_max, &mut packed));
    // SAFETY: `out` has `out_max` bytes.
    if is_packed { unsafe { give(&packed, out, out_max) } } else { 0 }
}

/// # Safety
/// As for [`enet_range_coder_compress`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn enet_range_coder_decompress(
    context: *mut c_void,
    data: *const u8,
    len: usize,
    out: *mut u8,
    out_max: usize,
) -> usize {
    let mut unpacked = Vec::new();
    // SAFETY: the caller's promise.
    let (coder, input) = unsafe { (context.cast::<RangeCoder>().as_mut(), slice(data, len)) };
    let result = coder.map(|coder| coder.decompress(input, out_max, &mut unpacked));
    // SAFETY: `out` has `out_max` bytes.
    if result == Some(Ok(())) { unsafe { give(&unpacked, out, out_max) } } else { 0 }
}

/// Copies `bytes` to the program; their number, 0 when they do not fit.
///
/// # Safety
/// `out` has `out_max` bytes.
unsafe fn give(bytes: &[u8], out: *mut u8, out_max: usize) -> usize {
    if bytes.len() > out_max || out.is_null() {
        return 0;
    }
    // SAFETY: the caller's promise.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), out, bytes.len()) };
    bytes.len()
}
