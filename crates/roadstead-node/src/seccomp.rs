//! The system calls that a container may make, after the OCI's default profile: pure.
//!
//! Everything else is answered with EPERM, and what is newer than this list with ENOSYS, so that
//! programs fall back to what they know to be older. What is missing here is what reaches beyond a
//! container: namespaces, mounts, keys, modules, clocks, eBPF, tracing of the machine, io_uring.

use std::collections::BTreeMap;

use libc::*;
use roadstead_pod::capabilities::Capabilities;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule,
};

use serde_json::{Value, json};

/// All flags of clone that make namespaces.
const NAMESPACES: u64 = 0x7e02_0000;
/// Sockets to the hypervisor, which no network policy sees.
const VSOCK: u64 = 40;
/// The personalities that are no way around address randomisation.
const PERSONALITIES: [u64; 5] = [0, 8, 0x2_0000, 0x2_0008, 0xffff_ffff];

/// The first number that this list does not know.
const UNKNOWN: i64 = 467;
/// How many after it are taken for system calls that may come to be.
const TO_COME: i64 = 64;

/// A system call by the name that `libc` has for it, and by its number.
type Call = (&'static str, i64);

macro_rules! calls {
    ($($name:ident),* $(,)?) => { &[$((stringify!($name), $name)),*] };
}

mod calls;
pub(crate) mod localhost;

/// They have the same numbers on all machines, and no names in `libc`.
const RECENT: [Call; 12] = [
    ("SYS_cachestat", 451),
    ("SYS_fchmodat2", 452),
    ("SYS_map_shadow_stack", 453),
    ("SYS_futex_wake", 454),
    ("SYS_futex_wait", 455),
    ("SYS_futex_requeue", 456),
    ("SYS_statmount", 457),
    ("SYS_listmount", 458),
    ("SYS_setxattrat", 463),
    ("SYS_getxattrat", 464),
    ("SYS_listxattrat", 465),
    ("SYS_removexattrat", 466),
];

#[rustfmt::skip]
const ALLOWED: &[Call] = calls![
    SYS_accept, SYS_accept4, SYS_adjtimex, SYS_bind, SYS_brk, SYS_capget, SYS_capset, SYS_chdir,
    SYS_chroot, SYS_clock_adjtime, SYS_clock_getres, SYS_clock_gettime, SYS_clock_nanosleep,
    SYS_close, SYS_close_range, SYS_connect, SYS_copy_file_range, SYS_dup, SYS_dup3,
    SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_pwait, SYS_epoll_pwait2, SYS_eventfd2, SYS_execve,
    SYS_execveat, SYS_exit, SYS_exit_group, SYS_faccessat, SYS_faccessat2, SYS_fadvise64,
    SYS_fallocate, SYS_fanotify_mark, SYS_fchdir, SYS_fchmod, SYS_fchmodat, SYS_fchown,
    SYS_fchownat, SYS_fcntl, SYS_fdatasync, SYS_fgetxattr, SYS_flistxattr, SYS_flock,
    SYS_fremovexattr, SYS_fsetxattr, SYS_fstat, SYS_fstatfs, SYS_fsync, SYS_ftruncate, SYS_futex,
    SYS_futex_waitv, SYS_get_robust_list, SYS_getcpu, SYS_getcwd, SYS_getdents64, SYS_getegid,
    SYS_geteuid, SYS_getgid, SYS_getgroups, SYS_getitimer, SYS_getpeername, SYS_getpgid,
    SYS_getpid, SYS_getppid, SYS_getpriority, SYS_getrandom, SYS_getresgid, SYS_getresuid,
    SYS_getrusage, SYS_getsid, SYS_getsockname, SYS_getsockopt, SYS_gettid, SYS_gettimeofday,
    SYS_getuid, SYS_getxattr, SYS_inotify_add_watch, SYS_inotify_init1, SYS_inotify_rm_watch,
    SYS_io_cancel, SYS_io_destroy, SYS_io_getevents, SYS_io_setup, SYS_io_submit, SYS_ioctl,
    SYS_ioprio_get, SYS_ioprio_set, SYS_kill, SYS_landlock_add_rule, SYS_landlock_create_ruleset,
    SYS_landlock_restrict_self, SYS_lgetxattr, SYS_linkat, SYS_listen, SYS_listxattr,
    SYS_llistxattr, SYS_lremovexattr, SYS_lseek, SYS_lsetxattr, SYS_madvise, SYS_membarrier,
    SYS_memfd_create, SYS_memfd_secret, SYS_mincore, SYS_mkdirat, SYS_mknodat, SYS_mlock,
    SYS_mlock2, SYS_mlockall, SYS_mmap, SYS_mprotect, SYS_mq_getsetattr, SYS_mq_notify,
    SYS_mq_open, SYS_mq_timedreceive, SYS_mq_timedsend, SYS_mq_unlink, SYS_mremap, SYS_mseal,
    SYS_msgctl, SYS_msgget, SYS_msgrcv, SYS_msgsnd, SYS_msync, SYS_munlock, SYS_munlockall,
    SYS_munmap, SYS_name_to_handle_at, SYS_nanosleep, SYS_newfstatat, SYS_openat, SYS_openat2,
    SYS_pidfd_open, SYS_pidfd_send_signal, SYS_pipe2, SYS_pkey_alloc, SYS_pkey_free,
    SYS_pkey_mprotect, SYS_ppoll, SYS_prctl, SYS_pread64, SYS_preadv, SYS_preadv2, SYS_prlimit64,
    SYS_process_mrelease, SYS_process_vm_readv, SYS_process_vm_writev, SYS_pselect6, SYS_ptrace,
    SYS_pwrite64, SYS_pwritev, SYS_pwritev2, SYS_read, SYS_readahead, SYS_readlinkat, SYS_readv,
    SYS_recvfrom, SYS_recvmmsg, SYS_recvmsg, SYS_remap_file_pages, SYS_removexattr, SYS_renameat2,
    SYS_restart_syscall, SYS_rseq, SYS_rt_sigaction, SYS_rt_sigpending, SYS_rt_sigprocmask,
    SYS_rt_sigqueueinfo, SYS_rt_sigreturn, SYS_rt_sigsuspend, SYS_rt_sigtimedwait,
    SYS_rt_tgsigqueueinfo, SYS_sched_get_priority_max, SYS_sched_get_priority_min,
    SYS_sched_getaffinity, SYS_sched_getattr, SYS_sched_getparam, SYS_sched_getscheduler,
    SYS_sched_rr_get_interval, SYS_sched_setaffinity, SYS_sched_setattr, SYS_sched_setparam,
    SYS_sched_setscheduler, SYS_sched_yield, SYS_seccomp, SYS_semctl, SYS_semget, SYS_semop,
    SYS_semtimedop, SYS_sendfile, SYS_sendmmsg, SYS_sendmsg, SYS_sendto, SYS_set_robust_list,
    SYS_set_tid_address, SYS_setfsgid, SYS_setfsuid, SYS_setgid, SYS_setgroups, SYS_setitimer,
    SYS_setpgid, SYS_setpriority, SYS_setregid, SYS_setresgid, SYS_setresuid, SYS_setreuid,
    SYS_setsid, SYS_setsockopt, SYS_setuid, SYS_setxattr, SYS_shmat, SYS_shmctl, SYS_shmdt,
    SYS_shmget, SYS_shutdown, SYS_sigaltstack, SYS_signalfd4, SYS_socketpair, SYS_splice,
    SYS_statfs, SYS_statx, SYS_symlinkat, SYS_sync, SYS_syncfs, SYS_sysinfo, SYS_tee, SYS_tgkill,
    SYS_timer_create, SYS_timer_delete, SYS_timer_getoverrun, SYS_timer_gettime,
    SYS_timer_settime, SYS_timerfd_create, SYS_timerfd_gettime, SYS_timerfd_settime, SYS_times,
    SYS_tkill, SYS_truncate, SYS_umask, SYS_uname, SYS_unlinkat, SYS_utimensat, SYS_vmsplice,
    SYS_wait4, SYS_waitid, SYS_write, SYS_writev,
];

#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const OF_THIS_MACHINE: &[Call] = calls![
    SYS_access, SYS_alarm, SYS_arch_prctl, SYS_chmod, SYS_chown, SYS_creat, SYS_dup2,
    SYS_epoll_create, SYS_epoll_ctl_old, SYS_epoll_wait, SYS_epoll_wait_old, SYS_eventfd,
    SYS_fork, SYS_futimesat, SYS_get_thread_area, SYS_getdents, SYS_getpgrp, SYS_getrlimit,
    SYS_inotify_init, SYS_lchown, SYS_link, SYS_lstat, SYS_mkdir, SYS_mknod, SYS_modify_ldt,
    SYS_open, SYS_pause, SYS_pipe, SYS_poll, SYS_readlink, SYS_rename, SYS_renameat, SYS_rmdir,
    SYS_select, SYS_set_thread_area, SYS_setrlimit, SYS_signalfd, SYS_stat, SYS_symlink,
    SYS_sync_file_range, SYS_time, SYS_unlink, SYS_utime, SYS_utimes, SYS_vfork,
];
/// Those that `libc` has no names for.
#[cfg(target_arch = "x86_64")]
const NAMELESS: [Call; 2] = [("SYS_io_pgetevents", 333), ("SYS_uretprobe", 335)];
#[cfg(not(target_arch = "x86_64"))]
const OF_THIS_MACHINE: &[Call] = &[];
#[cfg(not(target_arch = "x86_64"))]
const NAMELESS: [Call; 5] = [
    ("SYS_renameat", 38),
    ("SYS_sync_file_range", 84),
    ("SYS_getrlimit", 163),
    ("SYS_setrlimit", 164),
    ("SYS_io_pgetevents", 292),
];

