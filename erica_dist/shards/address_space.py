"""Many files as one array of bytes: each is mapped at its own place of one reserved range of addresses.

In: the sizes of the files, then each file when it is first needed. Out: `bytes`, a read-only uint8 array in which byte
b of file f is at `starts[f] + b`. So documents of any number of shards are gathered by one vectorised expression,
without a loop over shards. Reserving costs no memory, and a mapping keeps no file descriptor.

A file that is shorter than its place is mapped as far as it goes; what lies behind must not be touched (`available`).
Byte 0 belongs to no file: one page of zeros that can always be read.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from typing import BinaryIO

import numpy as np

from erica_dist.errors import UserError

_PROT_NONE, _PROT_READ = 0, 1
_MAP_SHARED, _MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS, _MAP_NORESERVE = 0x01, 0x02, 0x10, 0x20, 0x4000
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class AddressSpace:
    """Read-only addresses for files of the given sizes in bytes; nothing is mapped until `place` is called.

    Raises:
        UserError: the addresses cannot be reserved.
    """

    def __init__(self, sizes: np.ndarray):
        page = mmap.PAGESIZE
        spans = -(-np.asarray(sizes, np.int64) // page) * page
        ends = page + np.cumsum(spans, dtype=np.int64)
        self._spans = spans
        self.starts: np.ndarray = ends - spans  # int64 [files]
        self.available: np.ndarray = np.zeros(
            len(spans), np.int64
        )  # int64 [files], bytes that may be read; 0: unmapped
        total = int(ends[-1]) if len(ends) else page
        flags = _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE
        address = _libc.mmap(None, total, _PROT_NONE, flags, -1, 0)
        if address == _FAILED:
            reason = os.strerror(ctypes.get_errno())
            raise UserError(
                f"cannot reserve {total / 1e9:.1f} GB of addresses for the shards ({reason}): "
                "lift the limit of virtual memory (ulimit -v)"
            )
        self._address: int = address
        if _libc.mmap(address, page, _PROT_READ, flags | _MAP_FIXED, -1, 0) == _FAILED:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self.bytes: np.ndarray = np.ctypeslib.as_array((ctypes.c_ubyte * total).from_address(address))
        self.bytes.flags.writeable = False
        self._finalizer = weakref.finalize(self, _libc.munmap, address, total)

    def place(self, number: int, file: BinaryIO) -> None:
        """Map an open file as file `number`, as far as its place goes; it may be closed afterwards.

        Raises:
            OSError: it cannot be mapped.
        """
        size = min(os.fstat(file.fileno()).st_size, int(self._spans[number]))
        if size:
            where = self._address + int(self.starts[number])
            if _libc.mmap(where, size, _PROT_READ, _MAP_SHARED | _MAP_FIXED, file.fileno(), 0) == _FAILED:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self.available[number] = size

    def forget(self, number: int) -> None:
        """Take the mapping of file `number` back; its place stays reserved."""
        where, span = self._address + int(self.starts[number]), int(self._spans[number])
        flags = _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE | _MAP_FIXED
        if span and _libc.mmap(where, span, _PROT_NONE, flags, -1, 0) == _FAILED:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self.available[number] = 0
