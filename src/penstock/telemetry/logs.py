"""The log of a process: lines for machines (JSON) or for somebody who watches (text)."""

import json
import logging
import re
import sys
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

import msgspec

from penstock.settings import LogFormat, LogLevel

# What every record has. Whatever else one has was said with `extra` and belongs in its line.
_USUAL: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


LONGEST: Final = 16_384  # characters of a message
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")


def configure(form: LogFormat, level: LogLevel) -> None:
    """Have the log of this process written to its standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time_of(int(record.created * 1000)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _bounded(record.getMessage()),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _USUAL}
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        try:
            return msgspec.json.encode(line, enc_hook=repr).decode()
        except UnicodeEncodeError:  # half a character, as in names of files that are no text
            return json.dumps(line, default=repr, skipkeys=True)


class TextLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = time_of(int(record.created * 1000))
        text = f"{time} {record.levelname.lower():<7} {one_line(record.getMessage())}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def one_line(message: str) -> str:
    """The message as it may stand in a line: what a job says must not look like a line of ours, nor
    speak to the terminal."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], _bounded(message))


def _bounded(message: str) -> str:
    if len(message) <= LONGEST:
        return message
    return f"{message[:LONGEST]}… ({len(message):,} characters)"


def time_of(ms: int) -> str:
    return f"{_second(ms // 1000)}.{ms % 1000:03d}+00:00"


@lru_cache(maxsize=16)  # lines come many to the second
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat()
