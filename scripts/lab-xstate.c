// Lets user-mode-linux run where the processor has more state than it knows.
//
// It keeps an area of fixed size for the registers of its processes. Newer kernels take such an area
// back only whole, and on a processor with AMX the whole is larger: user-mode-linux then stops before
// its first process. Preloaded, this gives the kernel the whole area, with what user-mode-linux gave
// in front and the rest as untouched state. Where the sizes agree it changes nothing.
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    WHOLE = 64 * 1024,
    // Where the bits of the state components are, and those that lie within the old area.
    COMPONENTS = 512,
    KNOWN = 0x2ff,
};

static long system_call(long request, long process, void *address, void *data) {
    return syscall(SYS_ptrace, request, process, address, data);
}

static long set_registers(long process, struct iovec *given) {
    static char area[WHOLE] __attribute__((aligned(64)));
    struct iovec whole = {area, sizeof area};
    void *kind = (void *)(uintptr_t)NT_X86_XSTATE;
    if (system_call(PTRACE_GETREGSET, process, kind, &whole) != 0 || whole.iov_len <= given->iov_len)
        return system_call(PTRACE_SETREGSET, process, kind, given);
    memset(area, 0, whole.iov_len);
    memcpy(area, given->iov_base, given->iov_len);
    uint64_t components;
    memcpy(&components, area + COMPONENTS, sizeof components);
    components &= KNOWN;
    memcpy(area + COMPONENTS, &components, sizeof components);
    return system_call(PTRACE_SETREGSET, process, kind, &whole);
}

long ptrace(enum __ptrace_request request, ...) {
    va_list rest;
    va_start(rest, request);
    long process = va_arg(rest, int);
    void *address = va_arg(rest, void *);
    void *data = va_arg(rest, void *);
    va_end(rest);
    if (request == PTRACE_SETREGSET && address == (void *)(uintptr_t)NT_X86_XSTATE)
        return set_registers(process, data);
    if (request != PTRACE_PEEKTEXT && request != PTRACE_PEEKDATA && request != PTRACE_PEEKUSER)
        return system_call(request, process, address, data);
    // The C library returns the word that the kernel writes.
    long word = 0;
    if (system_call(request, process, address, &word) < 0)
        return -1;
    errno = 0;
    return word;
}
