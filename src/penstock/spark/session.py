"""A Spark session that starts fast: for the command line, for tests, for a small machine.

A session on a cluster is its owner's business, who says what it is like in `spark-defaults.conf`, and
the data source works in any. Here what helps on one machine is set, and anything may be said
otherwise: a simple compiler and collector and an archive of loaded classes (8.7 s → 3 s to the first
session), as many shuffle partitions as cores (200 cost twelve times as much), no web page, nothing
that listens beyond this machine.
"""

import os
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.model.errors import Invalid
from penstock.spark.java import Java, find_java, home_for_spark
from penstock.spark.plainly import plainly

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.lake import Lake

MASTER: Final = "local[2]"
APP: Final = "penstock"
PARTITIONS: Final = "spark.sql.shuffle.partitions"
NEEDED: Final = ("pyspark", "pyarrow", "pandas")
QUIET: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %m%n
"""


def start(
    *,
    master: str = MASTER,
    app: str = APP,
    config: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> "SparkSession":
    """A session, or the one that there is. `config` is said last; `directory` is for what may be
    thrown away: archives of classes, shuffles."""
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        if error.name not in NEEDED:
            raise
        raise Invalid(f"there is no {error.name}: pip install 'penstock[spark]'", "spark") from None

    directory = directory or default_directory()
    directory.mkdir(parents=True, exist_ok=True)
    java = find_java()
    os.environ["JAVA_HOME"] = home_for_spark(java, directory)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(master).appName(app)
    for key, value in {**options(master, java, directory), **(config or {})}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    if PARTITIONS not in dict(session.sparkContext.getConf().getAll()):
        session.conf.set(PARTITIONS, str(session.sparkContext.defaultParallelism))
    return session


@contextmanager
def opened(root: str, master: str = MASTER) -> "Iterator[Lake]":
    """A lake, in a session that ends with it; whatever Spark raises meanwhile is one sentence."""
    with plainly():
        spark = start(master=master)
        try:
            from penstock.spark.lake import Lake

            yield Lake(spark, root).open()
        finally:
            spark.stop()


def options(master: str, java: Java, directory: Path) -> dict[str, str]:
    """What makes it fast. By Spark's own names.

    They count for more than `spark-defaults.conf` does, so on a cluster hardly anything is said.
    """
    said = {
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    if is_local(master):
        said |= {
            "spark.ui.enabled": "false",
            PARTITIONS: str(cores(master)),
            "spark.local.dir": str(directory),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": java_options(java, directory),
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
    return said


def java_options(java: Java, directory: Path) -> str:
    """A first compiler only, a collector without threads, and classes as the last run left them."""
    said = [
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        "-XX:-UsePerfData",
        f"-Dderby.system.home={directory}",
        f"-Dlog4j2.configurationFile={_quiet(directory)}",
    ]
    archive = directory / f"classes-{java.version}-{version('pyspark')}.jsa"
    _adopt(archive)
    if archive.exists():
        said += ["-Xshare:auto", f"-XX:SharedArchiveFile={archive}"]
    else:
        said.append(f"-XX:ArchiveClassesAtExit={archive}.{os.getpid()}")
    # An archive of another Java, or of another Spark, is passed over without a word.
    return " ".join([*said, "-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off"])


def _quiet(directory: Path) -> Path:
    """What Spark says while it starts is for its developers: only errors are shown."""
    path = directory / "log4j2.properties"
    if not path.exists() or path.read_text() != QUIET:
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_text(QUIET)
        fresh.replace(path)
    return path


def _adopt(archive: Path) -> None:
    """The archive that a run left when it ended becomes the one that is used.

    Java writes it in place, so a run writes under its own number, and only what is left of one that is
    over is surely whole.
    """
    for left in archive.parent.glob(f"{archive.name}.*"):
        number = left.suffix[1:]
        if number.isdigit() and not Path(f"/proc/{number}").exists():
            left.replace(archive)


def is_local(master: str) -> bool:
    return master.startswith("local")


def cores(master: str) -> int:
    """As many as there are where the work is done, where that is known."""
    if master.startswith("local["):
        said = master[len("local[") :].rstrip("]").split(",")[0]
        if said.isdigit():
            return int(said)
    if master.startswith("local-cluster["):
        workers, each, *_ = master[len("local-cluster[") :].rstrip("]").split(",")
        return int(workers) * int(each)
    return os.cpu_count() or 2


def default_directory() -> Path:
    """One of this user alone: what lies there is run."""
    directory = Path(tempfile.gettempdir()) / f"penstock-spark-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    known = directory.lstat()
    if not stat.S_ISDIR(known.st_mode) or known.st_uid != os.getuid() or known.st_mode & 0o077:
        raise Invalid(f"{directory} is not a directory of yours alone", "directory")
    return directory
