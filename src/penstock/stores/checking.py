"""Whether a url could name a store, as far as that is seen without opening one."""

from penstock.stores.target import target_of
from penstock.stores.urls import path_of, settings_of, split


def check_url(url: str) -> None:
    """Raises Invalid, with how a right one looks."""
    parts = split(url)
    if parts.scheme in ("penstock", "penstock+unix"):
        target_of(url)
    elif parts.scheme != "memory":
        path_of(url, parts)
        settings_of(parts.query)
