//! The few system calls around processes that have no safe wrapper.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use seccompiler::BpfProgramRef;

/// Which of the two processes we are after a fork.
pub(super) enum Side {
    Parent(Pid),
    Child,
}

/// Splits this process in two. It must have one thread.
pub(super) fn fork() -> io::Result<Side> {
    // SAFETY: the callers run before any thread is made, so that no lock can be held by a thread
    // that does not exist in the child.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Side::Child),
        pid => Ok(Side::Parent(Pid::from_raw(pid).expect("a child's number is not zero"))),
    }
}

/// Leaves the namespaces named.
pub(super) fn unshare(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: the danger of unshare is CLONE_FILES, which no caller passes.
    unsafe { unshare_unsafe(flags) }.map_err(Into::into)
}

/// Holds all signals back from now on, in this process and what it forks, for [`supervise`].
pub(super) fn block_signals() -> io::Result<()> {
    let mut all = MaybeUninit::uninit();
    // SAFETY: sigfillset initialises the set; pthread_sigmask only reads it.
    let error = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), ptr::null_mut())
    };
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

/// Makes a command start with no signal held back, as programs expect.
pub(super) fn with_open_signals(command: &mut Command) -> &mut Command {
    let open = || {
        let mut none = MaybeUninit::uninit();
        // SAFETY: sigemptyset initialises the set; pthread_sigmask only reads it.
        let error = unsafe {
            libc::sigemptyset(none.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut())
        };
        if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
    };
    // SAFETY: between fork and exec the closure makes two calls that are async-signal-safe.
    unsafe { command.pre_exec(open) }
}

/// Keeps every file that this process has open, but for the three standard ones, from what it
/// starts: whoever started the agent may have left it a directory, and that would be a way out.
pub(super) fn keep_files_to_ourselves() -> io::Result<()> {
    // SAFETY: the call changes a flag of descriptors and nothing else.
    let result = unsafe {
        libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Lets a program judge all system calls that this thread and what it starts will make.
///
/// Unlike the function of `seccompiler` it leaves alone whether new privileges are forbidden.
pub(super) fn install_filter(program: BpfProgramRef<'_>) -> io::Result<()> {
    let length = u16::try_from(program.len()).map_err(io::Error::other)?;
    let program = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut().cast() };
    // SAFETY: the kernel copies the program, which lives until the call returns; both libraries
    // have the kernel's layout of an instruction.
    let result = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Passes signals on to a child and reaps orphans until the child has ended; returns its exit
/// code, 128 plus the signal if one ended it.
pub(super) fn supervise(child: Pid) -> io::Result<i32> {
    loop {
        match next_signal()? {
            libc::SIGCHLD => {
                while let Some((pid, status)) = reap() {
                    if pid == child {
                        let killed = || status.terminating_signal().map(|signal| 128 + signal);
                        return Ok(status.exit_status().or_else(killed).unwrap_or(255));
                    }
                }
            }
            number => {
                if let Some(signal) = Signal::from_named_raw(number) {
                    // The child may have ended just now: then there is nobody to tell.
                    let _ = kill_process(child, signal);
                }
            }
        }
    }
}

fn reap() -> Option<(Pid, rustix::process::WaitStatus)> {
    waitpid(None, WaitOptions::NOHANG).ok().flatten()
}

fn next_signal() -> io::Result<i32> {
    let mut all = MaybeUninit::uninit();
    let mut signal = 0;
    // SAFETY: sigfillset initialises the set; sigwait reads it and writes the signal's number.
    let error = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::sigwait(all.as_ptr(), &raw mut signal)
    };
    if error == 0 { Ok(signal) } else { Err(io::Error::from_raw_os_error(error)) }
}
