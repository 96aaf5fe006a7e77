"""One sentence for what went wrong in Spark, in place of pages of it.

An error of ours that is raised in a Python process of Spark comes back inside a Java exception inside
a Python exception, as text, traces and all. Whoever is told should be told what we said.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock.model.errors import PenstockError, Unavailable, by_code

_CLASSES: Final = "|".join(cls.__name__ for cls in by_code().values())
_OURS: Final = re.compile(rf"penstock\.model\.errors\.({_CLASSES}): (.*)$", re.MULTILINE)
_FIELD: Final = re.compile(r"([A-Za-z_][\w.]*): (.*)")
_RAISED: Final = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt): .+$", re.MULTILINE)
MOST: Final = 500  # characters of what Spark itself has to say


@contextmanager
def plainly() -> Iterator[None]:
    """What Spark raises in here comes out as one of our errors with one sentence."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        told = told_by(error)
        if told is None:
            raise
        raise told from None


def told_by(error: BaseException) -> PenstockError | None:
    """What an exception of Spark says in one sentence; None if it is not one of Spark's."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    if not isinstance(error, (PySparkException, Py4JError)):
        return None
    text = str(error)
    # The first: what comes after it is the same again, as others heard it.
    ours = _OURS.search(text)
    if ours is not None:
        return _error(ours[1], ours[2].strip())
    sentence = text.strip().partition("\n")[0]
    raised = _RAISED.findall(text)
    if raised:  # in Python, by whoever: the end of the trace says what
        sentence = raised[0].strip()
    return Unavailable(f"Spark says: {sentence[:MOST]}")


def _error(name: str, said: str) -> PenstockError:
    classes = {cls.__name__: cls for cls in by_code().values()}
    kind = classes.get(name, Unavailable)
    field = _FIELD.fullmatch(said)
    return kind(field[2], field[1]) if field else kind(said)
