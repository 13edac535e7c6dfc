"""Which system calls a program in the sandbox may make, as a filter in the kernel's own form (seccomp).

Linux counts memory and processor time for each process by itself, so the filter keeps the program one process, away
from memory that is counted for no process, and away from the sandbox's own first process.

The numbers are written here and not looked up by libseccomp, which knows no call that is newer than itself and has no
way to refuse all numbers from one on.
"""

from __future__ import annotations

import struct

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_*

# Each call's number on x86-64 and on arm64; None where there is no such call. From 424 on numbers are the same.
REFUSED = {
    # Another process.
    "fork": (57, None),
    "vfork": (58, None),
    # Memory of the kernel's, which no limit of a process counts.
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "vmsplice": (278, 75),
    "io_setup": (206, 0),
    "io_uring_setup": (425, 425),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "landlock_create_ruleset": (444, 444),
    "landlock_add_rule": (445, 445),
    "landlock_restrict_self": (446, 446),
    # A filter of the program's own. The kernel runs each for every call, and thousands of them can lock it up.
    "seccomp": (317, 277),
    # The memory and the files of another process.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    # Privileges, and parts of the kernel in which faults that give them are found.
    "unshare": (272, 97),
    "setns": (308, 268),
    "perf_event_open": (298, 241),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "syslog": (103, 116),
}
CLONE, CLONE3, MMAP, CLOSE_RANGE, PRCTL = (56, 220), (435, 435), (9, 222), (436, 436), (157, 167)
SOCKET, SOCKETPAIR, SETSOCKOPT = (41, 198), (53, 199), (54, 208)
NOT_YET_KNOWN = 463  # from setxattrat on, of Linux 6.13
X32 = 0x40000000  # from here on, x86-64 has the calls once more, with pointers of 32 bits

# A thread as the C library makes it. With a table of open files of its own it could open as many as the process.
THREAD = 0x00010000 | 0x00000400  # CLONE_THREAD, CLONE_FILES
CLOSE_RANGE_UNSHARE = 0x2
PR_SET_SECCOMP, PR_FUTEX_HASH = 22, 78  # a filter; a table for futexes, of as much memory as the program asks for
SHARED_AND_OF_NO_FILE = 0x01 | 0x20  # MAP_SHARED, MAP_ANONYMOUS: memory of the kernel's
# AF_UNIX and AF_NETLINK. AF_VSOCK belongs to no network namespace; those of the internet lead nowhere from here, but
# their buffers share one limit with the host's.
SOCKET_FAMILIES = (1, 16)
SOCKET_BUFFERS = (7, 8)  # SO_SNDBUF, SO_RCVBUF: up to many MiB for each socket where the host allows it

# BPF's instructions, and what a filter returns.
LOAD, AND, EQUAL, AT_LEAST, RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
ALLOW, KILL = 0x7FFF0000, 0x80000000
NO_SUCH_CALL, NOT_PERMITTED, NO_SUCH_FAMILY = (0x00050000 | errno for errno in (38, 1, 97))
Instruction = tuple[int, int, int, int]  # what, how many to skip if it holds, how many if not, operand


def call_filter(machine: str) -> bytes:
    """The filter for a machine of `ARCHITECTURES`."""
    number_at, architecture_at = 0, 4  # in the kernel's struct seccomp_data
    column = list(ARCHITECTURES).index(machine)
    answers = [(numbers, [(RETURN, 0, 0, NOT_PERMITTED)]) for numbers in REFUSED.values()]
    # clone3 keeps its flags where no filter sees them. Without it the C library falls back on clone.
    answers += [(CLONE3, [(RETURN, 0, 0, NO_SUCH_CALL)])]
    answers += [(CLONE, _by_bits(0, THREAD, {THREAD: ALLOW}, NOT_PERMITTED))]
    answers += [(CLOSE_RANGE, _by_bits(2, CLOSE_RANGE_UNSHARE, {0: ALLOW}, NOT_PERMITTED))]
    answers += [(MMAP, _by_bits(3, SHARED_AND_OF_NO_FILE, {SHARED_AND_OF_NO_FILE: NOT_PERMITTED}, ALLOW))]
    options = dict.fromkeys((PR_SET_SECCOMP, PR_FUTEX_HASH), NOT_PERMITTED)
    answers += [(PRCTL, _by_bits(0, 0xFFFFFFFF, options, ALLOW))]
    families = _by_bits(0, 0xFFFFFFFF, dict.fromkeys(SOCKET_FAMILIES, ALLOW), NO_SUCH_FAMILY)
    answers += [(SOCKET, families), (SOCKETPAIR, families)]
    answers += [(SETSOCKOPT, _by_bits(2, 0xFFFFFFFF, dict.fromkeys(SOCKET_BUFFERS, NOT_PERMITTED), ALLOW))]

    program = [(LOAD, 0, 0, architecture_at), (EQUAL, 1, 0, ARCHITECTURES[machine]), (RETURN, 0, 0, KILL)]
    program += [(LOAD, 0, 0, number_at), (AT_LEAST, 0, 1, X32), (RETURN, 0, 0, KILL)]
    program += [(AT_LEAST, 0, 1, NOT_YET_KNOWN), (RETURN, 0, 0, NO_SUCH_CALL)]
    for numbers, answer in answers:
        if (number := numbers[column]) is not None:
            program += [(EQUAL, 0, len(answer), number), *answer]
    program += [(RETURN, 0, 0, ALLOW)]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


def _by_bits(argument: int, bits: int, answers: dict[int, int], otherwise: int) -> list[Instruction]:
    """Answers a call by some bits of the low half of an argument."""
    program = [(LOAD, 0, 0, 16 + 8 * argument), (AND, 0, 0, bits)]
    for value, answer in answers.items():
        program += [(EQUAL, 0, 1, value), (RETURN, 0, 0, answer)]
    return [*program, (RETURN, 0, 0, otherwise)]
