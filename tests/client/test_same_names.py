"""Two tasks of one name are a mistake, wherever they stand; a module that is run again is none."""

import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from penstock import Penstock
from penstock.model.errors import Invalid
from tests.client.conftest import ENVIRONMENT

SHOP = """
    from penstock import Penstock

    app = Penstock("memory://")
"""
SENDS = """
    from shop import app

    @app.task(queue="{queue}")
    def send(to: str) -> str:
        return "{queue} to " + to
"""


def ran(directory: Path, program: str, *command: str, **modules: str) -> str:
    """What a program prints that has these modules beside it."""
    for name, text in {"shop": SHOP, "program": program, **modules}.items():
        (directory / f"{name}.py").write_text(dedent(text), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", *(command or ("program.py",))],
        capture_output=True,
        text=True,
        check=False,
        cwd=directory,
        env=ENVIRONMENT,
        timeout=60,
    )
    return done.stdout + done.stderr


def test_tasks_of_one_name_in_two_modules_are_a_mistake(tmp_path: Path) -> None:
    said = ran(
        tmp_path,
        "import emails, sms",
        emails=SENDS.format(queue="emails"),
        sms=SENDS.format(queue="sms"),
    )
    assert re.search(
        r"Invalid: name: two tasks are called 'send': give one of them a name,"
        r" as in @app.task\(name='sms.send'\); they are at \S*emails.py:4 and \S*sms.py:4\n",
        said,
    ), said


def test_a_task_keeps_its_queue_when_another_of_its_name_is_refused(tmp_path: Path) -> None:
    said = ran(
        tmp_path,
        """
        import emails
        try:
            import sms
        except Exception as error:
            print(type(error).__name__)
        with emails.app.testing() as t:
            job = emails.send.push("ada")
            t.drain()
            print(job.result(), emails.app.queues)
        """,
        emails=SENDS.format(queue="emails"),
        sms=SENDS.format(queue="sms"),
    )
    assert said == "Invalid\nemails to ada ['emails']\n"


def test_tasks_of_one_name_in_one_module_are_a_mistake(tmp_path: Path) -> None:
    said = ran(tmp_path, SENDS.format(queue="a") + SENDS.format(queue="b"))
    assert "two tasks are called 'send'" in said
    assert "program.py:4 and " in said


def test_tasks_that_one_function_makes_need_names_of_their_own() -> None:
    app = Penstock("memory://")

    def make(value: int, name: str | None = None) -> None:
        def give() -> int:
            return value

        (app.task(name=name) if name else app.task)(give)

    make(1)
    with pytest.raises(Invalid, match="two tasks are called 'give': give one of them a name"):
        make(2)
    assert app.named("give")() == 1
    make(2, "give.two")
    with pytest.raises(Invalid, match=r"two tasks are called 'give\.two'"):
        make(3, "give.two")
    assert (app.named("give")(), app.named("give.two")()) == (1, 2)


def test_one_function_is_one_task_of_a_name() -> None:
    app = Penstock("memory://")

    def send() -> None: ...

    app.task(queue="emails")(send)
    with pytest.raises(Invalid, match="two tasks are called 'send'"):
        app.task(queue="sms")(send)
    app.task(queue="sms", name="sms")(send)
    assert app.queues == ["emails", "sms"]


def test_two_lambdas_are_given_names() -> None:
    app = Penstock("memory://")
    app.task(lambda: 1)
    with pytest.raises(
        Invalid, match=r"name: two lambdas .* no name of its own: say @app.task\(name="
    ):
        app.task(lambda: 2)
    assert app.task(name="two")(lambda: 2)() == 2
    assert app.task(name="three")(lambda: 3)() == 3
    with pytest.raises(Invalid, match="two tasks are called 'two'"):
        app.task(name="two")(lambda: 4)
    assert [task() for task in app.tasks.values()] == [1, 2, 3]


EDITED = """
    import importlib, pathlib, emails, shop

    before = shop.app.named("send")
    text = pathlib.Path("emails.py").read_text()
    pathlib.Path("emails.py").write_text("# more lines\\n\\n" + text.replace(" to ", " for "))
    importlib.reload(emails)
    print(shop.app.named("send") is emails.send is not before, emails.send("ada"))
"""


def test_a_module_may_be_edited_and_reloaded(tmp_path: Path) -> None:
    said = ran(tmp_path, EDITED, "-B", "program.py", emails=SENDS.format(queue="emails"))
    assert said == "True emails for ada\n"


TWICE = """
    import sys
    from shop import app

    def quiet(handler):  # as some decorators are: nothing is left of what it wraps
        def wrapper(*args):
            return handler(*args)
        return wrapper

    @app.every("1h", arguments={"to": "ada"})
    @app.task
    def send(to: str) -> str:
        return to

    app.task(name="quiet")(quiet(print))
    named = app.task(name="named")(lambda: None)
    nameless = app.task(lambda: None)

    if __name__ == "__main__":
        import program
        print(app.named("send") is program.send, __name__, program.__name__)
        sys.modules.pop("program")
        import program
        print(app.named("send") is program.send, len(app.tasks), len(app.crons))
"""


@pytest.mark.parametrize("command", [("program.py",), ("-m", "program"), ("./link/program.py",)])
def test_a_module_may_be_imported_again_under_another_name(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert ran(tmp_path, TWICE, *command) == "True __main__ program\nTrue 4 1\n"


def test_what_is_typed_at_a_prompt_may_be_typed_again(tmp_path: Path) -> None:
    typed = "def send() -> int:\n    return {n}\n\nsend = app.task(send)\n"
    done = subprocess.run(
        [sys.executable, "-i", "-q"],
        input="from penstock import Penstock\napp = Penstock('memory://')\n"
        + "".join(typed.format(n=n) for n in (1, 2))
        + "print(app.named('send')())\n",
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=ENVIRONMENT,
        timeout=60,
    )
    assert done.stdout == "2\n", done.stderr
