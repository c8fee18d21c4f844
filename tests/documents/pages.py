"""Reads the Markdown pages of the tree: headings, links, fenced blocks."""
import os
import pathlib
import re
from typing import NamedTuple

TREE = pathlib.Path(__file__).resolve().parents[2]
SKIPPED_FOLDERS = {"build", ".git", ".cache"}
FENCE = re.compile(r"^ {0,3}(```+|~~~+) *(.*?) *$")


class Block(NamedTuple):
    """A fenced block: the two words behind the fence, its text, and the text's first line."""
    page: pathlib.Path
    line: int
    language: str
    marker: str
    text: str

    def __str__(self):
        return f"{self.page.relative_to(TREE)}:{self.line}"


def all_pages():
    pages = []
    for folder, folders, files in os.walk(TREE):
        folders[:] = set(folders) - SKIPPED_FOLDERS  # not entered: they may hold whole systems
        pages += [pathlib.Path(folder, file) for file in files if file.endswith(".md")]
    return sorted(pages)


def user_pages():
    """Returns the pages in which a user looks something up."""
    return [TREE / "README.md", *sorted((TREE / "docs").rglob("*.md"))]


def prose_lines(text):
    """Yields (line number, line) outside of fenced blocks."""
    fence = None
    for number, line in enumerate(text.split("\n"), 1):
        found = FENCE.match(line)
        if fence is None and found:
            fence = found[1]
        elif found and not found[2] and found[1].startswith(fence):
            fence = None
        elif fence is None:
            yield number, line


def blocks(page):
    opening = None
    for number, line in enumerate(page.read_text(encoding="utf-8").split("\n"), 1):
        found = FENCE.match(line)
        if opening is None and found:
            opening, words, lines = found[1], found[2].split(), []
            first = number + 1
        elif found and not found[2] and found[1].startswith(opening):
            opening = None
            language, marker = (words + ["", ""])[:2]
            yield Block(page, first, language, marker, "\n".join(lines) + "\n")
        elif opening is not None:
            lines.append(line)


def anchors(page):
    """Returns the anchors that GitHub makes of a page's headings, and those written as HTML."""
    text = page.read_text(encoding="utf-8")
    made = set(re.findall(r'<a (?:id|name)="([^"]+)"', text))
    for _, line in prose_lines(text):
        heading = re.match(r"#{1,6} +(.*?) *#*$", line)
        if not heading:
            continue
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        count = 0
        while (f"{slug}-{count}" if count else slug) in made:
            count += 1
        made.add(f"{slug}-{count}" if count else slug)
    return made


def links(page):
    """Yields (line number, target) of a page's links, images and reference definitions."""
    for number, line in prose_lines(page.read_text(encoding="utf-8")):
        line = re.sub(r"`[^`]*`", "``", line)
        for target in re.findall(r"\]\(([^()\s]+(?:\([^()]*\))?)[^()]*\)", line):
            yield number, target
        if definition := re.match(r" {0,3}\[[^\]]+\]: +(\S+)", line):
            yield number, definition[1]
