"""`check`: what a history and the state found at the end say against the store.

Each rule stands by itself and reports only what no order and no fate of the unknown operations
could explain. The list is empty for a store that keeps the contract.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from tests.history.final import FinalState
from tests.history.operations import History, Operation
from tests.history.rules import kept, leases, order, pushes
from tests.history.story import Case, Rule

RULES: Final[dict[str, Rule]] = {
    rule.__name__: rule for part in (kept, leases, pushes, order) for rule in part.RULES
}
SHOWN: Final = 20  # violations of one rule; a broken store would otherwise fill the screen


class Violation(msgspec.Struct, frozen=True):
    """One promise that was broken, and by which operations one can tell."""

    rule: str
    text: str
    operations: tuple[Operation, ...]

    def __str__(self) -> str:
        return "\n    ".join([f"{self.rule}: {self.text}", *map(str, self.operations)])


def check(
    history: History,
    final: FinalState,
    *,
    claims_survive: bool = True,
    lost_ok_after: int | None = None,
    claims_repeated: int = 0,
    stood_ms: int = 0,
) -> list[Violation]:
    """Every violation of every rule.

    `claims_survive=False`: claims are not made safe before they are answered, so a loss of power
    (or the death of a server that is a process of its own) may undo them; their leases count only
    until the store is next opened.
    `lost_ok_after`: what was answered from this instant (elapsed, ms) on until the store was next
    opened may be lost, as with `durability=os` and a loss of power. Without it the same history
    has to be found wrong: that is the control run.
    `claims_repeated`: how often a client may have asked again for a claim whose answer it lost. An
    attempt may have gone with each of those answers, of which the history knows nothing.
    `stood_ms`: how long the store stood still, at most, without being told so: leases do not count it.
    """
    if lost_ok_after is not None:
        history = history.forgiving(lost_ok_after)
    case = Case(
        history,
        final,
        claims_survive=claims_survive,
        claims_repeated=claims_repeated,
        stood_ms=stood_ms,
    )
    return [
        Violation(name, finding.text, finding.operations)
        for name, rule in RULES.items()
        for finding in rule(case)
    ]


def assert_clean(violations: Sequence[Violation]) -> None:
    """Fail with what was found, rule by rule."""
    shown: list[str] = []
    for name in dict.fromkeys(violation.rule for violation in violations):
        some = [str(violation) for violation in violations if violation.rule == name]
        shown += some[:SHOWN] + ([f"… {len(some)} of {name}"] if len(some) > SHOWN else [])
    assert not violations, "the store broke its word:\n" + "\n".join(shown)
