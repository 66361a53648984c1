"""A real browser for tests: headless Chromium, spoken to in the W3C's WebDriver protocol through Debian's chromedriver."""

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
MISSING = "needs chromium and chromedriver (Debian: chromium, chromium-driver)"
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --force-device-scale-factor=1"
).split()
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the protocol's key for a reference to an element


class Browser:
    """One window. Values go in and out as JSON."""

    def __init__(self, address: str) -> None:
        self.address = address

    def ask(self, method: str, path: str, body: dict | None = None):
        data = None if method == "GET" else json.dumps(body or {}).encode()
        request = urllib.request.Request(self.address + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"]) from None

    def open(self, path) -> None:
        self.ask("POST", "/url", {"url": f"file://{path}"})

    def run(self, script: str, *args):
        return self.ask("POST", "/execute/sync", {"script": script, "args": list(args)})

    def resize(self, width: int, height: int) -> None:
        """The page's own size in CSS pixels (a window has a least width, a device has not)."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.devtools("Emulation.setDeviceMetricsOverride", metrics)

    def media(self, *, scheme: str = "light", kind: str = "screen") -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.devtools("Emulation.setEmulatedMedia", {"media": kind, "features": features})

    def devtools(self, command: str, parameters: dict):
        return self.ask("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def press(self, *keys: str) -> None:
        actions = [a for key in keys for a in ({"type": "keyDown", "value": key}, {"type": "keyUp", "value": key})]
        self.ask("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def wait(self, script: str, seconds: float = 20):
        """Until the script gives something true."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if found := self.run(f"return {script}"):
                return found
            time.sleep(0.05)
        raise AssertionError(f"never true in {seconds} s: {script}")

    def complaints(self) -> list[str]:
        """What stands in the console since the last look, but for pure information."""
        found = self.ask("POST", "/se/log", {"type": "browser"})
        return [entry["message"] for entry in found if entry["level"] in ("WARNING", "SEVERE")]

    def picture(self, path) -> None:
        """A screenshot of the whole page."""
        size = self.devtools("Page.getLayoutMetrics", {})["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.devtools("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        path.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self) -> bytes:
        return base64.b64decode(self.ask("POST", "/print", {"background": True, "page": {"width": 21, "height": 29.7}}))


@contextmanager
def browser(profile):
    """A fresh browser whose profile lies in the folder `profile`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    driver = subprocess.Popen([DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    root = Browser(f"http://127.0.0.1:{port}")
    try:
        for _ in range(100):
            try:
                if root.ask("GET", "/status")["ready"]:
                    break
            except OSError:
                time.sleep(0.1)
        chrome = {"binary": CHROMIUM, "args": [*FLAGS, f"--user-data-dir={profile}", "--window-size=1280,900"]}
        wanted = {"goog:chromeOptions": chrome, "goog:loggingPrefs": {"browser": "ALL"}}
        session = root.ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        window = Browser(f"{root.address}/session/{session}")
        yield window
        window.ask("DELETE", "")
    finally:
        driver.terminate()
        driver.wait(timeout=20)
