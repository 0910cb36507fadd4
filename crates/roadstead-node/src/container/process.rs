//! The few system calls around processes that have no safe wrapper.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;

use rustix::process::{Pid, WaitOptions, wait};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use seccompiler::BpfProgramRef;

/// What a mount does not do: the kernel's `MOUNT_ATTR_…`.
#[derive(Clone, Copy)]
pub(super) struct Restrictions(u64);

/// Who sees what is mounted below a mount: the kernel's `MS_…`.
#[derive(Clone, Copy)]
pub(super) enum Sharing {
    /// As it was.
    Unchanged = 0,
    /// It sees what its masters mount.
    Follows = 1 << 19,
}

impl Restrictions {
    pub(super) const NONE: Self = Self(0);
    pub(super) const READ_ONLY: Self = Self(1);
    pub(super) const NO_SETUID: Self = Self(2);
    pub(super) const NO_DEVICES: Self = Self(4);
    pub(super) const NO_PROGRAMS: Self = Self(8);

    pub(super) const fn and(self, more: Self) -> Self {
        Self(self.0 | more.0)
    }
}

/// How much of a tree of mounts is meant.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Extent {
    Top,
    All,
}

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

/// Which of the two processes we are after [`sibling`].
pub(super) enum Sibling {
    /// The one that asked, with a handle on the other.
    Elder(OwnedFd),
    Younger,
}

/// Makes another process like this one whose parent is our own parent. It must have one thread.
pub(super) fn sibling() -> io::Result<Sibling> {
    let mut handle: libc::c_int = -1;
    let flags = libc::CLONE_PARENT | libc::CLONE_PIDFD | libc::SIGCHLD;
    // SAFETY: without a stack of its own and without shared memory this is a fork, for which the same
    // holds as above; the kernel writes the handle before it returns.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, &raw mut handle, 0, 0) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Sibling::Younger),
        // SAFETY: the kernel has just made the descriptor for us.
        _ => Ok(Sibling::Elder(unsafe { OwnedFd::from_raw_fd(handle) })),
    }
}

/// What this process is called from now on, where processes are listed: as much of it as there is room for
/// in what it was called before.
pub(super) fn set_title(title: &str) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
    // The 48th and the 49th field, of which the name was the second.
    let mut ends = after_name.split_whitespace().skip(45).map(|field| field.parse::<usize>());
    let (Some(Ok(begin)), Some(Ok(end))) = (ends.next(), ends.next()) else { return };
    if begin == 0 || end <= begin {
        return;
    }
    // SAFETY: the kernel has put our arguments there, on the stack of this process, which has one thread;
    // the last byte stays zero, so that whoever reads them finds an end.
    let arguments = unsafe {
        std::slice::from_raw_parts_mut(ptr::with_exposed_provenance_mut(begin), end - begin)
    };
    let count = title.len().min(arguments.len() - 1);
    arguments.fill(0);
    arguments[..count].copy_from_slice(&title.as_bytes()[..count]);
}

