"""The reference page of the data source, made from its options, columns and views."""

from collections.abc import Iterator
from typing import Any, get_type_hints

import msgspec

from penstock.settings import description
from penstock.spark.columns import OWN, SHARED
from penstock.spark.options import EventsOptions, JobsOptions, WriteOptions
from penstock.spark.views import VIEWS

HEAD = """# The data source `penstock`

Generated from `penstock.spark` by `make docs`; do not edit. How to begin is told in
[the tutorial](../tutorial-spark.md).

It registers itself wherever `penstock[spark]` is installed, on the driver and on every executor:
`spark.read.format("penstock")` is enough. `url` names a store that all of them can reach. The store
of one machine, such as `sqlite:///jobs.db`, is refused: `penstock serve` puts it on the network.

An option or a column that does not exist, or that is of the wrong type, is refused in one sentence
before any task runs. `penstock.spark.plainly.plainly` is a context in which whatever Spark raises
comes out as one error of ours with one sentence, without traces.
"""

WRITE = """## Writing

```python
df.write.format("penstock").option("url", url).option("queue", "emails").mode("append").save()
```

A write is a bulk in two phases. Every attempt of every task pushes into a part of its own, and the
commit publishes one part per partition at one instant: all rows become jobs then, each once, however
often tasks failed, were killed or ran twice. A write that fails leaves nothing; one whose driver is
killed leaves what nobody can see, until `deadline_ms` is over. A write with the name `bulk` can be
repeated: once it was committed, it does nothing.

`mode("overwrite")` first forgets what is not active in the queue: what waits and what has ended, dead
jobs too. It does so when every row has been pushed, right before the commit, but not in the same
instant.

`df.writeStream` does the same for each micro-batch, named after the query and its number, so that one
which Spark repeats from its checkpoint adds nothing. Names are remembered for a week: a stream that
stood still for longer, in just that instant, may add its last micro-batch twice. Its output mode is
append.

At most 10,000 partitions may hold rows.
"""

COLUMNS = """### Columns

A column `payload` is the payload: text is taken as JSON as it is, binary as bytes, anything else is
written as JSON. Where there is none, all the columns that are not in the table below make an object.
Timestamps are written in UTC, dates as `2026-01-02`, nulls as `null`. NaN and binary columns have no
JSON form and are refused.

Columns of these names say something about their job; null says nothing. What is the same in a whole
batch costs nothing per row; up to 256 combinations of the first kind cost a byte.
"""

READ = """## Reading

```python
jobs = spark.read.format("penstock").options(url=url, queue="emails", state="ready").load()
```

Jobs are shared out among tasks by id. A job that is there all the while is read once, as it was when its
page was read; one that is pushed later is not. Filters are options; a `where` is applied by Spark to
what was read. Naming fewer columns with `.schema("id bigint, payload binary")` makes only those.
"""

EVENTS = """## Events

`view` = `events` reads the sealed segments of an event log (`penstock serve --events DIR`) as they lie
there: a line may be there twice after a crash, with the same `store`, `position` and `index`. As a
stream its offset is a segment and a position in it, for each store; it is bounded by
`max_bytes_per_batch`, and `trigger(availableNow=True)` ends with what is sealed at the start. Events
that retention deletes before a stream has read them are lost to it: keep them longer than it may stand
still. A line that cannot be read ends the read with its file and place.
"""


def page() -> str:
    lines = [HEAD, WRITE, "### Options", *_options(WriteOptions), "", COLUMNS]
    lines += ["| column | type | kind |", "|---|---|---|"]
    lines += [f"| `{name}` | {kind} | shared |" for name, kind in SHARED.items()]
    lines += [f"| `{name}` | {kind} | the job's own |" for name, (_, kind) in OWN.items()]
    lines += ["", READ, "### Options", *_options(JobsOptions), ""]
    lines += ["### Columns of `jobs` and `dead`", *_view("jobs"), ""]
    lines += [
        "`payload` and `result` are text: JSON as it is, other codecs in base64. As `binary` they are",
        "the bytes. Instants may be read as `bigint`: milliseconds since the epoch.",
        "",
        "### Columns of `queues`",
        *_view("queues"),
        "",
        EVENTS,
        "### Options",
        *_options(EventsOptions),
        "",
        "### Columns of `events`",
        *_view("events"),
    ]
    return "\n".join(lines) + "\n"


def _options(kind: type[msgspec.Struct]) -> Iterator[str]:
    yield "| option | default | meaning |"
    yield "|---|---|---|"
    defaults: Any = kind()
    for name, hint in get_type_hints(kind, include_extras=True).items():
        default = getattr(defaults, name)
        shown = "" if default in (None, "") else f"`{default}`"
        yield f"| `{name}` | {shown} | {description(hint)} |"


def _view(view: Any) -> Iterator[str]:
    yield "| column | type |"
    yield "|---|---|"
    for name, kind in VIEWS[view].items():
        yield f"| `{name}` | `{kind}` |"
