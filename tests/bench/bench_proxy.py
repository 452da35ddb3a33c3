"""How fast the fault proxy lets bytes through: python tests/bench/bench_proxy.py [frame MiB]."""

from __future__ import annotations

import socket
import struct
import sys
import threading
import time

from tolerant_client.testing.faults import Drop, Fault
from tolerant_client.testing.proxy import FaultProxy

SECONDS = 2.0
REQUEST = struct.pack(">ihhih", 10, 1, 11, 7, -1)


def serve(listener: socket.socket, answer: bytes) -> None:
    """Answer each request with the same frame until the client goes."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            while connection.recv(len(REQUEST), socket.MSG_WAITALL):
                connection.sendall(answer)


def measure(port: int, size: int) -> tuple[float, float]:
    """MB and answers a second, one request at a time."""
    into = memoryview(bytearray(size))
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        begin = time.monotonic()
        rounds = 0
        while time.monotonic() < begin + SECONDS:
            client.sendall(REQUEST)
            left = size
            while left:
                left -= client.recv_into(into[size - left :])
            rounds += 1
        took = time.monotonic() - begin
    return rounds * size / took / 1e6, rounds / took


def main() -> None:
    big = int(float(sys.argv[1]) * (1 << 20)) if len(sys.argv) > 1 else 16 << 20
    print(f"{'frame':>10} {'way':<22} {'MB/s':>8} {'answers/s':>10}")
    for size in (64, big):
        answer = struct.pack(">ii", size - 4, 7) + bytes(size - 8)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=serve, args=(listener, answer), daemon=True).start()
            port = listener.getsockname()[1]
            report(size, "direct", measure(port, size))
            ways: list[tuple[str, list[Fault]]] = [
                ("proxy", []),
                ("proxy, no fault hits", [Drop(api="Fetch", probability=0.0)]),
            ]
            for name, faults in ways:
                with FaultProxy({0: ("127.0.0.1", port)}, faults) as proxy:
                    report(size, name, measure(int(proxy.bootstrap_servers.rpartition(":")[2]), size))
            listener.shutdown(socket.SHUT_RDWR)


def report(size: int, way: str, measured: tuple[float, float]) -> None:
    print(f"{size:>10} {way:<22} {measured[0]:>8.0f} {measured[1]:>10.0f}")


if __name__ == "__main__":
    main()
