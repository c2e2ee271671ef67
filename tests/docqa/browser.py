"""Debian's Chromium without a window, driven over the WebDriver protocol (https://www.w3.org/TR/webdriver2/)."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import tempfile
import urllib.request
from contextlib import contextmanager

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--hide-scrollbars",
]


def is_there():
    """Whether Chromium and its driver are installed."""
    return all(shutil.which(name) for name in ("chromium", "chromedriver"))


class Browser:
    """A session; `call` is one command of the protocol."""

    def __init__(self, address):
        self._address = address
        self._session = ""

    def call(self, method, path, **values):
        body = json.dumps(values).encode() if method == "POST" else None
        request = urllib.request.Request(
            f"{self._address}/session{self._session}{path}", body, {"Content-Type": "application/json"}, method=method
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=120) as response:
            return json.load(response)["value"]

    def begin(self, profile):
        options = {"args": [*FLAGS, f"--user-data-dir={profile}"]}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        self._session = f"/{self.call('POST', '', capabilities={'alwaysMatch': wanted})['sessionId']}"

    def devtools(self, command, **parameters):
        return self.call("POST", "/goog/cdp/execute", cmd=command, params=parameters)

    def show(self, width, height, scheme="light"):
        """A screen of this size, in pixels, with a preference for light or dark."""
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                      mobile=width < 600)  # fmt: skip
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, path):
        self.call("POST", "/url", url=f"file://{path}")

    def run(self, script):
        """The value that the script returns."""
        return self.call("POST", "/execute/sync", script=script, args=[])

    def console(self):
        """What the console has said since the last call."""
        return self.call("POST", "/se/log", type="browser")

    def screenshot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("GET", "/screenshot")))


@contextmanager
def browser():
    """A browser with an empty profile; it and its driver are gone afterwards."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True)
        try:
            for line in driver.stdout:
                if found := re.search(r"started successfully on port (\d+)", line):
                    break
            session = Browser(f"http://127.0.0.1:{found[1]}")
            session.begin(profile)
            try:
                yield session
            finally:
                session.call("DELETE", "")
        finally:
            driver.terminate()
            driver.wait()
            driver.stdout.close()
