"""What is wrong with a declaration is said at the declaration."""

from typing import Any

import pytest

from penstock import Penstock
from penstock.client.delayed import DelayedQueue
from penstock.model.errors import Invalid


@pytest.mark.parametrize("option", ["retry_on", "dead_on"])
@pytest.mark.parametrize("wrong", ["x", ["x"], (ValueError, 3), 5])
def test_errors_to_retry_are_classes_of_exceptions(option: str, wrong: Any) -> None:
    app = Penstock("memory://")
    with pytest.raises(TypeError, match=f"{option} takes classes of exceptions"):
        app.task(**{option: wrong})(lambda: None)


def test_a_list_of_exceptions_is_as_good_as_a_tuple() -> None:
    app = Penstock("memory://")

    listed: Any = [KeyError, OSError]

    @app.task(retry_on=listed)
    def picky() -> None: ...

    assert picky.retries(FileNotFoundError())
    assert not picky.retries(ValueError())
    assert picky.retries(KeyboardInterrupt())


def test_a_message_that_nobody_could_read_is_not_offered() -> None:
    with Penstock("memory://") as app:
        queue = DelayedQueue(app, "reminders", str)
        assert queue.offer_or_update("good", "v") == "created"
        with pytest.raises(Invalid, match="is not what 'reminders' has messages of"):
            queue.offer_or_update("bad", 5)  # type: ignore[arg-type]
        assert [each.key for each in queue.try_poll_many(10)] == ["good"]
