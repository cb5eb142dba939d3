"""Writing one value at an address, aligned or not: what `load_u8` and so on (cells.py) are for reading.

Right as long as the address lies in memory that the caller may write, and that outlives the call; nothing
here can tell.

Does not: copy more than one value.
"""

from __future__ import annotations

import ctypes
from typing import Any

from numba import config, types
from numba.extending import intrinsic


def _storer(numba_type: Any, ctype: Any) -> Any:
    """A function that writes one value at an address, aligned or not."""
    if getattr(config, "DISABLE_JIT", 0):

        def put(address: Any, value: Any) -> None:
            ctype.from_address(int(address)).value = int(value)

        return put

    @intrinsic
    def store(typingctx: Any, address: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            place = context.get_data_type(numba_type).as_pointer()
            word = context.cast(builder, args[1], signature.args[1], numba_type)
            builder.store(word, builder.inttoptr(args[0], place), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, value), codegen

    return store


store_u8: Any = _storer(types.uint8, ctypes.c_uint8)
store_u16: Any = _storer(types.uint16, ctypes.c_uint16)
store_u32: Any = _storer(types.uint32, ctypes.c_uint32)
store_u64: Any = _storer(types.uint64, ctypes.c_uint64)
store_i64: Any = _storer(types.int64, ctypes.c_int64)
