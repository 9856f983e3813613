"""A Hub on the loopback interface: the few endpoints that inspecting and fetching need, with range requests."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """One repository, and what was asked of it."""

    files: dict[str, bytes]
    id: str = "org/tiny"
    gated: bool = False
    """whether files need the token"""
    private: bool = False
    """whether everything needs the token"""
    broken: bool = False
    """whether it answers 500 to everything"""
    token: str = "hf_right"
    url: str = ""
    requests: list[tuple[str, str, int]] = field(default_factory=list)
    """method, path, bytes sent"""

    def environment(self, cache: Path, **overrides: str) -> dict[str, str]:
        return {"HF_ENDPOINT": self.url, "HF_HOME": str(cache), **overrides}

    def sent(self, suffix: str) -> int:
        """Bytes of the file's content that went out."""
        return sum(sent for method, path, sent in self.requests if method == "GET" and path.endswith(suffix))


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def _send(self, status: int, body: bytes, *, full: int | None = None, **headers: str) -> None:
            hub.requests.append((self.command, urlsplit(self.path).path, len(body) if self.command == "GET" else 0))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body) if full is None else full))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def _refuse(self, status: int, code: str) -> None:
            self._send(status, b"{}", X_Error_Code=code, X_Error_Message=code)

        def _answer(self) -> None:
            parts = unquote(urlsplit(self.path).path).strip("/").split("/")
            is_api = parts[:2] == ["api", "models"]
            parts = parts[2:] if is_api else parts
            allowed = self.headers.get("Authorization") == f"Bearer {hub.token}"
            if hub.broken:
                return self._refuse(500, "Broken")
            if "/".join(parts[:2]) != hub.id or (hub.private and not allowed):
                return self._refuse(401 if hub.private else 404, "RepoNotFound")
            if len(parts) > 3 and parts[3] not in ("main", COMMIT):
                return self._refuse(404, "RevisionNotFound")
            if is_api:
                return self._json(parts[2] if len(parts) > 2 else "")
            if hub.gated and not allowed:
                return self._refuse(403, "GatedRepo")
            self._file("/".join(parts[4:]))

        def _json(self, kind: str) -> None:
            oid = "0" * 40
            if kind in ("revision", ""):
                siblings = [{"rfilename": name, "size": len(raw), "blobId": oid} for name, raw in hub.files.items()]
                answer: object = {"_id": "0", "id": hub.id, "sha": COMMIT, "siblings": siblings, "private": False}
            else:
                answer = [
                    {"type": "file", "path": name, "size": len(raw), "oid": hashlib.sha1(raw).hexdigest()}
                    for name, raw in hub.files.items()
                ]
            self._send(200, json.dumps(answer).encode(), Content_Type="application/json")

        def _file(self, name: str) -> None:
            raw = hub.files.get(name)
            if raw is None:
                return self._refuse(404, "EntryNotFound")
            same = {"ETag": f'"{hashlib.sha1(raw).hexdigest()}"', "X_Repo_Commit": COMMIT, "Accept_Ranges": "bytes"}
            asked = self.headers.get("Range", "")
            if not asked.startswith("bytes="):
                return self._send(200, raw, **same)
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last or len(raw) - 1), len(raw) - 1)
            same["Content_Range"] = f"bytes {start}-{end}/{len(raw)}"
            self._send(206, raw[start : end + 1], **same)

    return Handler


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    """Serve `hub` on a free port while the block runs."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
