"""Connections to lanes: framing, reuse, limits and what breaks them, against servers that speak bytes."""

from __future__ import annotations

import asyncio
import re
import ssl
from contextlib import asynccontextmanager, suppress

import pytest

from outrider.runtimes.connections import Connections, Request, begin, origin_of

OK = b"HTTP/1.1 200 OK\r\n"
#: The server closes behind these.
_ENDS = re.compile(rb"(?i)connection: close|OK\r\n\r\n")


@asynccontextmanager
async def server(*answers, tls=None):
    """Writes the next answer to each request, in parts or whole, and closes behind some. Gives URL and requests."""
    left, asked, writers = list(answers), [], []

    async def serve(reader, writer):
        writers.append(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while left:
                asked.append(await reader.readuntil(b"\r\n\r\n"))
                answer = left.pop(0)
                for part in answer if isinstance(answer, tuple) else (answer,):
                    writer.write(part)
                    await asyncio.sleep(0.01)
                if answer == b"" or _ENDS.search(b"".join(answer) if isinstance(answer, tuple) else answer):
                    break
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls) as listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", asked
        for writer in writers:
            if not writer.is_closing():
                writer.transport.abort()
        await asyncio.sleep(0.02)


@asynccontextmanager
async def pool(keep_alive_s=4.0):
    connections = Connections(keep_alive_s=keep_alive_s, connect_timeout_s=1.0)
    yield connections
    connections.close()
    await asyncio.sleep(0)


async def ask(connections, url):
    """Status, body and whether the connection had been used."""
    connection = await connections.take(url)
    try:
        begin(connection, url, Request("/a"))
        await connection.head()
        return connection.status, await connection.read_all(), connection.is_reused
    finally:
        connections.give_back(url, connection)


@pytest.mark.parametrize(
    ("answer", "is_reused"),
    [
        (OK + b"Content-Length: 2\r\n\r\nhi", True),
        ((OK + b"Transfer-Encoding: chunked\r\n\r\n1\r", b"\nh\r\n1\r\ni\r\n0\r\n", b"\r\n"), True),
        ((b"HTTP/1.1 100 Continue\r\n\r\n", OK + b"Content-Length: 2\r\n\r\nhi"), True),
        ((OK + b"Content-Length: 2\r\nConnection: close\r\n\r\nhi",), False),
        ((OK + b"Content-Length: 2\r\n\r\nhi", b"more"), False),
        (OK + b"\r\nhi", False),
    ],
    ids=["length", "chunks", "continue", "close", "too long", "no length"],
)
async def test_a_connection_is_used_again_where_both_keep_it(answer, is_reused):
    """Whatever the framing; never after bytes that nobody asked for."""
    async with server(answer, OK + b"Content-Length: 0\r\n\r\n") as (url, _), pool() as connections:
        assert await ask(connections, url) == (200, b"hi", False)
        await asyncio.sleep(0.05)
        assert await ask(connections, url) == (200, b"", is_reused)


async def test_an_answer_that_ends_by_a_reset_is_not_whole():
    """Without a length, only an orderly end is an end."""
    async with server((OK + b"Connection: keep-alive\r\n\r\nhi",)) as (url, _), pool() as connections:
        connection = await connections.take(url)
        begin(connection, url, Request("/a"))
        await connection.head()
        assert await connection.read() == b"hi"
        connection.connection_lost(ConnectionResetError("reset"))
        with pytest.raises(ConnectionError, match="reset"):
            await connection.read()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"garbage\r\n\r\n",
        (OK + b"Content-Length: 9\r\nConnection: close\r\n\r\nhi",),
        (OK + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n2\r\nhi\r\n",),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n", b"no chunk"),
        OK + b"".join(b"x-%d: %s\r\n" % (i, b"v" * 1000) for i in range(80)),
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    ],
    ids=["closed", "garbage", "cut", "cut chunks", "no chunk", "endless head", "upgrade"],
)
async def test_what_is_no_whole_answer_is_an_error(answer):
    """Never a short body that looks whole, and nothing of it is used again."""
    async with server(answer) as (url, _), pool() as connections:
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(ask(connections, url), 60)


async def test_what_is_idle_too_long_is_closed():
    """Before the lane would close it under a request."""
    good = OK + b"Content-Length: 0\r\n\r\n"
    async with server(good, good) as (url, _), pool(keep_alive_s=0.02) as connections:
        await ask(connections, url)
        await asyncio.sleep(0.05)
        assert await ask(connections, url) == (200, b"", False)


async def test_a_reader_that_is_slow_holds_the_lane_up():
    """Unread bytes are bounded, and none is lost."""
    size = 8 * 1024 * 1024
    async with server(OK + b"Content-Length: %d\r\n\r\n" % size + bytes(size)) as (url, _), pool() as connections:
        connection = await connections.take(url)
        begin(connection, url, Request("/a"))
        await connection.head()
        await asyncio.sleep(0.1)
        first = await connection.read()
        assert len(first) < 2 * 1024 * 1024
        assert len(first) + len(await connection.read_all()) == size
        connections.give_back(url, connection)


async def test_the_head_says_what_it_must():
    """The URL's prefix and credentials; no header can smuggle in another."""
    good = OK + b"Content-Length: 0\r\n\r\n"
    async with server(good) as (url, asked), pool() as connections:
        base = url.replace("//", "//me:pw@") + "/under"
        await ask(connections, base)
        assert asked[0].startswith(b"GET /under/a HTTP/1.1\r\nHost: 127.0.0.1:")
        assert b"Authorization: Basic bWU6cHc=\r\n" in asked[0]
        connection = await connections.take(url)
        with pytest.raises(ValueError, match="line end"):
            begin(connection, url, Request("/a", headers={"x": "1\r\ny: 2"}))
        connection.close()
    with pytest.raises(ValueError, match="no server"):
        origin_of("/nowhere")


async def test_a_server_without_tls_is_not_spoken_to_over_it():
    """The handshake fails; it is not answered in plain."""
    async with server(b"garbage") as (url, _), pool() as connections:
        with pytest.raises((ssl.SSLError, ConnectionError, TimeoutError)):
            await connections.take(url.replace("http:", "https:"))


async def test_over_tls_a_server_must_prove_who_it_is(certificate, monkeypatch):
    """One whose certificate is trusted on this machine is spoken to, and its connection used again."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    good = OK + b"Content-Length: 2\r\n\r\nhi"
    async with server(good, good, tls=context) as (url, _):
        url = url.replace("http:", "https:")
        async with pool() as connections:
            with pytest.raises(ssl.SSLCertVerificationError):
                await connections.take(url)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        async with pool() as connections:
            assert await ask(connections, url) == (200, b"hi", False)
            assert await ask(connections, url) == (200, b"hi", True)


async def test_paths_of_a_server_share_its_connections():
    """Whatever the URL names beside the server."""
    good = OK + b"Content-Length: 0\r\n\r\n"
    async with server(good, good) as (url, _), pool() as connections:
        await ask(connections, url + "/ready")
        assert await ask(connections, url + "/metrics") == (200, b"", True)


async def test_idle_connections_of_a_server_that_is_asked_no_more_are_closed():
    """When a connection to another one is made, once they are old."""
    good = OK + b"Content-Length: 0\r\n\r\n"
    async with server(good, good) as (one, _), server(good) as (other, _), pool(keep_alive_s=0.02) as connections:
        connection = await connections.take(one)
        begin(connection, one, Request("/a"))
        await connection.read_all()
        connections.give_back(one, connection)
        await asyncio.sleep(0.05)
        assert connection.is_open
        await ask(connections, other)
        assert not connection.is_open
