"""A page in headless Chromium, over the DevTools protocol: what it shows and which addresses it asks for."""

import json
import shutil
import subprocess
import time
from pathlib import Path

import websocket

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--remote-allow-origins=*"]


class Page:
    """One tab. Use as a context manager; `profile` is an empty folder for the browser's own files."""

    def __init__(self, profile: Path) -> None:
        self.profile = profile
        self.events: list[dict] = []
        self.last_id = 0

    def __enter__(self) -> "Page":
        command = [
            CHROMIUM,
            *FLAGS,
            f"--user-data-dir={self.profile}",
            "--remote-debugging-port=0",
            "about:blank",
        ]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            port = self._port(time.monotonic() + 60)
            browser = websocket.create_connection(f"ws://127.0.0.1:{port[0]}{port[1]}", timeout=60)
            self.socket, self.session = browser, None
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Network", "Page", "Runtime"):
                self.call(f"{domain}.enable")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(timeout=30)

    def _port(self, deadline: float) -> tuple[str, str]:
        """(port, path) that the browser wrote down once it listens."""
        note = self.profile / "DevToolsActivePort"
        while time.monotonic() < deadline:
            if note.is_file() and len(lines := note.read_text("utf-8").split()) == 2:
                return lines[0], lines[1]
            time.sleep(0.1)
        raise TimeoutError("Chromium did not start")

    def call(self, method: str, **params: object) -> dict:
        """Send one command and return its result; events that arrive meanwhile are kept."""
        self.last_id += 1
        message = {"id": self.last_id, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        self.socket.send(json.dumps(message))
        while True:
            answer = json.loads(self.socket.recv())
            if answer.get("id") == self.last_id:
                return answer["result"]
            self.events.append(answer)

    def open(self, path: Path, until: str, seconds: float = 60) -> bool:
        """Open a file and wait until a JavaScript expression is true. Returns whether it became true."""
        self.call("Page.navigate", url=path.as_uri())
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.call("Runtime.evaluate", expression=until)["result"].get("value"):
                return True
            time.sleep(0.2)
        return False

    def requests(self) -> set[str]:
        """Addresses that the page asked for so far."""
        sent = [
            event["params"] for event in self.events if event.get("method") == "Network.requestWillBeSent"
        ]
        return {params["request"]["url"] for params in sent}

    def errors(self) -> list[dict]:
        """Uncaught JavaScript errors so far."""
        return [event["params"] for event in self.events if event.get("method") == "Runtime.exceptionThrown"]
