//! How this program itself looks up names of machines and users, when the C library is a part of it.
//!
//! The library would load what /etc/nsswitch.conf names at that moment: modules that were built with the
//! machine's own library, which need not be the one in this program. What it has inside is enough: files
//! and DNS (`docs/adr/0170-a-static-binary-with-glibc.md`).

#[cfg(target_feature = "crt-static")]
#[allow(unsafe_code)]
mod fixed {
    use std::ffi::{CStr, c_char, c_int};

    unsafe extern "C" {
        fn __nss_configure_lookup(database: *const c_char, services: *const c_char) -> c_int;
    }

    /// What is looked up in which way.
    const WAYS: [(&CStr, &CStr); 3] =
        [(c"hosts", c"files dns"), (c"passwd", c"files"), (c"group", c"files")];

    pub(super) fn set() {
        for (database, services) in WAYS {
            // SAFETY: both are strings that end with a zero and live for ever, and no other thread
            // looks anything up yet: the caller is at the beginning of the program.
            unsafe { __nss_configure_lookup(database.as_ptr(), services.as_ptr()) };
        }
    }
}

/// Keeps the C library from loading modules of the machine, in a program that has it inside. To be called
/// before there are other threads.
pub fn stay_inside() {
    #[cfg(target_feature = "crt-static")]
    fixed::set();
}