/// What else comes with a capability that is not usual.
#[rustfmt::skip]
const WITH_CAPABILITY: [(&str, &[Call]); 10] = [
    ("SYS_ADMIN", calls![
        SYS_bpf, SYS_clone, SYS_fanotify_init, SYS_fsconfig, SYS_fsmount, SYS_fsopen, SYS_fspick,
        SYS_mount, SYS_mount_setattr, SYS_move_mount, SYS_open_tree, SYS_perf_event_open,
        SYS_quotactl, SYS_setdomainname, SYS_sethostname, SYS_setns, SYS_syslog, SYS_umount2,
        SYS_unshare,
    ]),
    ("DAC_READ_SEARCH", calls![SYS_open_by_handle_at]),
    ("SYS_BOOT", calls![SYS_reboot]),
    ("SYS_MODULE", calls![SYS_delete_module, SYS_init_module, SYS_finit_module]),
    ("SYS_PACCT", calls![SYS_acct]),
    ("SYS_PTRACE", calls![SYS_kcmp, SYS_pidfd_getfd, SYS_process_madvise]),
    ("SYS_TIME", calls![SYS_settimeofday, SYS_clock_settime]),
    ("SYS_NICE", calls![SYS_get_mempolicy, SYS_mbind, SYS_set_mempolicy]),
    ("BPF", calls![SYS_bpf]),
    ("PERFMON", calls![SYS_perf_event_open]),
];

