"""Every python block of README.md and docs/*.md runs, in order, in one namespace a page.

A text block right after a python block is what that block prints. A block with the comment
`# raises NAME` must raise that error, and its message ends what is printed. Numbers and hashes are
compared as in the examples. `--update-golden` writes the text blocks anew.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import re
import textwrap
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.door.house import ROOT
from tests.door.test_examples import difference

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RAISES = re.compile(r"^# raises (\w+)", re.MULTILINE)
WIDTH = 96


@dataclass(frozen=True)
class Block:
    """A python block: its first line in the page, its code, and the text block after it.

    said   what the text block holds, None without one
    span   where that text stands in the page
    """

    line: int
    code: str
    raises: str
    said: str | None
    span: tuple[int, int]


def blocks(text: str) -> list[Block]:
    fences = list(FENCE.finditer(text))
    found = []
    for fence, after in pairwise([*fences, None]):
        if fence[1] == "python":
            shown = after is not None and after[1] == "text"
            shown = shown and not text[fence.end() : after.start()].strip()
            raises = RAISES.search(fence[2])
            found.append(
                Block(
                    line=text.count("\n", 0, fence.start(2)) + 1,
                    code=fence[2],
                    raises=raises[1] if raises else "",
                    said=after[2] if shown else None,
                    span=after.span(2) if shown else (0, 0),
                )
            )
    return found


def run(page: Path) -> Iterator[tuple[Block, str]]:
    """Each block of a page, and what it printed; a block that goes wrong fails the test."""
    linecache.checkcache(str(page))  # messages quote lines of the page
    namespace: dict[str, Any] = {"__name__": page.stem}
    for block in blocks(page.read_text()):
        out = io.StringIO()
        raised = None
        # Blank lines in front, so that errors and `where` lines name the line of the page.
        code = compile("\n" * (block.line - 1) + block.code, str(page), "exec")
        try:
            with contextlib.redirect_stdout(out):
                exec(code, namespace)
        except Exception as error:
            raised = error
        name = type(raised).__name__ if raised else ""
        if name != block.raises:
            pytest.fail(complaint(page, block, raised), pytrace=False)
        text = out.getvalue() + (str(raised) if raised else "")
        yield block, text.replace(f"{ROOT}/", "").strip()


def complaint(page: Path, block: Block, raised: Exception | None) -> str:
    if raised is None:
        return f"{place(page, block.line)}: the block should raise {block.raises}; it ran"
    lines = [
        f.lineno for f in traceback.extract_tb(raised.__traceback__) if f.filename == f"{page}"
    ]
    expected = f" (not {block.raises})" if block.raises else ""
    where = place(page, (lines[-1] if lines else None) or block.line)
    return f"{where}: {type(raised).__name__}{expected}: {raised}"


def place(page: Path, line: int) -> str:
    return f"{page.relative_to(ROOT) if page.is_relative_to(ROOT) else page.name}:{line}"


def check(page: Path) -> None:
    for block, came in run(page):
        if block.said is not None:
            told = difference(block.said, came)
            if told:
                where = place(page, block.line)
                pytest.fail(f"{where}: prints\n{told}\n\nall of it:\n{came}", pytrace=False)


def update(page: Path) -> None:
    """Write what the blocks print into the text blocks, long lines folded."""
    text = page.read_text()
    for block, came in reversed(list(run(page))):
        if block.said is not None:
            folded = [
                part
                for line in came.splitlines()
                for part in textwrap.wrap(line, WIDTH, subsequent_indent=" " * 12) or [""]
            ]
            start, end = block.span
            text = text[:start] + "\n".join([*folded, ""]) + text[end:]
    page.write_text(text)


PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    if blocks(page.read_text())
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_runs_and_prints_what_it_says(page: Path, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):
        update(page)
        update(page)  # lines have moved
    check(page)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("```python\nprint(1)\n```\n\n```text\n1\n```\n", ""),
        ("```python\nprint(1)\n```\n\n```text\n2\n```\n", "page.md:2: prints\nsaid  2\ncame  1"),
        ("```python\nprint(1)\n```\nso\n```text\n2\n```\n", ""),
        ("a\n\n```python\nx = 1\nx.y\n```\n", "page.md:5: AttributeError: "),
        ("```python\n# raises KeyError\n{}[0]\n```\n\n```text\n0\n```\n", ""),
        ("```python\n# raises KeyError\n```\n", "page.md:2: the block should raise KeyError"),
        ("```python\n# raises KeyError\n1 / 0\n```\n", "page.md:3: ZeroDivisionError (not KeyErr"),
        ("```python\nx = 1\n```\n```python\nx.y\n```\n", "page.md:5: AttributeError: "),
        ("```sh\nnonsense\n```\n", ""),
    ],
)
def test_the_check_itself(text: str, told: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    if not told:
        return check(page)
    with pytest.raises(pytest.fail.Exception) as failure:
        check(page)
    assert told in str(failure.value)
