//! libFuzzer's loop around one of the [`entries`]; `ROADSTEAD_FUZZ_TARGET` names it.

#![no_main]

mod entries;

use std::sync::LazyLock;

static TARGET: LazyLock<entries::Entry> = LazyLock::new(|| {
    let name =
        std::env::var("ROADSTEAD_FUZZ_TARGET").expect("ROADSTEAD_FUZZ_TARGET names a target");
    entries::find(&name).unwrap_or_else(|| panic!("there is no target {name}"))
});

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let size = (*TARGET)(input);
    assert!(size <= entries::LARGEST, "{} bytes make {size}", input.len());
});
