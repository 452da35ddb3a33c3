"""What a person sees on a terminal: the bytes of a pseudo terminal, drawn; as much of VT100 as rich uses."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence

_CODE = re.compile(r"\x1b\[(\??)([\d;]*)([A-Za-z])|\x1b[()][A-Z0-9]")


class Screen:
    """A terminal of so many columns that scrolls for ever."""

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._lines: list[list[str]] = [[]]
        self._row = self._column = 0

    def feed(self, text: str) -> None:
        at = 0
        while at < len(text):
            if code := _CODE.match(text, at):
                self._obey(code[3] or "", int((code[2] or "1").split(";")[0] or 1), is_private=bool(code[1]))
                at = code.end()
                continue
            self._put(text[at])
            at += 1

    def _obey(self, letter: str, number: int, *, is_private: bool) -> None:
        if is_private:
            return
        if letter == "A":
            self._row = max(0, self._row - number)
        elif letter == "B":
            self._move(self._row + number)
        elif letter == "K":
            self._lines[self._row] = [] if number == 2 else self._lines[self._row][: self._column]

    def _put(self, char: str) -> None:
        if char == "\n":
            self._move(self._row + 1)
        elif char == "\r":
            self._column = 0
        elif char >= " ":
            if self._column == self._columns:
                self._column = 0
                self._move(self._row + 1)
            line = self._lines[self._row]
            line.extend(" " * (self._column + 1 - len(line)))
            line[self._column] = char
            self._column += 1

    def _move(self, row: int) -> None:
        while len(self._lines) <= row:
            self._lines.append([])
        self._row = row

    @property
    def text(self) -> str:
        """All that is to be seen, lines that were only wrapped put together again."""
        drawn = ["".join(line) for line in self._lines]
        return "".join(line if len(line) == self._columns else f"{line.rstrip()}\n" for line in drawn)


def run_in_terminal(
    arguments: Sequence[str], columns: int, env: Mapping[str, str], timeout: float = 60
) -> tuple[int, str]:
    """The exit code of a process, and what is on the terminal once it has ended; its standard error is a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        arguments, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, **env, "TERM": "xterm"}
    )
    os.close(theirs)
    found = b""
    try:
        while chunk := _read(ours):
            found += chunk
        code = process.wait(timeout)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    screen = Screen(columns)
    screen.feed(found.decode(errors="replace"))
    return code, screen.text


def _read(file: int) -> bytes:
    try:
        return os.read(file, 1 << 16)
    except OSError:  # the other end is closed
        return b""
