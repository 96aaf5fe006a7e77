"""Conversations that a server understands, and a seeded hand that spoils them.

A request is spoilt as a value (a field is gone, or has something else in it), and what is sent is
spoilt as bytes (flipped, cut, doubled, with a length that lies).
"""

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from msgspec import Raw

from penstock.protocol.command import Encoding
from penstock.protocol.short import push_frame
from penstock.protocol.table import name_of
from penstock.server.tcp import COMMANDS
from tests.server.hostile.wire import Said, framed, message

NAMES: Final = sorted(name_of(command) for command in COMMANDS)
FIELDS: Final = {
    name_of(command): [each for each in command.__struct_encode_fields__ if each != "reqId"]
    for command in COMMANDS
}
DEEP: Final = 2_000  # deeper than anything that nests in earnest

_JSON: Final = (
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"1e999",
    b"-0",
    b"1.5",
    b"-1",
    b"18446744073709551616",
    b"9" * 400,
    b"9" * 5_000,
    b"9007199254740993",
    b'"\\ud800"',
    b'"\\udfff\\ud800"',
    b'"\\u0000"',
    b'"\xff\xfe"',
    b'"\xed\xa0\x80"',
    b'"a\x00b"',
    b'"' + b"x" * 5_000 + b'"',
    b'{"a":1,"a":2}',
    b"[" * DEEP + b"]" * DEEP,
    b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    b"[[[]]]",
    b"nul",
    b"",
    b"{",
)
_MSGPACK: Final = (
    b"\xcb\x7f\xf8\0\0\0\0\0\0",  # NaN
    b"\xcb\xff\xf0\0\0\0\0\0\0",  # -Infinity
    b"\xca\x7f\x80\0\0",
    b"\xcf" + b"\xff" * 8,  # 2**64 - 1
    b"\xd3\x80" + b"\0" * 7,  # -2**63
    b"\xff",
    b"\xc4\x02\xff\xfe",  # bytes
    b"\xa2\xff\xfe",  # no UTF-8
    b"\xa3\xed\xa0\x80",  # a surrogate
    b"\xa3a\0b",
    b"\xda\x13\x88" + b"x" * 5_000,
    b"\x82\xa1a\x01\xa1a\x02",  # one key twice
    b"\x81\x01\x02",  # a key that is no text
    b"\x91" * DEEP + b"\xc0",
    b"\x81\xa1a" * DEEP + b"\xc0",
    b"\xdd\xff\xff\xff\xff",  # more than there is
    b"\xdf\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xd6\xff\0\0\0\1",  # an instant
    b"\xc7\x01\x05a",  # something of an unknown kind
    b"\xc1",  # never used
    b"",
)
_JUNK: Final[dict[Encoding, tuple[bytes, ...]]] = {"json": _JSON, "msgpack": _MSGPACK}
_PLAIN: Final[tuple[Any, ...]] = (
    None,
    True,
    0,
    1,
    -1,
    2**31,
    2**53,
    2**63,
    1.0,
    "",
    "q",
    "\0",
    "a" * 300,
    [],
    {},
)
_LENGTHS: Final = (0, 1, 3, 255, 65_536, 16 << 20, (16 << 20) + 1, 2**31, 2**32 - 1)


class Scene:
    """What a conversation may be about, as the store knows it by now."""

    def __init__(
        self, random: Random, ids: Sequence[int], leases: Sequence[str], sequence: int = 0
    ) -> None:
        self.random = random
        self._sequence = sequence
        self._ids = ids or (1,)
        self._leases = leases or ("0" * 32,)

    @property
    def queue(self) -> str:
        return self.random.choice(("q", "p", "emails"))

    @property
    def id(self) -> int:
        return self.random.choice(self._ids)

    @property
    def ids(self) -> list[int]:
        return [self.id for _ in range(self.random.randrange(1, 4))]

    @property
    def lease(self) -> str:
        return self.random.choice(self._leases)

    @property
    def sequence(self) -> int:
        """Of a push by short frames: mostly the next one of its producer."""
        self._sequence += self.random.choice((0, 1, 1, 1, 1, 1, 2))
        return self._sequence if self.random.random() < 0.98 else self.random.randrange(1 << 64)

    @property
    def wait(self) -> int:
        return self.random.choice((0, 1, 60_000))


