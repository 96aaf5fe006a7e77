"""Which errors are the same error: a short name for a class and what its message says.

Two failures share a fingerprint if they differ only in what varies from job to job: numbers,
identifiers, addresses, quoted values. Dead letters are listed and redriven by it. It is kept with
jobs and used in links, so the same error has to have the same fingerprint in every release.
"""

import re
from hashlib import blake2b
from typing import Final

from penstock.model.job import JobError

# Every alternative reads on at most to the next quote or the end of its word, and never tries
# another way back: linear in the message, whatever is in it. (Groups are not possessive: early
# releases of Python 3.11 go astray there, and nothing that could fail comes behind them.)
_VARYING: Final = re.compile(
    r"""
      (?P<quoted> (?<!\w) (?: '[^'\n]*+' | "[^"\n]*+" | `[^`\n]*+` ) (?!\w) )
    | (?P<uuid> (?<![0-9a-z]) [0-9a-f]{8} (?:-[0-9a-f]{4}){3} - [0-9a-f]{12} (?![0-9a-z]) )
    | (?P<number>
          (?<![0-9a-z]) 0x[0-9a-f]++ (?![0-9a-z])
        | (?<![0-9a-z]) (?=[a-f]*+[0-9]) (?=[0-9]*+[a-f]) [0-9a-f]{6,}+ (?![0-9a-z])
        | (?: (?<![\w.)\]]) [-+] )? [0-9]++ (?: [.,:][0-9]++ )* (?: e[-+]?[0-9]++ )?
      )
    """,
    re.VERBOSE | re.IGNORECASE,
)


def masked(message: str) -> str:
    """The message with what varies replaced by the name of its kind: `user <number> not found`.

    Digits count wherever they stand, so that hosts (`db-3`), paths (`/tmp/run42/`) and names
    (`user17`) fall together too. Hexadecimal ones are numbers like any other, because some of them
    happen to have no letter.
    """
    return _VARYING.sub(lambda found: f"<{found.lastgroup}>", message)


def fingerprint(error: JobError) -> str:
    """16 hexadecimal digits."""
    said = f"{error.kind}\0{masked(error.message)}"
    return blake2b(said.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
