"""Shared memory segments: made by helixd, reserved by the job's worker host, mapped by workers and trainers.

create    posix_ipc with O_CREX, unlinked at once, so that nothing can be left behind; a sealed memfd
          where /dev/shm is too small
reserve   the memory limit read, then every page taken and touched: too little memory is an error here,
          never a SIGBUS or the OOM killer later
map       once per process, not inherited by forked children, never unmapped while a lease is out
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import re
import secrets
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import posix_ipc

from libhelix.errors import OutOfSharedMemory

PAGE = mmap.PAGESIZE
SHM = "/dev/shm"
_NAME = re.compile(r"helix-(\d+)-[0-9a-f]{16}")
_CHUNK = 64 << 20
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14; mmap.MADV_POPULATE_WRITE came with Python 3.14
_LIMIT_SLACK = 64 << 20
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000
_MAP_FAILED = ctypes.c_void_p(-1).value


def whole_pages(nbytes: int) -> int:
    """Rounded up to whole pages."""
    return (nbytes + PAGE - 1) // PAGE * PAGE


def create(nbytes: int, *, memfd: bool = False) -> int:
    """A new segment's descriptor. Nothing is reserved yet, and no name remains."""
    if memfd or _shm_free() < nbytes:
        return _create_memfd(nbytes)
    _sweep()
    name = f"/helix-{os.getpid()}-{secrets.token_hex(8)}"
    try:
        shm = posix_ipc.SharedMemory(name, posix_ipc.O_CREX, size=nbytes, mode=0o600)
    except (posix_ipc.Error, OSError, ValueError):
        return _create_memfd(nbytes)  # no usable /dev/shm at all
    finally:
        # At once, and also where making it failed half-way; the descriptor is all that is needed.
        with contextlib.suppress(posix_ipc.ExistentialError, OSError):
            posix_ipc.unlink_shared_memory(name)
    fd: int = shm.fd
    os.set_inheritable(fd, False)
    return fd


def _sweep() -> None:
    """Remove the names that processes left which were killed between making a segment and unlinking it.

    A name is only needed for that moment, so removing one too many does no harm.
    """
    try:
        names = os.listdir(SHM)
    except OSError:
        return
    for name in names:
        ours = _NAME.fullmatch(name)
        if ours is not None and not os.path.exists(f"/proc/{ours[1]}"):
            with contextlib.suppress(OSError):  # another user's, or gone
                os.unlink(os.path.join(SHM, name))