# Requests in earnest, by name; a name that is missing here is said with fields at random.
EARNEST: Final[dict[str, Callable[[Scene], Said]]] = {
    "HELLO": lambda s: {"protocol": 1, "client": "x", "short": s.random.choice((None, True))},
    "PING": lambda s: {},
    "AUTH": lambda s: {"token": "pst_x"},
    "ABANDON": lambda s: {"request": s.random.randrange(5)},
    "PUSHRUN": lambda s: {
        "queue": s.queue,
        "payloads": [b"1", b"[2]"],
        "options": {"max_attempts": 2, "priority": s.random.randrange(3)},
        "keys": s.random.choice((None, ["a", None])),
        "groups": s.random.choice((None, ["g", "h"])),
        "delay_ms": s.random.choice((None, 5, 3_600_000)),
    },
    "CLAIM": lambda s: {"queues": [s.queue, "p"], "n": 3, "wait_ms": s.wait, "lease_ms": 1_000},
    "COMPLETE": lambda s: {"lease": s.lease},
    "FAILED": lambda s: {"lease": s.lease, "error": {"kind": "E", "message": "m"}},
    "RELEASE": lambda s: {"lease": s.lease},
    "EXTEND": lambda s: {"lease": s.lease, "lease_ms": 5_000},
    "REPORT": lambda s: {"lease": s.lease, "job_id": s.id, "progress": 50, "message": "half"},
    "RESULT": lambda s: {"job_id": s.id, "wait_ms": s.random.choice((0, 1))},
    "WATCH": lambda s: {"queues": [s.queue]},
    "BULKOPEN": lambda s: {"name": s.random.choice(("b", None)), "deadline_ms": 60_000},
    "BULKCOMMIT": lambda s: {"bulk": "b"},
    "PUSH": lambda s: {
        "queue": s.queue,
        "data": {"n": [1, None, "x"]},
        "delay": s.random.choice((None, 5, 3_600_000)),
        "unique_key": s.random.choice((None, "k")),
        "job_id": s.random.choice((None, "c")),
        "group_id": s.random.choice((None, "g")),
        "depends_on": s.random.choice((None, [s.id])),
        "max_attempts": 1,
        "tags": ["t"],
    },
    "PUSHB": lambda s: {"queue": s.queue, "jobs": [{"data": 1}, {"data": 2, "lifo": True}]},
    "PULL": lambda s: {"queue": s.queue, "timeout": s.wait},
    "PULLB": lambda s: {"queue": s.queue, "count": 3, "timeout": s.wait},
    "ACK": lambda s: {"id": s.id, "result": {"r": 1}},
    "FAIL": lambda s: {"id": s.id, "error": "no"},
    "WAITJOB": lambda s: {"id": s.id, "timeout": s.random.choice((0, 1))},
    "PARTIAL": lambda s: {"id": s.id, "data": [1], "index": 0},
    "FLOW": lambda s: {"queue": s.queue, "data": 0, "children": [{"queue": "p", "data": 1}]},
    "SUBSCRIBE": lambda s: {"queue": s.queue, "events": ["pushed", "completed"]},
    "CRON": lambda s: {"name": "c", "queue": s.queue, "data": 1, "repeat_every": 3_600_000},
    "CLEAN": lambda s: {"queue": s.queue, "grace": 0, "state": "completed"},
}


# What most of a conversation is: otherwise there would be little to be wrong about.
_USUAL: Final = ("PUSHRUN", "PUSH", "PUSHB", "CLAIM", "PULL", "PULLB", "ACK", "FAIL", *EARNEST)


def earnest(scene: Scene, encoding: Encoding) -> Said:
    """A request that might be meant, on what there is."""
    random = scene.random
    name = random.choice(_USUAL if random.random() < 0.7 else NAMES)
    if name in EARNEST:
        said = {field: value for field, value in EARNEST[name](scene).items() if value is not None}
    else:
        said = {field: _guess(scene, field) for field in FIELDS[name] if random.random() < 0.7}
        said.pop("tenant", None)
    if encoding == "json" and name == "PUSHRUN":
        said["payloads"] = ["MQ==", "WzJd"]
    if random.random() < 0.8:
        said["reqId"] = random.choice((random.randrange(100), "r"))
    return {"cmd": name, **said}


