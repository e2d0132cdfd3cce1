"""The composition root: start, serving, shutdown; and the command that runs it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import ssl
import time

import aiohttp
import pytest
from aiohttp import web

from gateway.world import CHAT, MESSAGES, eventually, world
from outrider.app import build, looking_after, run, serving
from outrider.config import Config, LaneSection, PolicySection, ServerSection, UrlSection
from outrider.core import LaneState
from outrider.dispatch.learning import LearningStore, learning_key
from outrider.errors import ConfigError, PolicyError
from outrider.policy.learning import Learner
from outrider.runtimes.lane import Lane
from outrider.runtimes.scripted import ScriptedLane
from outrider.runtimes.scripted_replies import Fault, Reply
from processes import children_of, is_alive, read_until, start_command

EVENTS = (("Content-Type", "text/event-stream"),)
DELTA = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


def config(**server):
    return Config(server=ServerSection(**({"port": 0, "shutdown_grace_s": 0.2} | server)))


async def test_a_port_that_is_taken_is_a_configuration_error():
    """One line that names the address; what had started is stopped."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        lane = Lane("a", "http://127.0.0.1:9")
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            async with serving(config(port=port), lanes=[lane]):
                pass


async def test_a_wrong_policy_stops_the_start(tmp_path):
    """Before anything listens."""
    (tmp_path / "default.yaml").write_text("version: 1\nworkload: default\nrulez: []\n")
    wrong = Config(server=ServerSection(port=0), policy=PolicySection(directories=(tmp_path,)))
    with pytest.raises(PolicyError, match=r"default\.yaml:1:1: drafters: is missing"):
        async with serving(wrong, lanes=[]):
            pass


async def test_shutdown_waits_for_running_requests():
    """Within the grace, a stream ends as if nothing had happened; new connections are refused."""
    steps = (DELTA, 1.2, END)
    async with ScriptedLane(lambda _request: Reply(200, EVENTS, steps)) as scripted, aiohttp.ClientSession() as http:
        lane = Lane("a", scripted.url)
        async with serving(config(shutdown_grace_s=10), lanes=[lane]) as gateway:
            await asyncio.wait_for(lane.wait_until_ready(), 60)
            response = await http.post(gateway.url + CHAT, json={"messages": MESSAGES, "stream": True})
            reading = asyncio.create_task(response.read())
        assert (await reading).endswith(b"data: [DONE]\n\n")
        with pytest.raises(aiohttp.ClientConnectorError):
            await http.get(gateway.url + "/health")


async def test_shutdown_cancels_what_does_not_end_and_says_how_many(caplog):
    """After the grace the lane is told too."""
    async with (
        ScriptedLane(lambda _request: Reply(200, EVENTS, (DELTA, Fault.HANG))) as scripted,
        aiohttp.ClientSession() as http,
    ):
        lane = Lane("a", scripted.url)
        async with serving(config(shutdown_grace_s=0.1), lanes=[lane]) as gateway:
            await asyncio.wait_for(lane.wait_until_ready(), 60)
            responses = [
                await http.post(gateway.url + CHAT, json={"messages": MESSAGES, "stream": True}) for _ in range(2)
            ]
        assert "2 requests are cancelled" in caplog.text
        await eventually(lambda: len(scripted.disconnects) == 2 and len(scripted.aborted) == 2)
        for response in responses:
            response.close()


async def test_hurry_skips_the_grace():
    """A second signal does not wait."""
    async with (
        ScriptedLane(lambda _request: Reply(200, EVENTS, (DELTA, Fault.HANG))) as scripted,
        aiohttp.ClientSession() as http,
    ):
        lane = Lane("a", scripted.url)
        async with serving(config(shutdown_grace_s=60), lanes=[lane]) as gateway:
            await asyncio.wait_for(lane.wait_until_ready(), 60)
            response = await http.post(gateway.url + CHAT, json={"messages": MESSAGES, "stream": True})
            gateway.stop_at_once()
            began_s = time.monotonic()
        assert time.monotonic() - began_s < 50
        response.close()


