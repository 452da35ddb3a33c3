"""A headless Chromium for tests: Debian's packages chromium and chromium-driver, driven by selenium.

Where there is none the test is skipped; with CI set it fails, so that a broken CI is not taken for a green one.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")


class Browser:
    """One page; `driver` is selenium's."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def emulate(self, *, scheme: str = "light", width: int = 1280, height: int = 900) -> None:
        """A window of this size, and what the user prefers."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def run(self, script: str, *arguments: object) -> Any:
        """What JavaScript returns."""
        return self.driver.execute_script(script, *arguments)

    def text(self, selector: str) -> str:
        return str(self.run("return document.querySelector(arguments[0]).textContent", selector))

    def texts(self, selector: str) -> list[str]:
        return list(self.run("return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)", selector))

    def value(self, selector: str) -> float:
        return float(self.run("return document.querySelector(arguments[0]).dataset.value", selector))

    def until(self, script: str, *arguments: object, seconds: float = 20) -> None:
        """Waits until JavaScript returns something true."""
        from selenium.webdriver.support.wait import WebDriverWait

        WebDriverWait(self.driver, seconds, 0.05).until(lambda _: self.run(script, *arguments), script)

    def errors(self) -> list[str]:
        """What the console has told since the last call, violations of the page's policy among it."""
        return [f"{entry['level']}: {entry['message']}" for entry in self.driver.get_log("browser")]

    def requested(self) -> set[str]:
        """Scheme, host and port of every request since the last call; a page's inline data needs none."""
        origins = set()
        for entry in self.driver.get_log("performance"):
            told = json.loads(entry["message"])["message"]
            if told["method"] == "Network.requestWillBeSent" and told["params"]["documentURL"].startswith("http"):
                url = urlsplit(told["params"]["request"]["url"])
                if url.scheme != "data":
                    origins.add(f"{url.scheme}://{url.netloc}")
        return origins

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        size = self.run("return [document.documentElement.clientWidth, document.documentElement.scrollHeight]")
        self.run("return window.dispatchEvent(new Event('resize'))")
        clip = {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        path.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser with a profile of its own."""
    browser = next((found for name in _BROWSERS if (found := shutil.which(name))), None)
    driver_path = shutil.which("chromedriver")
    if browser is None or driver_path is None:
        reason = "this test needs chromium and chromedriver (apt-get install chromium chromium-driver)"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-first-run"):
        options.add_argument(argument)
    options.add_argument("--disable-background-networking")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(driver_path))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
