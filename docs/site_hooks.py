"""Hooks of `mkdocs build`: the site's first page is README.md, so that it is written once."""

import re
from pathlib import Path

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]


def on_files(files: Files, config) -> Files:
    """Add README.md as index.md, and what it names beside it, with links to `docs/` turned into links within it."""
    for source, page in (("README.md", "index.md"), ("CONTRIBUTING.md",) * 2, ("CITATION.cff",) * 2):
        text = re.sub(r"\]\(docs/", "](", (ROOT / source).read_text())
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, **_) -> str:
    """The other way round: links from the pages to README.md."""
    return markdown.replace("](../README.md", "](index.md")
