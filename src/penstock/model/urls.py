"""A store's url as it may be shown: in messages, logs and listings, without who we are."""

import re
from typing import Final

HIDDEN: Final = "***"

# By hand, because what is wrong with a url must not keep a secret in it.
_SECRET: Final = re.compile(r"([A-Za-z][\w+.-]*://)([^/?#]*)@")


def without_password(url: str) -> str:
    """A url without its password; a token may stand before the host by itself."""
    return _SECRET.sub(_hidden, url, count=1) if _SECRET.match(url) else url


def _hidden(found: re.Match[str]) -> str:
    scheme, said = found.groups()
    user, colon, _ = said.partition(":")
    if colon:
        return f"{scheme}{user}:{HIDDEN}@"
    return f"{scheme}{HIDDEN}@" if scheme.startswith("penstock") else found[0]
