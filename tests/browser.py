"""Pages opened in a real browser: Debian's Chromium, driven by playwright, without a network."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import Browser, Page, sync_playwright

from not_run import not_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
#: Widths of a desk and of a phone, in pixels.
DESK, PHONE = 1280, 390


@dataclass(slots=True)
class Opened:
    """A page, and what it asked for and complained about."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def see(self, script: str) -> Any:
        """The value of a JavaScript expression in the page."""
        return self.page.evaluate(script)

    def shoot(self, path: Path) -> None:
        self.page.screenshot(path=path, full_page=True)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Started; not run where there is none."""
    if CHROMIUM is None:
        not_run("reports in a real browser: there is no Chromium; `make browser` installs Debian's")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()


@contextmanager
def opened(
    browser: Browser, file: Path, width: int = DESK, scheme: Literal["light", "dark"] = "light"
) -> Iterator[Opened]:
    """The file in a window so wide."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
    found = Opened(context.new_page())
    found.page.on("console", lambda message: found.complaints.append(f"{message.type}: {message.text}"))
    found.page.on("pageerror", lambda error: found.complaints.append(str(error)))
    found.page.on("dialog", lambda dialog: found.complaints.append(f"dialog: {dialog.message}"))
    found.page.on("request", lambda request: found.requests.append(request.url))
    found.page.goto(file.as_uri())
    yield found
    context.close()
