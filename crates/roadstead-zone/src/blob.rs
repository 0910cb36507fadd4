//! Bytes that are kept in place while they are few.
//!
//! An answer is made of bytes from all over memory, and fetching them is most of its cost. So what
//! nearly every Service has little of lies beside what leads to it.

use std::fmt;
use std::ops::Deref;

/// Up to `N` bytes in place, more of them elsewhere.
#[derive(Clone)]
pub struct Blob<const N: usize>(Storage<N>);

#[derive(Clone)]
enum Storage<const N: usize> {
    Here(u8, [u8; N]),
    Elsewhere(Box<[u8]>),
}

impl<const N: usize> Deref for Blob<N> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Storage::Here(length, bytes) => &bytes[..usize::from(*length)],
            Storage::Elsewhere(bytes) => bytes,
        }
    }
}

impl<const N: usize> From<&[u8]> for Blob<N> {
    fn from(bytes: &[u8]) -> Self {
        let mut here = [0; N];
        match (here.get_mut(..bytes.len()), u8::try_from(bytes.len())) {
            (Some(place), Ok(length)) => {
                place.copy_from_slice(bytes);
                Self(Storage::Here(length, here))
            }
            _ => Self(Storage::Elsewhere(bytes.into())),
        }
    }
}

impl<const N: usize> Default for Blob<N> {
    fn default() -> Self {
        Self(Storage::Here(0, [0; N]))
    }
}

impl<const N: usize> PartialEq for Blob<N> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<const N: usize> Eq for Blob<N> {}

impl<const N: usize> fmt::Debug for Blob<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_length() {
        for length in [0, 1, 29, 30, 31, 255, 256, 5000] {
            let bytes = vec![7; length];
            let blob = Blob::<30>::from(&*bytes);
            assert_eq!(*blob, *bytes);
            assert_eq!(matches!(blob.0, Storage::Here(..)), length <= 30, "{length}");
            assert_eq!(blob, blob.clone());
        }
        assert_eq!(size_of::<Blob<30>>(), 32);
    }
}
