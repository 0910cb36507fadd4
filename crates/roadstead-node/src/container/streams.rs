//! What a container reads and prints.

use std::io;
use std::os::fd::OwnedFd;

use roadstead_pod::container_config::ContainerStreams;
use rustix::pipe::{PipeFlags, pipe_with};

use super::log::Stream;

/// The container's own ends. With a terminal there are none yet: it is made inside.
#[derive(Default)]
pub(super) struct InnerStreams {
    pub(super) stdin: Option<OwnedFd>,
    pub(super) outputs: Option<[OwnedFd; 2]>,
}

/// The monitor's ends.
#[derive(Default)]
pub(super) struct OuterStreams {
    pub(super) stdin: Option<OwnedFd>,
    pub(super) outputs: Vec<(Stream, OwnedFd)>,
    pub(super) terminal: Option<OwnedFd>,
}

/// Makes the pipes that such a container needs.
pub(super) fn make(wanted: ContainerStreams) -> io::Result<(OuterStreams, InnerStreams)> {
    if wanted.terminal {
        return Ok(Default::default());
    }
    let pipe = || pipe_with(PipeFlags::CLOEXEC);
    let (stdout, stdout_end) = pipe()?;
    let (stderr, stderr_end) = pipe()?;
    let (stdin_end, stdin) = match wanted.stdin {
        true => pipe().map(|(end, stdin)| (Some(end), Some(stdin)))?,
        false => (None, None),
    };
    let outputs = vec![(Stream::Stdout, stdout), (Stream::Stderr, stderr)];
    Ok((
        OuterStreams { stdin, outputs, terminal: None },
        InnerStreams { stdin: stdin_end, outputs: Some([stdout_end, stderr_end]) },
    ))
}

impl OuterStreams {
    /// Those of a terminal, which shows everything on one output.
    pub(super) fn of_terminal(outer: OwnedFd, stdin: bool) -> io::Result<Self> {
        // Threads wait for it, whoever made it.
        rustix::io::ioctl_fionbio(&outer, false)?;
        let stdin = if stdin { Some(outer.try_clone()?) } else { None };
        let outputs = vec![(Stream::Stdout, outer.try_clone()?)];
        Ok(Self { stdin, outputs, terminal: Some(outer) })
    }
}
