"""Java's class archive (AppCDS, JEP 350): a broker that maps the classes of an earlier one starts with half the CPU.

- An archive belongs to one Java and one folder of jars, and lies in that folder; an empty one says that this Java makes none.
- Java runs what an archive holds, so only one of this user's own is used.  Java itself ignores one that does not fit.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from tolerant_client.testing.artifacts import locked


def class_archive(folder: Path, java: str, run: Callable[[str], None]) -> Path | None:
    """The archive for the jars in `folder`, made first if there is none; None if it cannot be made or is not to be trusted.

    `run` starts a broker with the Java option that it is given, and stops it cleanly; what it raises is raised here, too.
    """
    binary = Path(java).resolve()
    key = hashlib.sha256(f"{folder.resolve()} {binary} {binary.stat().st_mtime_ns}".encode()).hexdigest()
    archive = folder / f"{key[:16]}.jsa"
    if not archive.exists():
        if not os.access(folder, os.W_OK):
            return None
        with locked(archive):
            if not archive.exists():
                new = archive.with_suffix(".new")
                run(f"-XX:ArchiveClassesAtExit={new}")
                new.touch()
                new.rename(archive)
    found = archive.stat()
    return archive if found.st_size > 0 and found.st_uid == os.geteuid() else None
