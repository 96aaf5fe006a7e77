"""Every golden store opens, and is what it was: the same digest, the same jobs."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from penstock.kernel.kernel import VERSION
from penstock.stores.journal import frames
from tests.golden.stored import HERE, Golden, ever_said, look, unpack

STORES = sorted(HERE.glob("format*-kernel*/*.tar.xz"))


def test_the_present_format_has_its_golden_stores() -> None:
    present = f"format{frames.FORMAT}-kernel{VERSION}"
    here = {path.name for path in STORES if path.parent.name == present}
    assert here == {f"{s}-{k}.tar.xz" for s in ("sqlite", "rocksdb") for k in ("log", "checkpoint")}


def test_the_present_logs_say_everything_that_commands_can() -> None:
    for made in HERE.glob(f"format{frames.FORMAT}-kernel{VERSION}/*-log.json"):
        said = msgspec.json.decode(made.read_bytes(), type=Golden).said
        assert said == sorted(ever_said()), "see tests/golden/make.py"


@pytest.mark.parametrize("packed", STORES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_golden_store_is_read_as_it_was_written(packed: Path, tmp_path: Path) -> None:
    made = packed.with_name(packed.name.removesuffix(".tar.xz") + ".json")
    golden = msgspec.json.decode(made.read_bytes(), type=Golden)
    scheme = packed.name.partition("-")[0]
    store = unpack(packed, tmp_path)
    found = asyncio.run(look(f"{scheme}:///{store}", golden.now, golden.elapsed))
    assert found.jobs == golden.jobs
    assert found == golden
