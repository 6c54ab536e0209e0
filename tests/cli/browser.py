# SPDX-License-Identifier: Apache-2.0
"""Drives a headless Chromium over its debugging pipe: pages, scripts, the mouse and the keyboard, and screenshots."""

import base64
import json
import os
import select
import shlex
import signal
import subprocess
import tempfile
import time


def browser_profile():
    """A temporary folder for a Browser. What Chromium has started may live a little longer, and write there while the folder is removed."""
    return tempfile.TemporaryDirectory(prefix="penstock-test-", ignore_cleanup_errors=True)


class Browser:
    def __init__(self, profile, width=1400, height=900):
        """`profile`: an empty folder for what it writes."""
        command = [
            "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
            f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank",
        ]  # fmt: skip
        to_read, self.to_write = os.pipe()
        self.to_read, to_write = os.pipe()
        # The pipe's ends are file descriptors 3 and 4 for Chromium.
        self.process = subprocess.Popen(
            ["bash", "-c", f"exec 3<&{to_read} 4>&{to_write}; exec {shlex.join(command)}"],
            pass_fds=[to_read, to_write],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_read)
        os.close(to_write)
        self.buffer = b""
        self.number = 0
        self.session = None
        page = self.call("Target.createTarget", url="about:blank")
        self.session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        self.call("Page.enable")
        self.resize(width, height)

    def resize(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def close(self):
        try:
            self.session = None
            self.call("Browser.close", seconds=10)
            self.process.wait(10)
        except (OSError, TimeoutError, subprocess.TimeoutExpired):
            os.killpg(self.process.pid, signal.SIGKILL)  # its own group: chromium and what it started
            self.process.wait()
        os.close(self.to_write)
        os.close(self.to_read)

    def receive(self, deadline):
        while b"\0" not in self.buffer:
            if not select.select([self.to_read], [], [], max(0, deadline - time.monotonic()))[0]:
                raise TimeoutError("Chromium does not answer")
            part = os.read(self.to_read, 1 << 20)
            if not part:
                raise ConnectionError("Chromium has ended")
            self.buffer += part
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, seconds=60, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to_write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + seconds
        while (answer := self.receive(deadline)).get("id") != self.number:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def evaluate(self, script):
        """The script's value; promises are waited for."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", script))
        return answer["result"].get("value")

    def open(self, path, dark=False, seconds=60):
        """Returns when the page says that it is ready, or that it failed."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.call("Page.navigate", url=path.resolve().as_uri())
        deadline = time.monotonic() + seconds
        while not self.evaluate("document.readyState === 'complete' && Boolean(document.documentElement.dataset.ready || document.documentElement.dataset.errors)"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{path} is not ready")
            time.sleep(0.02)

    def mouse(self, kind, x, y, **more):
        """kind: mouseMoved, mousePressed, mouseReleased, mouseWheel."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def press(self, key):
        for kind in ["keyDown", "keyUp"]:
            self.call("Input.dispatchKeyEvent", type=kind, key=key, text=key if len(key) == 1 and kind == "keyDown" else "")

    def settle(self):
        """After the next drawn frame."""
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
