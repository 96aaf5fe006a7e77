"""What the url of a durable store may say behind its `?`."""

from typing import Annotated, Final, Literal

import msgspec

from penstock.model.answers import Durability
from penstock.stores.journal.space import RESERVE

CACHE_BYTES: Final = 64 << 20
LOG_BYTES: Final = 64 << 20  # of log behind the last checkpoint before the next one is due
RECORDS: Final = 200_000
REPLAY_S: Final = 2.0  # that carrying out the log behind it took

Count = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the url of a durable store may say behind its `?`."""

    durability: Durability = "fsync"
    mode: Literal["rw", "ro"] = "rw"  # ro: look at it, change nothing, whoever owns it
    commit_interval_ms: Count = 0  # wait this long for company before a commit …
    commit_max: Positive = 8 << 20  # … unless this many bytes of log have gathered
    cache_bytes: Count = CACHE_BYTES  # payloads kept in memory beside the disk's
    reserve_bytes: Count = RESERVE  # free space below which no jobs are taken in
    checkpoint_bytes: Positive = LOG_BYTES  # of log before the next checkpoint
    checkpoint_records: Positive = RECORDS
    checkpoint_replay_s: Annotated[float, msgspec.Meta(gt=0)] = REPLAY_S  # … or of its replay
    backup_dir: str = ""  # where backups go …
    backup_every_s: Annotated[float, msgspec.Meta(ge=0)] = 0  # … so often; 0: when asked for
    backup_keep: Positive = 24  # of them
    events: str = ""  # the directory of the event log; none without
    events_seal_s: Annotated[float, msgspec.Meta(gt=0)] = 10.0  # until others may read a segment
    events_keep_s: Annotated[float, msgspec.Meta(ge=0)] = 30 * 86_400.0  # and how long; 0: for ever
    events_keep_bytes: Count = 0  # of all segments there; 0: any number