/// Returns the programs to install, in this order, for a container with these capabilities.
pub(crate) fn filters(capabilities: Capabilities) -> Result<[BpfProgram; 2], BackendError> {
    let machine = std::env::consts::ARCH.try_into()?;
    let allowed = SeccompFilter::new(
        rules(capabilities)?,
        SeccompAction::Errno(EPERM.cast_unsigned()),
        SeccompAction::Allow,
        machine,
    )?;
    // The kernel asks the program installed last first, and of two errors takes the first.
    let unknown = SeccompFilter::new(
        (UNKNOWN..UNKNOWN + TO_COME).chain([SYS_clone3]).map(|number| (number, vec![])).collect(),
        SeccompAction::Allow,
        SeccompAction::Errno(ENOSYS.cast_unsigned()),
        machine,
    )?;
    Ok([allowed.try_into()?, unknown.try_into()?])
}

/// For each call that is allowed the conditions, of which one has to hold; none is always.
fn rules(capabilities: Capabilities) -> Result<BTreeMap<i64, Vec<SeccompRule>>, BackendError> {
    let mut rules = BTreeMap::from([
        (SYS_clone, vec![when(CLONE_FLAGS, SeccompCmpOp::MaskedEq(NAMESPACES), 0)?]),
        (SYS_socket, vec![when(0, SeccompCmpOp::Ne, VSOCK)?]),
        (
            SYS_personality,
            PERSONALITIES
                .map(|value| when(0, SeccompCmpOp::Eq, value))
                .into_iter()
                .collect::<Result<_, _>>()?,
        ),
    ]);
    rules.extend(always(capabilities).map(|(_, number)| (number, vec![])));
    Ok(rules)
}

