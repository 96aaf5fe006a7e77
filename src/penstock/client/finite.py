"""Floats that JSON cannot say, NaN and the infinities, are refused where they are said.

The encoder writes null for them, and whoever reads that is told nothing of what was lost: a handler
that wants a number refuses it far away from its cause, one that takes None too goes on with that.
"""

import re
from math import isfinite
from typing import Any, Final

import msgspec

NULL: Final = b"null"
# MessagePack says every float, and these by an exponent of ones.
_pack: Final = msgspec.msgpack.Encoder(enc_hook=lambda _: None).encode
_in_packed: Final = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]", re.DOTALL).search


def check_finite(value: Any, said: bytes | bytearray, begin: int = 0) -> None:
    """`said`: from there on, the JSON of the value, or of each of its items. Raises ValueError.

    Looked for only where there is a null, or what looks like one. Of many jobs with a None each,
    to pack them again costs a quarter of what their JSON did, and to look at each five times that.
    """
    if said.find(NULL, begin) >= 0 and _may_have_some(value):
        # What has no form but its JSON (`Raw`) was JSON before.
        _check(msgspec.to_builtins(value, enc_hook=lambda _: None))


def _may_have_some(value: Any) -> bool:
    try:
        return _in_packed(_pack(value)) is not None
    except (OverflowError, msgspec.MsgspecError):  # integers of more than 64 bits
        return True


def _check(plain: Any) -> None:
    if isinstance(plain, float):
        if not isfinite(plain):
            raise ValueError(f"JSON has no {plain}")
    elif isinstance(plain, dict):
        for each in plain.values():
            _check(each)
    elif isinstance(plain, list | tuple):
        for each in plain:
            _check(each)
