//! A damaged disk: bytes that are not what was written, files that are gone.
