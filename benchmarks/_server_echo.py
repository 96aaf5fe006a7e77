"""The raw limit of a server: an answer of the size that was asked for, for every frame.

    python -m benchmarks._server_echo

Prints its port. A frame is four bytes of length and that many of content, of which the first four
say how long the answer is to be. Nothing is decoded, nothing is done.
"""

import asyncio
from typing import cast

import uvloop


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own is no subclass
        self._pieces = bytearray()

    def data_received(self, data: bytes) -> None:
        self._pieces += data
        pieces, at, out = self._pieces, 0, []
        while len(pieces) - at >= 8:
            end = at + 4 + int.from_bytes(pieces[at : at + 4], "big")
            if end > len(pieces):
                break
            size = int.from_bytes(pieces[at + 4 : at + 8], "big")
            out.append(size.to_bytes(4, "big") + bytes(size))
            at = end
        if at:
            del pieces[:at]
            self._transport.write(b"".join(out))


async def main() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Echo, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
