"""What tests from end to end share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from outrider.app import Gateway, serving
from outrider.config import Config, LaneSection, RunsSection, ServerSection


@pytest.fixture
async def gateway_with_runs(toy_folder: Path, tmp_path: Path) -> AsyncIterator[Gateway]:
    """A gateway that keeps runs, before the embedded engine with the toy checkpoint."""
    lanes = (LaneSection(model=str(toy_folder), served_model_name="toy"),)
    runs = RunsSection(url=f"sqlite+aiosqlite:///{tmp_path}/runs.sqlite", lease_s=1)
    async with serving(Config(server=ServerSection(port=0, shutdown_grace_s=0), lanes=lanes, runs=runs)) as gateway:
        await asyncio.wait_for(gateway.pool.lanes[0].wait_until_ready(), 60)
        yield gateway