async def test_client_sockets_send_at_once():
    """TCP_NODELAY is on, so that an event is not held back for the acknowledgement of the one before."""

    async def show(request):
        sock = request.transport.get_extra_info("socket")
        return web.Response(text=str(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)))

    app = build(config(), [Lane("a", "http://127.0.0.1:9")])
    app.router.add_get("/socket", show)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}/socket") as response:
        assert int(await response.text()) != 0
    await runner.cleanup()


async def test_two_lanes_share_the_load():
    """Requests go to the lane with fewer in flight."""
    hang = lambda _request: Reply(200, EVENTS, (DELTA, Fault.HANG))  # noqa: E731
    async with ScriptedLane(hang) as one, ScriptedLane(hang) as two, aiohttp.ClientSession() as http:
        lanes = [Lane("one", one.url), Lane("two", two.url)]
        async with serving(config(), lanes=lanes) as gateway:
            for lane in lanes:
                await asyncio.wait_for(lane.wait_until_ready(), 60)
            responses = [
                await http.post(gateway.url + CHAT, json={"messages": MESSAGES, "stream": True}) for _ in range(4)
            ]
            assert [response.headers["x-outrider-lane"] for response in responses] == ["one", "two", "one", "two"]
            for response in responses:
                response.close()
            await eventually(lambda: sum(lane.num_in_flight for lane in lanes) == 0)


async def test_a_request_during_a_lanes_outage_fails_typed_and_later_ones_succeed():
    """The lane breaks off its streams and refuses; when it is back, requests go through."""
    async with world(lambda _request: Reply(200, EVENTS, (DELTA, Fault.HANG))) as w:
        port = w.scripted.port
        response = await w.chat(stream=True)
        await response.content.readuntil(b"\n\n")
        await w.scripted.__aexit__(None, None, None)
        assert b'"code":"lane_failed"' in await response.read()
        await eventually(lambda: w.lane.state is LaneState.FAILED)
        async with ScriptedLane(port=port):
            await eventually(lambda: w.lane.is_ready)
            async with w.chat() as answer:
                assert answer.status == 200


async def test_run_serves_until_a_signal():
    """`on_ready` is called with the gateway; SIGTERM ends the serving and cancels it."""
    seen = []

    async def on_ready(gateway):
        async with aiohttp.ClientSession() as http, http.get(gateway.url + "/health") as response:
            seen.append(response.status)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(60)
        seen.append("not cancelled")

    lanes = (LaneSection(model="/no/such/model"),)
    settings = config().model_copy(update={"lanes": lanes})
    await asyncio.wait_for(run(settings, on_ready=on_ready), 60)
    assert seen == [200]


async def test_sighup_reads_policies_again(tmp_path):
    """The next request is decided by the new file; a wrong one is refused and the last good one stays."""
    policy = "version: 1\nworkload: %s\ndescription: a test\ndrafters: {}\n"
    file = tmp_path / "default.yaml"
    file.write_text(policy % "default")
    seen = []

    async def on_ready(gateway):
        (tmp_path / "more.yaml").write_text(policy % "more")
        os.kill(os.getpid(), signal.SIGHUP)
        await eventually(lambda: gateway.dispatcher.policies.workloads == ("default", "more"))
        file.write_text("rulez: 1\n")
        os.kill(os.getpid(), signal.SIGHUP)
        await eventually(lambda: b'outrider_reloads_total{result="refused"} 1.0' in gateway.metrics.render({}))
        seen.append(gateway.dispatcher.policies.workloads)
        os.kill(os.getpid(), signal.SIGTERM)

    settings = config().model_copy(
        update={"lanes": (LaneSection(model="/no/such/model"),), "policy": PolicySection(directories=(tmp_path,))}
    )
    await asyncio.wait_for(run(settings, on_ready=on_ready), 60)
    assert seen == [("default", "more")]


