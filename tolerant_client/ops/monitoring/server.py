"""Serves the board: `/` is the status page, `/api/state.json` its data, `/metrics` for Prometheus, `/healthz` for probes.

Laws:
- Read only: GET and HEAD, nothing else.
- The page is one file, and its policy lets it load nothing but /api/state.json of this server.
- Connections are bounded: at most MOST_CONNECTIONS, of which a new one closes the oldest, and REQUEST_S for each.
- On a loopback address it serves only requests whose Host names a loopback host: a foreign page whose
  name was made to resolve to this machine (DNS rebinding) reads nothing.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import ipaddress
import json
import re
import socket
import sys
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlsplit

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder

from tolerant_client.errors import OptionError
from tolerant_client.mirror.state.health import Health, Reason, worst
from tolerant_client.ops.monitoring.board import Board
from tolerant_client.ops.monitoring.health import health_of
from tolerant_client.ops.monitoring.prometheus import LinkCollector
from tolerant_client.ops.monitoring.status import DEFAULT_TOPICS, state_json
from tolerant_client.ops.service.link_state import Phase

MOST_CONNECTIONS = 32
REQUEST_S = 10.0  # from the connection to the end of the response
_PAUSE_S = 0.2  # before the next accept when the process can open no more files
_WORTH_PACKING = 2_000  # bytes
_REASONS = 5  # of a link
_SILENT_S = 120.0  # a watch without a sample for so long is dead


class StatusServer:
    """Serves a board at HOST:PORT in its own threads until it is closed; port 0 takes a free port.

    Raises OptionError.
    """

    def __init__(self, board: Board, address: str) -> None:
        host, _, port = address.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isdecimal() or int(port) > 65_535:
            raise OptionError(f"--metrics needs HOST:PORT, such as 127.0.0.1:9464, not {address!r}")
        registry = CollectorRegistry()
        registry.register(LinkCollector(board, now_ms))
        ProcessCollector(registry=registry)
        try:
            self._server = _Server(host, int(port), board, registry)
        except OSError as error:
            raise OptionError(
                f"--metrics cannot listen at {address} ({error.strerror}); choose another address or port"
            ) from error
        self.port: int = self._server.server_address[1]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}/"
        serve = self._server.serve_forever
        self._thread = threading.Thread(target=serve, args=(0.2,), name="tolerant-kafka-status", daemon=True)
        self._thread.start()

    def __enter__(self) -> StatusServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops serving; idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, host: str, port: int, board: Board, registry: CollectorRegistry) -> None:
        if ":" in host:
            self.address_family = socket.AF_INET6
        self.board = board
        self.registry = registry
        self.page = files("tolerant_client.ops.monitoring").joinpath("status.html").read_bytes()
        self.policy = content_security_policy(self.page.decode())
        self._open: dict[Any, float] = {}  # connections and their deadlines, the oldest first
        self._lock = threading.Lock()
        super().__init__((host, port), _Handler)
        self.is_local = _is_loopback(str(self.server_address[0]))

    def get_request(self) -> Any:
        try:
            return super().get_request()
        except OSError:
            time.sleep(_PAUSE_S)  # no file descriptor is left, and the connection keeps waiting: do not retry at once
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._open) >= MOST_CONNECTIONS:
                _hang_up(next(iter(self._open)))
                self._open.pop(next(iter(self._open)))
            self._open[request] = time.monotonic() + REQUEST_S
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Called several times a second: closes connections after their deadline, whichever side they wait for."""
        now = time.monotonic()
        with self._lock:
            for request in [request for request, until in self._open.items() if until < now]:
                self._open.pop(request)
                _hang_up(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Reports nothing when a client disconnected before its response."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "tolerant-kafka"
    sys_version = ""
    timeout = REQUEST_S  # HTTP/1.0: one response per connection, so none is left open when the server closes

    def do_GET(self) -> None:
        try:
            self._get()
        except (ValueError, TypeError):  # an invalid address or header: prometheus_client raises both
            self._respond(HTTPStatus.BAD_REQUEST, b"This request is not valid.\n")

    def _get(self) -> None:
        name = (self.headers.get("Host") or "").strip()
        if self.server.is_local and not _is_local_name(name):
            self._respond(HTTPStatus.FORBIDDEN, b"This server is for this machine only.\n")
            return
        url = urlsplit(self.path)
        board = self.server.board
        if url.path == "/":
            self._respond(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8")
        elif url.path == "/api/state.json":
            asked = {key: values[-1] for key, values in parse_qs(url.query).items()}
            most = int(asked["topics"]) if re.fullmatch("[0-9]{1,4}", asked.get("topics", "")) else DEFAULT_TOPICS
            texts = {
                name: asked.get(key, "") for name, key in (("matching", "filter"), ("link", "link"), ("focus", "topic"))
            }
            found = state_json(board, now_ms(), most=most, **texts)
            self._respond(HTTPStatus.OK, json.dumps(found, allow_nan=False).encode(), "application/json")
        elif url.path == "/metrics":
            encode, content_type = choose_encoder(self.headers.get("Accept") or "")
            self._respond(HTTPStatus.OK, encode(self.server.registry), content_type)
        elif url.path == "/healthz":
            status, report = liveness(board, now_ms())
            self._respond(status, json.dumps(report).encode(), "application/json")
        else:
            self._respond(HTTPStatus.NOT_FOUND, b"This server has /, /api/state.json, /metrics and /healthz.\n")

    do_HEAD = do_GET

    def _respond(self, status: HTTPStatus, body: bytes, content_type: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        if len(body) > _WORTH_PACKING and "gzip" in (self.headers.get("Accept-Encoding") or ""):
            body = gzip.compress(body, 1)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", self.server.policy)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Logs no requests: scrapes are frequent."""


def _hang_up(connection: socket.socket) -> None:
    """Ends all reads and writes of the connection; its own thread closes the descriptor."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def liveness(board: Board, at_ms: int) -> tuple[HTTPStatus, dict[str, Any]]:
    """Whether the process is of use: 503 after a link has failed for good, or if its watch takes no samples any more.

    A cluster that does not respond, a partition that is blocked, or a watch that says why it cannot check, is no reason to
    kill the mirror: `status` and `links` report it, in the words of the page and of `tolerant-kafka status`.  Until a link was checked
    nothing is known.
    """
    states = board.states()
    dead = [
        state.link
        for state in states
        if state.phase is Phase.FAILED
        or state.phase is Phase.RUNNING
        and not state.blind
        and at_ms - state.time_ms > _SILENT_S * 1000
    ]
    status = HTTPStatus.SERVICE_UNAVAILABLE if dead else HTTPStatus.OK
    found = {state.link: (state.phase, *health_of(state, at_ms)) for state in states}
    links = {
        link: {"health": health, "phase": phase, "reasons": [reason.text for reason in reasons[:_REASONS]]}
        for link, (phase, health, reasons) in found.items()
    }
    health = worst(Reason(health, "") for _, health, _ in found.values()) if found else Health.UNKNOWN
    return status, {"status": "dead" if dead else health, "dead": dead, "links": links}


def content_security_policy(page: str) -> str:
    """A policy that allows a page its own inline script and style and requests to its own server, and nothing else."""

    def hashes(tag: str) -> str:
        inline = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        return " ".join(
            f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in inline
        )

    return (
        f"default-src 'none'; script-src {hashes('script')}; style-src {hashes('style')}; connect-src 'self';"
        " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def now_ms() -> int:
    return int(time.time() * 1000)


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _is_local_name(host: str) -> bool:
    name = re.sub(r":\d+$", "", host).removeprefix("[").removesuffix("]")
    return name == "localhost" or _is_loopback(name)
