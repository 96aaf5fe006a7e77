"""Environments of the peers: made on first use, from pins with hashes, in a directory that git
ignores. None of what is in them is ever a dependency of Penstock.
"""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
ENVIRONMENTS: Final = HERE / ".peers"


def python_of(environment: str, members: str) -> str:
    """The interpreter of the environment that `peers-<environment>.txt` says what is in."""
    pins = HERE / f"peers-{environment}.txt"
    directory = ENVIRONMENTS / environment
    python = directory / "bin" / "python"
    ready = directory / "made-from"  # written last: what is there without it is half an environment
    # Of our own Python, too: builds differ by a third, and nobody is to gain or lose by that.
    built_by = f"{Path(sys.executable).resolve()} {sys.version}"
    digest = hashlib.sha256(pins.read_bytes() + built_by.encode()).hexdigest()
    if ready.exists() and ready.read_text() == digest:
        return str(python)
    print(f"installing {members} from {pins.name}", file=sys.stderr, flush=True)
    shutil.rmtree(directory, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", directory], check=True)
    install = ("-m", "pip", "install", "--quiet", "--require-hashes", "--requirement", pins)
    try:
        subprocess.run([python, *install], check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as failed:
        said = failed.stderr.strip()
        raise SystemExit(f"cannot install {members} from {pins.name}:\n{said}") from failed
    ready.write_text(digest)
    return str(python)
