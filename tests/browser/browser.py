"""Drives Debian's chromium without a window, over the pipe of its debugging protocol. Python's own library only."""
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time


def find_chromium():
    return next((path for path in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if path), None)


class Browser:
    """One page. Everything that went wrong on it, or that it asked the network for, is in `errors` and `requests`."""

    def __init__(self, width=1400, height=900, dark=False):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser, self.write_end = os.pipe()
        self.read_end, from_browser = os.pipe()

        def connect():  # the protocol uses descriptors 3 and 4
            os.dup2(to_browser, 20)
            os.dup2(from_browser, 21)
            os.dup2(20, 3)
            os.dup2(21, 4)

        self.process = subprocess.Popen(
            [find_chromium(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--hide-scrollbars", "--no-first-run", "--disable-background-networking", "--disable-component-update",
             "--disable-extensions", "--force-device-scale-factor=1", f"--user-data-dir={self.folder.name}",
             "--remote-debugging-pipe", "about:blank"],
            preexec_fn=connect, close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.buffer, self.number, self.session = b"", 0, None
        self.errors, self.requests = [], []
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(domain + ".enable")
        self.resize(width, height)
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.write_end)
        os.close(self.read_end)
        self.folder.cleanup()

    def _message(self, deadline):
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.read_end], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError("chromium does not answer")
            piece = os.read(self.read_end, 1 << 20)
            if not piece:
                raise RuntimeError(f"chromium ended (exit code {self.process.poll()})")
            self.buffer += piece
        text, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(text)

    def _note(self, message):
        method, params = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.errors.append(str(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def call(self, method, seconds=60, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + seconds
        while True:
            answer = self._message(deadline)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self._note(answer)

    def resize(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def open(self, file, fragment="", seconds=60):
        self.errors, self.requests = [], []
        url = f"file://{os.path.abspath(file)}{fragment}"
        if self.value("location.protocol") == "file:":  # or a change of the fragment alone would not load anything
            self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", seconds, url=url)
        deadline = time.monotonic() + seconds
        while self.value("document.readyState + location.protocol", seconds) != "completefile:":
            if time.monotonic() > deadline:
                raise TimeoutError(f"{url} does not load")
            time.sleep(0.02)
        self.settle()

    def value(self, expression, seconds=60):
        """Of a JavaScript expression, as JSON; a promise is awaited."""
        result = self.call("Runtime.evaluate", seconds, expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails'].get('exception', {}).get('description')}")
        return result["result"].get("value")

    def settle(self):
        """Waits until what was asked for has been drawn."""
        self.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def hover(self, x, y):
        self.mouse("mouseMoved", x, y)
        self.settle()

    def click(self, x, y, count=1):
        for n in range(1, count + 1):
            self.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=n)
            self.mouse("mouseReleased", x, y, button="left", clickCount=n)
        self.settle()

    def drag(self, x0, y0, x1, y1, modifiers=0):
        self.mouse("mouseMoved", x0, y0, modifiers=modifiers)
        self.mouse("mousePressed", x0, y0, button="left", buttons=1, clickCount=1, modifiers=modifiers)
        for step in (0.5, 1):
            self.mouse("mouseMoved", x0 + (x1 - x0) * step, y0 + (y1 - y0) * step, button="left", buttons=1,
                       modifiers=modifiers)
        self.mouse("mouseReleased", x1, y1, button="left", clickCount=1, modifiers=modifiers)
        self.settle()

    def wheel(self, x, y, delta, modifiers=0):
        self.mouse("mouseWheel", x, y, deltaX=0, deltaY=delta, modifiers=modifiers)
        self.settle()

    def key(self, key):
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)
        self.settle()

    def type(self, text):
        self.call("Input.insertText", text=text)
        self.settle()

    def screenshot(self, file):
        with open(file, "wb") as out:
            out.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
