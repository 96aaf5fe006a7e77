"""How large this process is."""

import os
import resource
import sys
from pathlib import Path
from typing import Final

_STATM: Final = Path("/proc/self/statm")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
LOOK_S: Final = 1.0  # how often to look


def rss_mb() -> float:
    """Resident memory now; where the system does not tell, the most that it ever was."""
    if _STATM.exists():
        return int(_STATM.read_text().split()[1]) * _PAGE / 2**20
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (2**20 if sys.platform == "darwin" else 2**10)
