"""Which store the tasks of a job speak to: one that they can reach from wherever they run."""

from typing import Final
from urllib.parse import quote, urlsplit, urlunsplit

import msgspec

from penstock.model.checks import check_tenant
from penstock.model.errors import Invalid
from penstock.open import JOURNALS
from penstock.stores.target import PORT

LOCAL: Final = frozenset({"memory", *JOURNALS})  # of one process, or of one machine's files


class Where(msgspec.Struct, frozen=True):
    """A store's url with the token in it, and the tenant; "" for that of the credentials."""

    url: str
    tenant: str = ""

    @classmethod
    def of(cls, url: str, token: str, tenant: str) -> "Where":
        if not url:
            raise Invalid(f"is required: .option('url', 'penstock://host:{PORT}')", "url")
        scheme = urlsplit(url).scheme
        if scheme in LOCAL:
            raise Invalid(
                f"{url!r} is a store of one machine, which Spark's executors cannot share: run"
                f" `penstock serve --url {url}` and say penstock://host:{PORT} here",
                "url",
            )
        if tenant:
            check_tenant(tenant)
        return cls(_with_token(url, token) if token else url, tenant)


def _with_token(url: str, token: str) -> str:
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f":{quote(token, safe='')}@{place}"))
