"""Everybody who is a burden to a server, in a process of their own that does as it is told.

    python -m benchmarks._server_crowd TCP-PORT HTTP-PORT

It reads a word a line and answers each with `done`. `come`: 500 clients that say a byte a second each,
1,000 that wait for jobs, some that claim or watch and never read. `vanish`: from now on, too, one
after the other asks for much and is gone; `stay`: no more. `go`: all of them leave.
"""

import asyncio
import os
import sys
from typing import Final

import uvloop

from tests.server.hostile.storm import SHARES, Storm
from tests.server.hostile.wire import Address, Client

DRIP_S: Final = 1 / SHARES  # so that each of the slow ones says a byte a second
VANISH_S: Final = 0.05


class Crowd:
    def __init__(self, tcp: Address, http: Address) -> None:
        self._tcp = tcp
        self._http = http
        self._storm = Storm(tcp, http)
        self._harm: list[asyncio.Task[None]] = []

    async def come(self) -> None:
        self._storm = Storm(self._tcp, self._http)
        async with await Client.to(self._tcp) as stock:
            await self._storm.begin(stock)
        self._harm.append(asyncio.create_task(self._drip()))

    async def vanish(self) -> None:
        self._harm.append(asyncio.create_task(self._vanish()))

    async def stay(self) -> None:
        await self._no_more(self._harm[1:])
        del self._harm[1:]

    async def go(self) -> None:
        await self._no_more(self._harm)
        self._harm.clear()
        await self._storm.end()

    async def _drip(self) -> None:
        while True:
            self._storm.drip()
            await asyncio.sleep(DRIP_S)

    async def _vanish(self) -> None:
        number = 0
        while True:
            await self._storm.vanish(number)
            number += 1
            await asyncio.sleep(VANISH_S)

    async def _no_more(self, harm: list[asyncio.Task[None]]) -> None:
        for task in harm:
            task.cancel()
        for result in await asyncio.gather(*harm, return_exceptions=True):
            if not isinstance(result, asyncio.CancelledError):
                raise RuntimeError("the crowd ended by itself") from result


async def main() -> None:
    tcp, http = (("127.0.0.1", int(port)) for port in sys.argv[1:])
    crowd = Crowd(tcp, http)
    words = {"come": crowd.come, "vanish": crowd.vanish, "stay": crowd.stay, "go": crowd.go}
    while word := (await asyncio.to_thread(sys.stdin.readline)).strip():
        await words[word]()
        print("done", flush=True)


if __name__ == "__main__":
    # Not on the core that server and client share: what it does itself is nobody's latency.
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
