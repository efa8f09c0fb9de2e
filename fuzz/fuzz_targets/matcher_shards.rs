#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| throng_hostile::matcher_shards(bytes));
