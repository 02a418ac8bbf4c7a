"""A real Chromium, driven over the pipe of its DevTools protocol: keys, clicks, media, paper, and all that it complained of."""

import base64
import json
import os
import select
import subprocess
import time

from tools import system_packages

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--host-resolver-rules=MAP * ~NOTFOUND"),
)
PATIENCE_S = 120  # a machine may be busy; nothing is measured by this
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32}  # with their virtual key codes
ON_PIPES = 'exec "$@" 3<&0 4>&1 0</dev/null 1>&2'  # where `--remote-debugging-pipe` reads and writes


class Browser:
    """One process for many tabs; `close` ends it."""

    def __init__(self, folder):
        binary = system_packages.browser()
        assert binary, "no browser here: a test without the fixture `browser` says needs(chromium)"
        command = ["sh", "-c", ON_PIPES, "sh", binary, *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={folder / 'profile'}"]
        with (folder / "browser.log").open("wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        self.folder, self._number, self._unread, self.events = folder, 0, b"", []

    def call(self, method, session="", **parameters):
        """Ask, and return the answer; what happens meanwhile is kept in `events`."""
        self._number += 1
        asked = {"id": self._number, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        self.process.stdin.write(json.dumps(asked).encode() + b"\0")
        self.process.stdin.flush()
        while (answer := self._next()).get("id") != asked["id"]:
            self.events.append(answer)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def wait(self, method, session):
        """Until this has happened in a tab."""
        while not any(one.get("method") == method and one.get("sessionId") == session for one in self.events):
            self.events.append(self._next())

    def _next(self):
        until_s = time.monotonic() + PATIENCE_S
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0, until_s - time.monotonic()))
            read = os.read(self.process.stdout.fileno(), 2**20) if ready else b""
            assert read, f"the browser said nothing more: {(self.folder / 'browser.log').read_text()[-500:]}"
            self._unread += read
        message, self._unread = self._unread.split(b"\0", 1)
        return json.loads(message)

    def open(self, page, **how):
        """A tab that shows a page."""
        path = self.folder / "report.html"
        path.write_text(page, encoding="utf-8")
        return Tab(self, path, **how)

    def close(self):
        self.call("Browser.close")
        self.process.communicate(timeout=PATIENCE_S)


class Tab:
    """A file as a page in light or dark, so and so wide, with JavaScript or without."""

    def __init__(self, browser, path, *, scheme="light", width=1280, script=True):
        self.browser = browser
        self.url = path.as_uri()
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self.call("Page.navigate", url=self.url)
        browser.wait("Page.loadEventFired", self.session)

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def ask(self, expression):
        """The value of JavaScript of ours, which the policy of a page does not hinder."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True, userGesture=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def dom(self):
        return self.ask("document.documentElement.outerHTML")

    def press(self, key):
        """One key, down and up."""
        text = {"Enter": "\r", " ": " "}.get(key, "")
        for kind in ("keyDown" if text else "rawKeyDown", "keyUp"):
            more = {"text": text} if kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=KEYS[key], **more)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def paper(self):
        """The page as PDF."""
        return base64.b64decode(self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=True)["data"])

    def picture(self, path):
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    @property
    def complaints(self):
        """Return the messages of the console, and each address that was requested."""
        self.ask("0")
        said = []
        for one in (event for event in self.browser.events if event.get("sessionId") == self.session):
            about = one["params"]
            if one["method"] == "Log.entryAdded":
                said.append(about["entry"]["text"])
            elif one["method"] in {"Runtime.consoleAPICalled", "Runtime.exceptionThrown"}:
                said.append(json.dumps(about))
            elif one["method"] == "Network.requestWillBeSent" and about["documentURL"] != about["request"]["url"]:
                said.append(about["request"]["url"])
        return said