/// The calls that are allowed whatever their arguments are.
fn always(capabilities: Capabilities) -> impl Iterator<Item = Call> {
    let with_capability = WITH_CAPABILITY.iter().filter(move |(name, _)| {
        Capabilities::one(name).is_some_and(|one| capabilities.contains(one))
    });
    let all = ALLOWED.iter().chain(OF_THIS_MACHINE).chain(&NAMELESS).chain(&RECENT);
    all.chain(with_capability.flat_map(|(_, more)| more.iter())).copied()
}

/// Returns the same list in the words of the OCI, for a runtime of others to compile.
pub(crate) fn profile(capabilities: Capabilities) -> Value {
    let names: Vec<_> =
        always(capabilities).map(|(name, _)| name.trim_start_matches("SYS_")).collect();
    let when = |call: &str, is: &str, value: u64| {
        let argument = json!({"index": 0, "value": value, "valueTwo": 0, "op": is});
        json!({"names": [call], "action": "SCMP_ACT_ALLOW", "args": [argument]})
    };
    let mut calls = vec![
        json!({"names": names, "action": "SCMP_ACT_ALLOW"}),
        // Programs then use clone, whose flags can be looked at.
        json!({"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS}),
        when("socket", "SCMP_CMP_NE", VSOCK),
    ];
    if !names.contains(&"clone") {
        calls.push(when("clone", "SCMP_CMP_MASKED_EQ", NAMESPACES));
    }
    calls.extend(PERSONALITIES.map(|value| when("personality", "SCMP_CMP_EQ", value)));
    json!({"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": EPERM, "syscalls": calls})
}

/// Which argument of clone has its flags: the first on the machines that we know.
const CLONE_FLAGS: u8 = 0;

fn when(argument: u8, is: SeccompCmpOp, value: u64) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(vec![SeccompCondition::new(argument, SeccompCmpArgLen::Dword, is, value)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_allowed() {
        let usual = rules(Capabilities::usual()).unwrap();
        for (name, number) in [
            ("bpf", SYS_bpf),
            ("mount", SYS_mount),
            ("umount2", SYS_umount2),
            ("unshare", SYS_unshare),
            ("setns", SYS_setns),
            ("keyctl", SYS_keyctl),
            ("add_key", SYS_add_key),
            ("perf_event_open", SYS_perf_event_open),
            ("io_uring_setup", SYS_io_uring_setup),
            ("init_module", SYS_init_module),
            ("kexec_load", SYS_kexec_load),
            ("open_by_handle_at", SYS_open_by_handle_at),
            ("userfaultfd", SYS_userfaultfd),
            ("clone3", SYS_clone3),
            ("reboot", SYS_reboot),
            ("pivot_root", SYS_pivot_root),
        ] {
            assert!(!usual.contains_key(&number), "{name}");
        }
        for number in [SYS_execve, SYS_openat, SYS_capset, SYS_seccomp, SYS_chroot, SYS_prctl] {
            assert!(usual[&number].is_empty(), "{number}");
        }
        for number in [SYS_clone, SYS_socket, SYS_personality] {
            assert!(!usual[&number].is_empty(), "{number}");
        }
        let root = rules(Capabilities::all()).unwrap();
        assert!(root[&SYS_mount].is_empty() && root[&SYS_clone].is_empty());
    }

    #[test]
    fn filters_fit_into_the_kernel() {
        for program in filters(Capabilities::all()).unwrap() {
            assert!(program.len() < 4096, "{}", program.len());
        }
    }
}
