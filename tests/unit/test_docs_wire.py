"""docs/protocol.md says what the code does: its commands, its codes, and the conversation on top."""

import asyncio
import re
from pathlib import Path

from penstock.model.errors import by_code
from penstock.open import open_store
from penstock.protocol.access import OpenToAll
from penstock.protocol.table import name_of
from penstock.server.tcp import COMMANDS, tcp_listener
from tools import wire

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/protocol.md").read_text(encoding="utf-8")


def test_every_command_has_its_section_and_no_other_has() -> None:
    commands, _, _ = PAGE.partition("\n## Shapes\n")
    assert re.findall(r"^### (\S+)$", commands, re.MULTILINE) == [name_of(c) for c in COMMANDS]


def test_every_section_says_what_it_is_and_what_it_answers() -> None:
    commands, _, _ = PAGE.partition("\n## Shapes\n")
    for section in re.split(r"^### ", commands, flags=re.MULTILINE)[1:]:
        name, _, said = section.partition("\n\n")
        assert re.match(r"[A-Z].*\.\n", said), f"{name} has no sentence"
        assert "\nAnswer:" in section, f"{name} has no answer"


def test_the_errors_of_commands_are_errors_and_of_commands() -> None:
    assert set(wire.ERRORS) <= {name_of(command) for command in COMMANDS}
    for codes in wire.ERRORS.values():
        assert set(codes) <= set(by_code())


def test_the_conversation_on_top_is_what_a_server_says() -> None:
    block = re.search(r"```\n(→.*?)```", PAGE, re.DOTALL)
    assert block is not None
    asked = re.findall(r"^→ (.*)$", block[1], re.MULTILINE)
    shown = re.findall(r"^← (.*)$", block[1], re.MULTILINE)

    async def converse() -> list[str]:
        store = await open_store("memory://")
        listener = tcp_listener(store, OpenToAll())
        reader, writer = await asyncio.open_connection(*await listener.listen_tcp("127.0.0.1", 0))
        said = []
        for line in asked:
            writer.write(line.encode() + b"\n")
            said.append((await reader.readline()).decode().rstrip("\n"))
        writer.close()
        await listener.close()
        await store.close()
        return said

    said = asyncio.run(converse())
    assert len(said) == len(shown) == 3
    for real, example in zip(said, shown, strict=True):
        begin, elided, end = example.partition(" …")
        assert real.startswith(begin)
        assert real.endswith(end)
        assert elided or real == example
