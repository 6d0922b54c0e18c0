"""A headless Chromium for tests, driven over its DevTools websocket without a separate driver.

It uses its own profile, resolves only loopback names, and its whole process group is killed at
the end. `errors` lists errors in the page, `requests` every requested address.
"""

import asyncio
import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
import urllib.request
from contextlib import AbstractContextManager
from pathlib import Path

from tornado.websocket import websocket_connect

from tests.waiting import until

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = """--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run
 --disable-background-networking --disable-component-update --disable-sync --disable-extensions
 --disable-features=IsolateSandboxedIframes --hide-scrollbars --remote-debugging-port=0""".split()
OFFLINE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"


class Browser(AbstractContextManager):
    """One tab."""

    def __init__(self):
        self.errors = []
        self.requests = []
        self._last = 0
        self._profile = Path(tempfile.mkdtemp())
        self._loop = asyncio.new_event_loop()
        self._process = subprocess.Popen(
            [CHROMIUM, *FLAGS, OFFLINE, f"--user-data-dir={self._profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            self._loop.run_until_complete(self._connect())
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
            self.look(1280, 800)
        except BaseException:
            self.__exit__()
            raise

    async def _connect(self):
        file = self._profile / "DevToolsActivePort"
        until(lambda: file.exists() and len(file.read_text().splitlines()) == 2)
        port = file.read_text().split()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as reply:
            url = next(
                tab["webSocketDebuggerUrl"] for tab in json.load(reply) if tab["type"] == "page"
            )
        self._socket = await websocket_connect(url, max_message_size=1 << 30)

    def call(self, method: str, **params) -> dict:
        """Run a DevTools command and record events that arrive in the meantime."""
        self._last += 1
        message = json.dumps({"id": self._last, "method": method, "params": params})
        return self._loop.run_until_complete(asyncio.wait_for(self._ask(message), 120))

    async def _ask(self, message: str) -> dict:
        await self._socket.write_message(message)
        while True:
            reply = json.loads(await self._socket.read_message())
            if reply.get("id") == self._last:
                break
            self._note(reply["method"], reply["params"])
        assert "error" not in reply, reply
        return reply["result"]

    def _note(self, kind: str, about: dict) -> None:
        """Record the errors and requests of the page."""
        is_console_error = kind == "Runtime.consoleAPICalled" and about["type"] == "error"
        if is_console_error or kind in ("Runtime.exceptionThrown", "Log.entryAdded"):
            self.errors.append(about)
        elif kind == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])

    def look(self, width: int, height: int, dark: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str, ready: str = "performance.getEntriesByName('drawn').length") -> None:
        """Load a page from about:blank and wait until it is ready."""
        for address in ("about:blank", url):
            self.call("Page.navigate", url=address)
        until(lambda: self.js(f"location.href !== 'about:blank' && {ready}") or self.errors)
        assert not self.errors, self.errors

    def js(self, expression: str, **where):
        """Return the value of an expression in the page; promises are awaited."""
        where |= {"returnByValue": True, "awaitPromise": True}
        result = self.call("Runtime.evaluate", expression=expression, **where)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def point(self, element: str, click: bool = False, across: float = 0.5) -> None:
        """Move the mouse to an element, at `across` of its width; optionally click."""
        x, y = self.js(
            f"(() => {{ const box = ({element}).getBoundingClientRect(); "
            f"return [box.x + {across} * box.width, box.y + box.height / 2]; }})()"
        )
        for kind in ("mouseMoved", *(("mousePressed", "mouseReleased") if click else ())):
            self.call(
                "Input.dispatchMouseEvent",
                type=kind,
                x=x,
                y=y,
                button="left",
                clickCount=int(click),
            )

    def keys(self, *keys: str) -> None:
        for key in keys:
            for kind in ("keyDown", "keyUp"):
                text = key if len(key) == 1 and kind == "keyDown" else ""
                self.call("Input.dispatchKeyEvent", type=kind, key=key, text=text)

    def screenshot(self, path: str | Path) -> None:
        Path(path).write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def __exit__(self, *error):
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._loop.close()
        shutil.rmtree(self._profile, ignore_errors=True)
