"""MkDocs hooks: the pages of the site are the repository's own files, at their own paths.

Laws:
- A page has one copy.  It is mounted under its path in the repository, so that a link between two pages, or to a file,
  leads to the same place on a code host and in the site.
- Facts that the code has are generated from it when the site is built (reference.py), and plots are drawn from the
  tables of their own page (plots.py).
- A strict build fails if Python-Markdown renders a page differently than a code host does, or if a page loads anything
  from another host.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # the documented code is this checkout's

import plots  # beside this file: MkDocs has its folder on the path while it imports a hook
import reference

_log = logging.getLogger("mkdocs.hooks.site")

_PAGES = ("*.md", "docs/**/*.md", "tests/README.md", "tolerant_client/**/*.md", "spark_integration/**/*.md")
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
_ROW, _CODE = re.compile(r"^\|.*", re.MULTILINE), re.compile(r"`[^`]+`")
# A list or table that became a paragraph.
_UNREAD = re.compile(r"<p>(?:(?!</p>)[^`])*\n\s*(?:[-*] |\d+\. |\| |```)", re.DOTALL)
_LOADED = re.compile(
    r"<(?:script|img|iframe|source)[^>]*\ssrc=\"?(?:https?:)?//|<link[^>]*rel=\"?(?:stylesheet|preconnect)[^>]*//"
)


def on_files(files: Files, config: Any) -> Files:
    """Mounts every page of the repository, the files to which they link, and the generated pages."""
    pages = sorted({path for pattern in _PAGES for path in ROOT.glob(pattern)})
    for path in (*pages, *sorted(set(_linked(pages)) - set(pages))):
        files.append(_mounted(path, config))
    for name, write in reference.PAGES.items():
        made = File.generated(config, f"docs/reference/{name}.md", content=write())
        files.append(_published(made, config))
    return files


def _linked(pages: list[Path]) -> Iterator[Path]:
    for page in pages:
        for link in _LINK.findall(page.read_text(encoding="utf-8")):
            found = (page.parent / link).resolve()
            if "://" not in link and found.is_file() and found.is_relative_to(ROOT):
                yield found


def _mounted(path: Path, config: Any) -> File:
    file = File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path))
    file.inclusion = InclusionLevel.INCLUDED
    return _published(file, config)


def _published(file: File, config: Any) -> File:
    """The same; the pages of docs/ are the site's own and have no folder in their addresses."""
    if file.src_uri.startswith("docs/"):
        there = file.src_uri.removeprefix("docs/")
        file.dest_uri = File(
            there, src_dir=None, dest_dir=config.site_dir, use_directory_urls=config.use_directory_urls
        ).dest_uri
    return file


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Draws the plots that a page requests, and makes <details> and code in tables render as on code hosts."""
    del config, files
    if page.parent is None:
        page.meta["hide"] = ["navigation"]  # it is a tab of its own
    markdown = _ROW.sub(lambda row: _CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0]), markdown)
    return plots.drawn(markdown.replace("<details>", '<details markdown="1">'))


def on_page_content(html: str, page: Any, config: Any, files: Files) -> None:
    """Warns of Markdown that Python-Markdown renders differently than a code host does."""
    del config, files
    for found in _UNREAD.findall(html):
        _log.warning("%s: a list or a table is read as a paragraph: ...%s", page.file.src_uri, found[-160:])


def on_post_page(output: str, page: Any, config: Any) -> None:
    """Warns of resources that a reader's browser would load from another host."""
    del config
    for found in _LOADED.findall(output):
        _log.warning("%s loads from the network: %s", page.file.src_uri, found)
