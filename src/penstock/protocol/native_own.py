"""What the owner of a path does for whoever shares it: said at its own socket (`path.sock`), which
only its user can reach, and nowhere else.

None of it is part of `NATIVE`: a server's clients may be anybody, and must not have files written
where they say.
"""

from typing import Annotated, ClassVar, Final

import msgspec

from penstock.protocol.command import Answer, Request, Session


class BackupTaken(Answer, kw_only=True):
    path: str  # of the backup, which is whole


class TakeBackup(Request, kw_only=True, tag="BACKUP", omit_defaults=True):
    """Write a compressed copy of the present state, while serving."""

    answer: ClassVar[type[Answer]] = BackupTaken

    directory: Annotated[str, msgspec.Meta(pattern="^/")]  # both have their own working directory
    keep: Annotated[int, msgspec.Meta(ge=0)] = 0  # the newest so many stay there; 0: all

    async def call(self, session: Session) -> BackupTaken:
        session.principal.require_all("admin")
        return BackupTaken(path=await session.backup(self.directory, self.keep))


OWNING: Final[tuple[type[Request], ...]] = (TakeBackup,)
