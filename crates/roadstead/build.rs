//! Asks the linker to write down briefly which addresses are filled in at the start: see
//! `docs/adr/0251-addresses-are-written-down-briefly.md`.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let of = |name: &str| env::var(name).unwrap_or_default();
    if of("TARGET") == of("HOST") && of("TARGET") == "x86_64-unknown-linux-gnu" && reads_it() {
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// Whether the C library of this machine, which the program will start with, is 2.36 or later.
fn reads_it() -> bool {
    let said = Command::new("getconf").arg("GNU_LIBC_VERSION").output();
    let said = said.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let version = said.unwrap_or_default().trim().strip_prefix("glibc ").map(str::to_owned);
    let Some((major, minor)) = version.as_deref().and_then(|version| version.split_once('.'))
    else {
        return false;
    };
    (major.parse().unwrap_or(0), minor.parse().unwrap_or(0)) >= (2, 36)
}
