"""Brings TCP clients to a broker over QUIC, by aioquic: ALPN `mqtt`, a connection with one bidirectional stream for each client.

quic_bridge.py PORT CAFILE; prints the TCP port on which it listens, and goes on until its input ends."""
import asyncio
import sys

from aioquic.asyncio.client import connect
from aioquic.quic.configuration import QuicConfiguration

port, cafile = int(sys.argv[1]), sys.argv[2]


async def copy(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


async def bridge(near_reader, near_writer):
    configuration = QuicConfiguration(is_client=True, alpn_protocols=["mqtt"], server_name="localhost")
    configuration.load_verify_locations(cafile)
    try:
        async with connect("127.0.0.1", port, configuration=configuration) as connection:
            far_reader, far_writer = await connection.create_stream()
            ways = [asyncio.create_task(copy(near_reader, far_writer)), asyncio.create_task(copy(far_reader, near_writer))]
            # Whoever ends first ends the connection, as with TCP.
            _, others = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for other in others:
                other.cancel()
    except ConnectionError:
        pass
    finally:
        near_writer.close()


async def main():
    server = await asyncio.start_server(bridge, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


asyncio.run(main())