def _create_memfd(nbytes: int) -> int:
    fd = os.memfd_create("helix-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, nbytes)
    # Nobody it is passed to may resize what others have mapped.
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return fd


def _shm_free() -> int:
    try:
        stat = os.statvfs(SHM)
    except OSError:
        return 0
    return stat.f_bavail * stat.f_frsize


def reserve(fd: int, nbytes: int, ping: Callable[[], None] = lambda: None) -> None:
    """Take and touch every page, in chunks, `ping` between them.

    Raises OutOfSharedMemory with what is missing; the caller drops the segment, and what was taken returns.
    """
    free, whose = _room()
    if free < nbytes + _LIMIT_SLACK:
        raise OutOfSharedMemory(
            f"the ring needs {_mib(nbytes)} MiB and {whose} leaves {_mib(free)} MiB "
            f"({_mib(_LIMIT_SLACK)} MiB of which are kept free); raise the limit, or set a smaller ring=, "
            "batch or max_bytes=",
            limited=True,
        )
    with contextlib.closing(mmap.mmap(fd, nbytes, mmap.MAP_SHARED)) as view:
        for at in range(0, nbytes, _CHUNK):
            size = min(_CHUNK, nbytes - at)
            try:
                os.posix_fallocate(fd, at, size)
            except OSError as e:
                if e.errno not in (errno.ENOSPC, errno.ENOMEM):
                    raise
                raise OutOfSharedMemory(
                    f"the ring needs {_mib(nbytes)} MiB of shared memory, {_mib(at)} MiB were there; "
                    "free memory or enlarge /dev/shm, or set a smaller ring=, batch or max_bytes="
                ) from e
            _touch(view, at, size)
            ping()


def _touch(view: mmap.mmap, at: int, size: int) -> None:
    base = (ctypes.c_char * 1).from_buffer(view)
    address = ctypes.addressof(base) + at
    populated = _libc.madvise(address, size, _POPULATE_WRITE) == 0  # ctypes lets go of the GIL
    del base
    if not populated:
        for page in range(at, at + size, PAGE):
            view[page] = 0


def is_shm(fd: int) -> bool:
    """Whether a segment lies in /dev/shm, where a memfd would not."""
    try:
        return os.fstat(fd).st_dev == os.stat(SHM).st_dev
    except OSError:
        return False


def _mib(nbytes: int) -> int:
    return nbytes >> 20


def attach(fd: int, nbytes: int, *, populate: bool = False) -> memoryview:
    """Map a segment twice in a row, read-write, so that a range may run on from its end to its beginning.

    The view is 2 * nbytes long; byte i and byte nbytes + i are the same. It is unmapped when the view and all
    slices of it are gone, and not inherited by forked children. `populate` fills the page tables now, which
    saves a fault at every page's first use. Closes `fd`. Raises OutOfSharedMemory where
    the segment is smaller than said (touching it would be a SIGBUS) or no address space is left.
    """
    try:
        found = os.fstat(fd).st_size
        if found < nbytes:
            raise OutOfSharedMemory(f"a segment of {found} bytes was passed as one of {nbytes}")
        base = _map_twice(fd, nbytes)
    finally:
        os.close(fd)
    _libc.madvise(base, 2 * nbytes, mmap.MADV_DONTFORK)
    if populate:
        # Of the repetition only what runs on from the end is used. Before Linux 5.14 faults come one by one.
        _libc.madvise(base, nbytes, _POPULATE_WRITE)
    both = (ctypes.c_ubyte * (2 * nbytes)).from_address(base)
    unmap = weakref.finalize(both, _unmap, os.getpid(), base, 2 * nbytes)
    unmap.atexit = False
    return memoryview(both).cast("B")


def give_back(view: memoryview, ranges: Iterable[tuple[int, int]]) -> None:
    """Return the memory of ranges (offset, bytes) of whole pages to the system; they read as zeros then."""
    base = ctypes.addressof(ctypes.c_ubyte.from_buffer(view))
    for offset, nbytes in ranges:
        _libc.madvise(base + offset, nbytes, mmap.MADV_REMOVE)  # where it cannot be, it is only kept longer


def _unmap(pid: int, base: int, nbytes: int) -> None:
    if os.getpid() == pid:  # a forked child has other memory there
        _libc.munmap(base, nbytes)


def _map_twice(fd: int, nbytes: int) -> int:
    nowhere = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    base = _libc.mmap(None, 2 * nbytes, 0, nowhere, -1, 0)
    if base == _MAP_FAILED:
        raise OutOfSharedMemory(f"no {2 * nbytes} bytes of address space for a ring: {_errno()}")
    for at in (base, base + nbytes):
        access = mmap.PROT_READ | mmap.PROT_WRITE
        if _libc.mmap(at, nbytes, access, mmap.MAP_SHARED | _MAP_FIXED, fd, 0) != at:
            cause = _errno()
            _libc.munmap(base, 2 * nbytes)
            raise OutOfSharedMemory(f"a ring of {nbytes} bytes cannot be mapped: {cause}")
    return int(base)


def _errno() -> str:
    return os.strerror(ctypes.get_errno())


def memory_headroom() -> int | None:
    """Bytes that the memory cgroups above this process still allow; None where nothing limits them."""
    rooms = [limit - used for limit, used in _limits()]
    return max(0, min(rooms)) if rooms else None


def _room() -> tuple[int, str]:
    """Bytes that may still be taken here, and what bounds them."""
    limited, available = memory_headroom(), _available()
    if limited is not None and limited < available:
        return limited, "the memory limit of this cgroup"
    return available, "the memory of this machine"


def _available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) << 10
    return 1 << 62


def _limits() -> Iterator[tuple[int, int]]:
    for directory, limit_name, used_name in _memory_cgroups():
        try:
            limit = (directory / limit_name).read_text().strip()
            used = int((directory / used_name).read_text())
            cache = _reclaimable(directory)
        except (OSError, ValueError):
            continue
        if limit != "max" and int(limit) < 1 << 60:
            yield int(limit), max(0, used - cache)


def _reclaimable(directory: Path) -> int:
    # File pages in the inactive list go first when memory is short: they are not in the way.
    for line in (directory / "memory.stat").read_text().splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0


def _memory_cgroups() -> Iterator[tuple[Path, str, str]]:
    """This process's memory cgroup and its parents, version 2 and version 1."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            roots: tuple[Path, ...] = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
            names = ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            roots = (Path("/sys/fs/cgroup/memory"),)
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        for root in roots:
            directory = root / path.lstrip("/")
            # Inside a container the path may be the host's; then the mount point itself is our cgroup.
            for candidate in (directory, *directory.parents):
                if root == candidate or root in candidate.parents:
                    yield candidate, *names
