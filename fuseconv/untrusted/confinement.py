"""Sandboxes a process that runs untrusted programs: no file writes, child processes or network, and limited memory.

Resource limits apply on every Unix. On Linux (x86-64 and ARM64), a seccomp filter rejects system calls that open files
for writing, create, rename or remove files, create sockets or processes, or access other processes. Files that are
already open remain open, and other files can still be opened for reading, because Python imports modules lazily.

Sources: Linux's Documentation/userspace-api/seccomp_filter.rst, include/uapi/linux/{seccomp,filter,audit}.h.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import struct
import sys
from pathlib import Path

MEMORY = 4 << 30
"""The address space in bytes that a sandboxed process may use in addition to its size when it enters the sandbox."""

_STATM = Path("/proc/self/statm")

_FORBIDDEN = """
creat:85:- openat2:437:437 truncate:76:45 ftruncate:77:46 fallocate:285:47 rename:82:- renameat:264:38
renameat2:316:276 mkdir:83:- mkdirat:258:34 rmdir:84:- unlink:87:- unlinkat:263:35 link:86:- linkat:265:37
symlink:88:- symlinkat:266:36 mknod:133:- mknodat:259:33 chmod:90:- fchmod:91:52 fchmodat:268:53 fchmodat2:452:452
chown:92:- fchown:93:55 lchown:94:- fchownat:260:54 utime:132:- utimes:235:- utimensat:280:88 futimesat:261:-
setxattr:188:5 lsetxattr:189:6 fsetxattr:190:7 removexattr:197:14 lremovexattr:198:15 fremovexattr:199:16
memfd_create:319:279 shmget:29:194 shmat:30:196 io_uring_setup:425:425 io_uring_enter:426:426
io_uring_register:427:427 open_by_handle_at:304:265 socket:41:198 socketpair:53:199 connect:42:203 bind:49:200
listen:50:201 accept:43:202 accept4:288:242 sendto:44:206 sendmsg:46:211 sendmmsg:307:269 fork:57:- vfork:58:-
execve:59:221 execveat:322:281 kill:62:129 tkill:200:130 rt_sigqueueinfo:129:138 rt_tgsigqueueinfo:297:240
ptrace:101:117 pidfd_open:434:434 pidfd_getfd:438:438 pidfd_send_signal:424:424 process_vm_readv:310:270
process_vm_writev:311:271 userfaultfd:323:282 bpf:321:280 perf_event_open:298:241 mount:165:40 umount2:166:39
chroot:161:51 pivot_root:155:41 unshare:272:97 setns:308:268 init_module:175:105 finit_module:313:273
delete_module:176:106 reboot:169:142 swapon:167:224 add_key:248:217 request_key:249:218 keyctl:250:219
seccomp:317:277
"""
"""The rejected system calls: the name, the number on x86-64, and the number on ARM64, or `-` if there is none."""

_OPEN = {"open": ((2, None), 1), "openat": ((257, 56), 2)}
"""The system calls that open files. Each maps to its numbers on x86-64 and ARM64, and to the index of its flags
argument."""

_CLONE, _CLONE3 = (56, 220), (435, 435)
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_SECCOMP = (317, 277)
_X32 = 0x40000000
"""The bit that marks a system call number of the x32 ABI. Such numbers are rejected, because they are not in the table
of rejected system calls."""

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CLONE_THREAD = 0x00010000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOWED, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_SET_FILTER, _ALL_THREADS = 1, 1
_NO_NEW_PRIVILEGES = 38


def confine() -> None:
    """Sandboxes this process and all its threads. The sandbox cannot be left.

    Before this call, load the modules that the process uses.

    Raises:
        OSError: the system rejects the system call filter.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    if _STATM.exists():
        size = int(_STATM.read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        allowed = _within(size + MEMORY, resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (allowed, allowed))
    if sys.platform == "linux" and platform.machine() in _ARCHITECTURES:
        _filter_calls(*_ARCHITECTURES[platform.machine()])


def allow_seconds(seconds: int) -> None:
    """Limits this process to about `seconds` more seconds of CPU time, after which SIGXCPU ends the process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = _within(int(used.ru_utime + used.ru_stime) + 1 + seconds, resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _within(wanted: int, which: int) -> int:
    """Returns a resource limit: `wanted`, or the current hard limit of the resource `which` if this limit is lower."""
    hard = resource.getrlimit(which)[1]
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)


class _Program(ctypes.Structure):
    """The C struct `sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def _filter_calls(column: int, architecture: int) -> None:
    """Installs the system call filter for all threads.

    Args:
        column: the index of the machine's system call numbers in the tables: 0 for x86-64, 1 for ARM64.
        architecture: the machine's AUDIT_ARCH value.
    """
    code = _program(column, architecture)
    libc = ctypes.CDLL(None, use_errno=True)
    program = _Program(len(code) // 8, code)
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.syscall(
        _SECCOMP[column], _SET_FILTER, _ALL_THREADS, ctypes.byref(program)
    ):
        number = ctypes.get_errno()
        raise OSError(number, f"the system call filter cannot be installed: {os.strerror(number)}")


def _program(column: int, architecture: int) -> bytes:
    """Returns the BPF program of the filter. Each check falls through to its rejection, or jumps to the next check.

    The arguments are the arguments of `_filter_calls`.
    """
    refuse, lacking = (_RETURN, 0, 0, _ERRNO | 1), (_RETURN, 0, 0, _ERRNO | 38)  # EPERM, ENOSYS
    lines = [(_LOAD, 0, 0, _ARCHITECTURE_AT), (_EQUAL, 1, 0, architecture), refuse]
    lines += [(_LOAD, 0, 0, _NUMBER_AT), (_AT_LEAST, 0, 1, _X32), refuse]
    numbers = (call.split(":")[1 + column] for call in _FORBIDDEN.split())
    lines += [line for number in numbers if number != "-" for line in ((_EQUAL, 0, 1, int(number)), refuse)]
    # glibc first calls clone3, whose flags a filter cannot read. If clone3 returns ENOSYS, glibc falls back to clone.
    lines += [(_EQUAL, 0, 1, _CLONE3[column]), lacking]
    allow = (_RETURN, 0, 0, _ALLOWED)
    lines += [(_EQUAL, 0, 4, _CLONE[column]), (_LOAD, 0, 0, _ARGUMENTS_AT)]
    lines += [(_ANY_BIT, 1, 0, _CLONE_THREAD), refuse, allow]
    for opening, at in _OPEN.values():
        if (number := opening[column]) is not None:
            lines += [(_EQUAL, 0, 4, number), (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * at)]
            lines += [(_ANY_BIT, 0, 1, _WRITING), refuse, allow]
    return b"".join(struct.pack("HBBI", *line) for line in (*lines, allow))