/// Becomes another program, with open signals; returns only if it could not.
pub(super) fn execute(path: &CStr, arguments: &[CString], environment: &[CString]) -> io::Error {
    let pointers = |texts: &[CString]| -> Vec<*const libc::c_char> {
        texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
    };
    let (arguments, environment) = (pointers(arguments), pointers(environment));
    // SAFETY: both lists end with a null pointer, and what they point to lives until the call returns.
    unsafe { libc::execve(path.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
    io::Error::last_os_error()
}

/// Signals as programs expect them: none held back, none ignored.
pub(super) fn open_signals() -> io::Result<()> {
    let mut none = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set; pthread_sigmask only reads it. The standard library ignores
    // broken pipes, nohup a terminal that hangs up: what is ignored stays so for ever. Two signals cannot
    // be ignored, and refuse; so do those that the C library keeps to itself.
    let error = unsafe {
        for signal in 1..=libc::SIGRTMAX() {
            libc::signal(signal, libc::SIG_DFL);
        }
        libc::sigemptyset(none.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut())
    };
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

/// Leaves the keys of whoever started the agent.
pub(super) fn leave_keyring() {
    const JOIN_SESSION_KEYRING: libc::c_int = 1;
    // SAFETY: a null name asks for a new keyring without one. A kernel without keys has none to leave.
    unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, ptr::null::<libc::c_char>()) };
}

/// Leaves the namespaces named.
pub(crate) fn unshare(flags: UnshareFlags) -> io::Result<()> {
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
    // SAFETY: between fork and exec it makes only calls that are async-signal-safe.
    unsafe { command.pre_exec(open_signals) }
}

/// Makes a command begin a session whose terminal is its standard input.
pub(super) fn with_controlling_terminal(command: &mut Command) -> &mut Command {
    let begin = || {
        rustix::process::setsid()?;
        rustix::process::ioctl_tiocsctty(std::io::stdin())?;
        Ok(())
    };
    // SAFETY: between fork and exec it makes two calls that are async-signal-safe.
    unsafe { command.pre_exec(begin) }
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

/// Restricts a mount, which need not be anywhere yet. What it is restricted to already stays so.
pub(super) fn restrict_mount(
    mount: BorrowedFd<'_>,
    restrictions: Restrictions,
    extent: Extent,
) -> io::Result<()> {
    change_mount(mount, restrictions, Sharing::Unchanged, extent)
}

/// The same, and who sees what is mounted there.
pub(super) fn change_mount(
    mount: BorrowedFd<'_>,
    restrictions: Restrictions,
    sharing: Sharing,
    extent: Extent,
) -> io::Result<()> {
    // The kernel's struct mount_attr: what to set, what to clear, propagation, user namespace.
    let change: [u64; 4] = [restrictions.0, 0, sharing as u64, 0];
    let below = if extent == Extent::All { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the kernel reads the empty path and the structure, which live until the call returns.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | below,
            &raw const change,
            size_of_val(&change),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Lets a program judge all system calls that this thread and what it starts will make.
///
/// Unlike the function of `seccompiler` it leaves alone whether new privileges are forbidden.
pub(crate) fn install_filter(program: BpfProgramRef<'_>) -> io::Result<()> {
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
/// code, 128 plus the signal if one ended it. SIGTERM is passed on as `stop`.
pub(super) fn supervise(child: Pid, stop: i32) -> io::Result<i32> {
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
                let number = if number == libc::SIGTERM { stop } else { number };
                // The child may have ended just now: then there is nobody to tell.
                let _ = kill(child, number);
            }
        }
    }
}

/// Reaps whatever is left to this process, for ever.
pub(super) fn reap_for_ever() -> io::Error {
    loop {
        match next_signal() {
            Ok(libc::SIGCHLD) => while reap().is_some() {},
            Ok(_) => {}
            Err(error) => return error,
        }
    }
}

/// Closes every file that this process has open, but for the three standard ones. Nothing may be left that
/// would close one of them again.
pub(super) fn close_files() -> io::Result<()> {
    // SAFETY: the caller has nothing that owns a descriptor.
    let result = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Ends a process that belongs to somebody else's tree, whoever it is by now.
pub(crate) fn end(pid: i32) {
    let _ = Pid::from_raw(pid).filter(|pid| !pid.is_init()).map(|pid| kill(pid, libc::SIGKILL));
}

/// Makes a command end with the process that starts it.
pub(super) fn with_our_end(command: &mut Command) -> &mut Command {
    let follow = || {
        let signal = Some(rustix::process::Signal::KILL);
        Ok(rustix::process::set_parent_process_death_signal(signal)?)
    };
    // SAFETY: between fork and exec it makes one call that is async-signal-safe.
    unsafe { command.pre_exec(follow) }
}

/// Real-time signals have no names, so there is no safe call that sends them.
fn kill(child: Pid, signal: i32) -> io::Result<()> {
    // SAFETY: the call has no memory to do with.
    let result = unsafe { libc::kill(child.as_raw_nonzero().get(), signal) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Of any process group: a container may be in one of its own.
fn reap() -> Option<(Pid, rustix::process::WaitStatus)> {
    wait(WaitOptions::NOHANG).ok().flatten()
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsFd;

    use roadstead_testkit::netns::laboratory;
    use rustix::fs::CWD;
    use rustix::mount::{OpenTreeFlags, open_tree};

    use super::*;

    #[test]
    fn a_mount_that_is_nowhere_is_restricted() {
        laboratory(|| {
            let name = format!("roadstead-mount-{}", std::process::id());
            let directory = std::env::temp_dir().join(name);
            fs::create_dir_all(&directory).unwrap();
            let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
            let tree = open_tree(CWD, &directory, flags).unwrap();
            let write = || fs::write(format!("/proc/self/fd/{}/file", tree.as_raw_fd()), "x");
            write().unwrap();
            let what = Restrictions::READ_ONLY.and(Restrictions::NO_PROGRAMS);
            restrict_mount(tree.as_fd(), what, Extent::All).unwrap();
            let refusal = write().unwrap_err();
            assert_eq!(refusal.raw_os_error(), Some(libc::EROFS), "{refusal}");
            fs::write(directory.join("file"), "the directory itself is as it was").unwrap();
            fs::remove_dir_all(&directory).unwrap();
        });
    }
}
