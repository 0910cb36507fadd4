//! Waits for processes that may not be our own children.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Waits until the process has ended.
pub(super) async fn ended(process: OwnedFd) -> io::Result<()> {
    // SAFETY: the descriptor is owned, so it stays open and the same until the AsyncFd is dropped.
    let process = unsafe { AsyncFd::register_with_interest(process, Interest::READABLE) };
    process.map_err(|error| error.into_parts().1)?.readable().await.map(drop)
}
