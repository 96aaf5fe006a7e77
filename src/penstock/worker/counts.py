"""What a worker has done so far."""

import msgspec


class Counts(msgspec.Struct, kw_only=True):
    claimed: int = 0
    completed: int = 0
    failed: int = 0  # attempts, the last ones of dead jobs included
    dead: int = 0
    timed_out: int = 0  # attempts that the store ended
    released: int = 0  # given back unspent
    lost: int = 0  # ended, cancelled or handed to others before this worker was done
    doubtful: int = (
        0  # told when nobody answered, and gone when the store could be asked; or refused
    )
    parked: int = 0  # of tasks that are not known here

    def __str__(self) -> str:
        said = [f"{count} {name}" for name, count in msgspec.structs.asdict(self).items() if count]
        return ", ".join(said).replace("_", " ") or "nothing claimed"
