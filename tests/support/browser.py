"""Browser: headless chromium, driven over the DevTools protocol, with nothing between it and the test.

    with Browser(folder) as browser:
        page = browser.open("http://127.0.0.1:8080/v1/demo")
        page.type("#value", "hello")
        page.click("#publish")
        page.wait_for("document.querySelectorAll('#records li').length === 1")
        page.screenshot(folder / "demo.png")

What a page writes to its console and the exceptions that nobody caught there are in `page.said`: a test that did not
expect them looks there. Nothing is fetched that the page does not ask for.
"""

import base64
import itertools
import json
import re
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from websockets.sync.client import ClientConnection, connect

from clients.registries import program

START_S_MAX = 60.0
ANSWER_S_MAX = 30.0
MESSAGE_BYTES_MAX = 32 * 2**20
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--window-size=1000,800",
    "--remote-debugging-port=0",
)


class PageError(AssertionError):
    """A script of the test failed in the page, or the browser refused a command."""


class Page:
    """One tab. Commands wait for their answers; what the page says meanwhile is collected in `said`."""

    def __init__(self, link: ClientConnection, session: str) -> None:
        self._link = link
        self._session = session
        self._ids = itertools.count(1)
        self.said: list[str] = []
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the DevTools protocol and its answer."""
        number = next(self._ids)
        message = {"id": number, "method": method, "params": parameters, "sessionId": self._session}
        self._link.send(json.dumps(message))
        while True:
            answer = json.loads(self._link.recv(ANSWER_S_MAX))
            if answer.get("id") == number and answer.get("sessionId") == self._session:
                if "error" in answer:
                    raise PageError(f"{method}: {answer['error']['message']}")
                return dict(answer["result"])
            self._take(answer)

    def _take(self, event: dict[str, Any]) -> None:
        if event.get("sessionId") != self._session:
            return  # Another tab, of an earlier test: its node is gone, and it says so.
        parameters = event.get("params", {})
        match event.get("method"):
            case "Runtime.consoleAPICalled":
                values = [str(each.get("value", each.get("description"))) for each in parameters["args"]]
                self.said.append(f"{parameters['type']}: {' '.join(values)}")
            case "Runtime.exceptionThrown":
                details = parameters["exceptionDetails"]
                told = details.get("exception", {}).get("description", details["text"])
                self.said.append(f"exception: {told}")
            case "Log.entryAdded":
                entry = parameters["entry"]
                self.said.append(f"{entry['level']}: {entry['text']} {entry.get('url', '')}")

    def open(self, url: str) -> None:
        answer = self.ask("Page.navigate", url=url)
        if answer.get("errorText"):
            raise PageError(f"{url}: {answer['errorText']}")
        self.wait_for("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """The value of an expression; a promise is waited for."""
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise PageError(f"{script}: {details.get('exception', {}).get('description', details['text'])}")
        return answer["result"].get("value")

    def wait_for(self, script: str, seconds_max: float = ANSWER_S_MAX) -> Any:
        """The expression's value as soon as it is true."""
        end = time.monotonic() + seconds_max
        while not (value := self.run(script)):
            if time.monotonic() > end:
                text = self.run("document.body.innerText.slice(0, 2000)")
                raise PageError(f"waited {seconds_max:.0f} s in vain for {script}; said {self.said}: {text}")
            time.sleep(0.05)
        return value

    def type(self, selector: str, text: str) -> None:
        """Type into an element as a person does: it gets the focus, its old text goes, keys follow."""
        self.run(
            f"(e => {{ e.focus(); e.select && e.select(); }})(document.querySelector({json.dumps(selector)}))"
        )
        self.ask("Input.insertText", text=text)

    def click(self, selector: str) -> None:
        """A real click on its middle, so that what covers an element or is disabled is noticed."""
        place = self.run(
            f"(e => {{ e.scrollIntoView({{block: 'center'}}); const r = e.getBoundingClientRect();"
            f" return [r.x + r.width / 2, r.y + r.height / 2]; }})(document.querySelector({json.dumps(selector)}))"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.ask(
                "Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1
            )

    def screenshot(self, path: Path) -> Path:
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"]))
        return path


class Browser:
    """One browser with a profile of its own in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log_path = folder / "chromium.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._links = ExitStack()
        self._link: ClientConnection | None = None

    def __enter__(self) -> Self:
        command = [program("chromium", "chromium"), *FLAGS, f"--user-data-dir={self._folder / 'profile'}"]
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen([*command, "about:blank"], stdout=log, stderr=log)
        try:
            address = self._wait(self._address)
            self._link = self._links.enter_context(connect(address, max_size=MESSAGE_BYTES_MAX, proxy=None))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._links.close()
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _address(self) -> str | None:
        found = re.search(r"DevTools listening on (ws://\S+)", self._log_path.read_text(errors="replace"))
        return found[1] if found else None

    def _wait(self, look: Callable[[], str | None]) -> str:
        assert self._process is not None
        end = time.monotonic() + START_S_MAX
        while (found := look()) is None:
            if self._process.poll() is not None or time.monotonic() > end:
                told = self._log_path.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"chromium did not come up: {told}")
            time.sleep(0.05)
        return found

    def open(self, url: str) -> Page:
        """A new tab at this address, loaded."""
        page = self._new_page()
        page.open(url)
        return page

    def _new_page(self) -> Page:
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        assert self._link is not None
        return Page(self._link, session)

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        assert self._link is not None
        self._link.send(json.dumps({"id": 0, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._link.recv(ANSWER_S_MAX))
            if answer.get("id") == 0 and "sessionId" not in answer:
                return dict(answer["result"])