async def test_with_a_certificate_it_serves_https(tmp_path, certificate):
    """The address says so, and plain HTTP is not answered; a file that is no certificate stops the start."""
    trusting = ssl.create_default_context(cafile=str(certificate[0]))
    async with serving(config(tls_certificate=certificate[0], tls_key=certificate[1]), lanes=[]) as gateway:
        assert gateway.url.startswith("https://")
        async with aiohttp.ClientSession() as http:
            async with http.get(gateway.url + "/live", ssl=trusting) as response:
                assert response.status == 200
            with pytest.raises(aiohttp.ClientError):
                await http.get(gateway.url.replace("https", "http") + "/live")
    with pytest.raises(ConfigError, match="tls_certificate"):
        async with serving(config(tls_certificate=tmp_path / "none.pem"), lanes=[]):
            pass


async def test_the_command_shows_a_failing_lane_and_ends_on_ctrl_c(tmp_path):
    """The gateway is up while its lane fails, says why, and leaves no process behind."""
    process = await start_command(tmp_path, "--model", "/no/such/model")
    url = (await read_until(process.stderr, r"http://127\.0\.0\.1:\d+")).group()
    async with aiohttp.ClientSession() as http:
        async with http.get(url + "/health") as response:
            assert response.status == 200
        async with http.get(url + "/ready") as response:
            assert response.status == 503
    await read_until(process.stderr, "/no/such/model")
    children = children_of(process.pid)
    process.send_signal(signal.SIGINT)
    await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0
    assert (tmp_path / "runs.sqlite").is_file()
    await eventually(lambda: not any(map(is_alive, children)))


async def test_a_wrong_configuration_is_one_line(tmp_path):
    """No traceback, and a status that is not zero."""
    path = tmp_path / "config.yaml"
    path.write_text("server: {prot: 1}\n")
    process = await start_command(tmp_path, "--config", str(path))
    _, stderr = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode != 0
    assert b"server.prot" in stderr and b"Traceback" not in stderr


def test_log_of_a_lane_task_that_fails(caplog):
    """A fault in looking after a lane is in the log, not silent."""

    async def main():
        lane = Lane("a", "http://127.0.0.1:9")
        lane.url = 7  # no URL at all: the watch cannot handle it
        async with serving(config(), lanes=[lane]):
            await asyncio.sleep(0.1)

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    assert "not looked after" in caplog.text


async def test_what_is_learnt_is_kept_over_a_restart(tmp_path):
    """With a file configured, requests are recorded and decisions go on from what the last process learnt."""
    path = tmp_path / "learnt.sqlite"
    settings = Config(server=ServerSection(port=0), policy=PolicySection(learning=path))
    counts = []
    for _ in range(2):
        async with (
            ScriptedLane() as scripted,
            aiohttp.ClientSession() as http,
            serving(settings, lanes=[Lane("a", scripted.url)]) as gateway,
        ):
            await eventually(lambda gateway=gateway: gateway.pool.is_ready)
            async with http.post(gateway.url + CHAT, json={"messages": MESSAGES}) as response:
                assert response.status == 200
                await response.read()
            ledgers = gateway.dispatcher.policies.learner.ledgers
            counts.append(sum(ledger.num_decided for ledger in ledgers.values()))
    assert counts == [1, 2]
    store = LearningStore(path)
    assert len(list(store.records())) == 2
    store.close()


async def test_looking_after_lanes_leaves_what_was_learnt_alone(tmp_path):
    """It decides nothing, and may run beside the gateway that learns."""
    path = tmp_path / "learnt.sqlite"
    lanes = (UrlSection(name="a", kind="url", urls=("http://127.0.0.1:9",)),)
    settings = Config(policy=PolicySection(learning=path), lanes=lanes)
    key, learner = learning_key(settings), Learner()
    learner.ledger("code").num_decided = 5
    store = LearningStore(path)
    await store.save(learner, key)
    async with looking_after(settings, has_processes=False) as gateway:
        assert len(gateway.pool.lanes) <= 1
    assert store.load(key).ledgers["code"].num_decided == 5
    store.close()
