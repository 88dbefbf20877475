"""Text of profiles and sources, as Markdown that shows it and does nothing else."""

from __future__ import annotations

import re

URL = re.compile(r"https?://[^\s<>\"|]+[^\s<>\"|.,;:)]")
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#$~|!:])")


def plain(text: str) -> str:
    """Text of a profile that Markdown takes for nothing but text."""
    return _MARKDOWN.sub(r"\\\1", " ".join(text.split()))


def linked(text: str) -> str:
    """A source with each address in it as a link, named by its site and its last word."""
    text = f" {' '.join(text.split())} "
    parts, end = [], 0
    for match in URL.finditer(text):
        parts += [_MARKDOWN.sub(r"\\\1", text[end : match.start()]), _link(match[0])]
        end = match.end()
    return "".join((*parts, _MARKDOWN.sub(r"\\\1", text[end:]))).strip()


def _link(url: str) -> str:
    parts = url.split("://", 1)[1].rstrip("/").split("/")
    kept = 3 if parts[0] == "github.com" else 1  # whose repository it is
    label = "/".join(parts[:kept]).removeprefix("www.")
    for part in parts[kept:][-1:]:
        label += f"/…/{part[:40]}" if len(parts) > kept + 1 else f"/{part[:40]}"
    return f"[{plain(label)}]({url.replace('(', '%28').replace(')', '%29')})"