def introduced(scene: Scene) -> list[Said]:
    """What comes before short frames: both sides understand them, and there are kinds."""
    one = {"payloads": [b"1"], "producer": "short", "content": bytes(16)}
    kinds = [
        {"cmd": "PUSHRUN", "queue": queue, "kind": kind, "sequence": scene.sequence, **one}
        for kind, queue in enumerate(("q", "p"), 1)
    ]
    return [{"cmd": "HELLO", "short": True, "reqId": 0}, *kinds]


def short(scene: Scene) -> bytes:
    """One job of a kind that may have been said, hurt maybe."""
    random = scene.random
    payload = random.choice((b"1", b"[2]", b"", b"NaN", b"x" * 5_000))
    frame = push_frame(random.choice((1, 1, 2, 3)), random.randrange(100), scene.sequence, payload)
    return frame if random.random() < 0.8 else framed(_hurt(frame[4:], random))


def _guess(scene: Scene, field: str) -> Any:
    """Something that may well stand in a field of that name."""
    random = scene.random
    if field in ("queue", "name", "key", "bulk"):
        return scene.queue
    if field == "ids":
        return scene.ids
    if field in ("id", "job_id", "parent_id"):
        return scene.id
    if field in ("queues", "names"):
        return [scene.queue]
    if field == "lease":
        return scene.lease
    if field == "state":
        return random.choice(("ready", "active", "completed", "waiting", "failed", "dead"))
    if field in ("data", "result"):
        return {"x": [1]}
    if field in ("error", "message", "level", "token", "task", "tag"):
        return "said"
    return random.choice((0, 1, 10, 100))


# -- spoiling --------------------------------------------------------------------------------------


def spoilt(said: Said, random: Random, encoding: Encoding) -> bytes:
    """That request with something wrong in it, maybe; as the bytes of one message."""
    said = dict(said)
    for _ in range(random.choice((0, 0, 0, 1, 1, 2))):
        field = random.choice([*said, *FIELDS.get(str(said.get("cmd")), ()), "unheard"])
        way = random.randrange(4)
        if way == 0:
            said.pop(field, None)
        elif way == 1:
            said[field] = random.choice(_PLAIN)
        elif way == 2:
            said[field] = Raw(random.choice(_JUNK[encoding]))
        else:
            said[field] = [said.get(field), {"a": said.get(field)}]
    data = _encoded(said, encoding)
    if random.random() < 0.05:
        data = _twice(said, data, encoding)
    if random.random() < 0.15:
        data = _hurt(data, random)
    if encoding == "json":
        return data + (b"\r\n" if random.random() < 0.1 else b"\n")
    if random.random() < 0.02:
        return random.choice(_LENGTHS).to_bytes(4, "big") + data
    if random.random() < 0.1:
        return framed(_encoded(said, "json"))
    return framed(data)


def _encoded(said: Said, encoding: Encoding) -> bytes:
    if encoding == "msgpack":
        return message(said, "msgpack")[4:]
    fields = []
    for name, value in said.items():
        if isinstance(value, Raw):
            written = bytes(value)
        else:
            written = json.dumps(value, default=_shown).encode()
        fields.append(json.dumps(name).encode() + b":" + written)
    return b"{" + b",".join(fields) + b"}"


def _shown(value: object) -> Any:
    return bytes(value).decode("latin-1") if isinstance(value, Raw | bytes) else repr(value)


def _twice(said: Said, data: bytes, encoding: Encoding) -> bytes:
    """With its first field in it twice."""
    if encoding == "json":
        return b'{"cmd":"PING",' + data[1:]
    if len(said) < 15 and data[0] & 0xF0 == 0x80:
        return bytes([data[0] + 1]) + b"\xa3cmd\xa4PING" + data[1:]
    return data


def _hurt(data: bytes, random: Random) -> bytes:
    hurt = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 5))):
        at = random.randrange(len(hurt)) if hurt else 0
        way = random.randrange(5)
        if way == 0 and hurt:
            hurt[at] ^= 1 << random.randrange(8)
        elif way == 1:
            del hurt[at:]
        elif way == 2:
            hurt[at:at] = random.randbytes(random.randrange(1, 9))
        elif way == 3:
            hurt += hurt[at:]
        else:
            del hurt[at : at + random.randrange(1, 9)]
    return bytes(hurt)
