"""A Hub on the loopback interface: the few answers that inspecting and downloading a model need."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass(slots=True)
class Hub:
    """What the server has, and what it was asked for."""

    repositories: dict[str, Path]
    gated: frozenset[str] = frozenset()
    served: dict[str, int] = field(default_factory=dict)
    """file → bytes that were sent of it"""
    url: str = ""


@contextmanager
def hub(repositories: dict[str, Path], *, gated: frozenset[str] = frozenset()) -> Iterator[Hub]:
    """Serve the folders under their ids."""
    state = Hub(repositories=repositories, gated=gated)

    class Handler(_Handler):
        hub = state

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = unquote(urlparse(self.path).path)
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            self._api("/".join(parts[2:4]), parts[4:], body)
        elif len(parts) > 4 and parts[2] == "resolve":
            self._file("/".join(parts[:2]), parts[3], "/".join(parts[4:]), body)
        else:
            self._error(404, "EntryNotFound")

    def _known(self, id: str, revision: str) -> Path | None:
        if id not in self.hub.repositories:
            self._error(401, "RepoNotFound")
        elif id in self.hub.gated:
            self._error(403, "GatedRepo")
        elif revision not in ("main", COMMIT):
            self._error(404, "RevisionNotFound")
        else:
            return self.hub.repositories[id]
        return None

    def _api(self, id: str, rest: list[str], body: bool) -> None:
        revision = rest[1] if len(rest) > 1 else "main"
        folder = self._known(id, revision)
        if folder is None:
            return
        files = [(path.name, path.stat().st_size, _etag(path)) for path in sorted(folder.iterdir())]
        if rest[:1] == ["tree"]:
            values: Any = [{"type": "file", "path": n, "size": s, "oid": e} for n, s, e in files]
        else:
            siblings = [{"rfilename": n, "size": s, "blobId": e} for n, s, e in files]
            values = {
                "_id": "1",
                "id": id,
                "modelId": id,
                "sha": COMMIT,
                "siblings": siblings,
                "tags": [],
                "downloads": 0,
            }
        self._send(200, json.dumps(values).encode(), {"Content-Type": "application/json"}, body)

    def _file(self, id: str, revision: str, name: str, body: bool) -> None:
        folder = self._known(id, revision)
        if folder is None:
            return
        path = folder / name
        if not path.exists():
            self._error(404, "EntryNotFound")
            return
        data = path.read_bytes()
        headers = {"ETag": f'"{_etag(path)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        wanted = self.headers.get("Range")
        status = 200
        if wanted:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            begin, end = int(first), min(int(last) if last else len(data) - 1, len(data) - 1)
            headers["Content-Range"] = f"bytes {begin}-{end}/{len(data)}"
            data, status = data[begin : end + 1], 206
        if body:
            self.hub.served[name] = self.hub.served.get(name, 0) + len(data)
        self._send(status, data, headers, body)

    def _error(self, status: int, code: str) -> None:
        self._send(status, b"", {"X-Error-Code": code, "X-Error-Message": code}, True)

    def _send(self, status: int, data: bytes, headers: dict[str, str], body: bool) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data)


def _etag(path: Path) -> str:
    return hashlib.sha1(path.read_bytes(), usedforsecurity=False).hexdigest()
