"""Check the documentation: `python docs/check_docs.py`.

(a) Every relative link in every Markdown file leads to a file or folder of this repository.
(b) Every ```python block of README.md and docs/*.md runs in a fresh process, in an empty folder, as a reader would
paste it. A fragment that cannot run alone takes another name after the fence (```text, ```py).
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 300
SKIPPED = {"build", "dist", "runs"}  # and every folder whose name begins with a dot

FENCE = re.compile(r"^\s*(`{3,}|~{3,})\s*([\w+-]*)")
# [text](target "title") and ![image](target), or a reference definition: [name]: target
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+[\"'][^)]*)?\)|^\s{0,3}\[[^\]^]+\]:\s*<?([^\s>]+)")
ELSEWHERE = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:|//")


def prose_and_blocks(text: str) -> tuple[list[tuple[int, str]], list[tuple[int, str, str]]]:
    """Split Markdown into prose lines (number, line) and fenced blocks (number of first line, language, code)."""
    prose: list[tuple[int, str]] = []
    blocks: list[tuple[int, str, str]] = []
    fence, language, start, code = "", "", 0, []
    for number, line in enumerate(text.splitlines(), 1):
        match = FENCE.match(line)
        if not fence and match:
            fence, language, start, code = match[1], match[2], number + 1, []
        elif fence and match and match[1].startswith(fence) and line.strip() == match[1]:
            blocks.append((start, language, "\n".join(code) + "\n"))
            fence = ""
        elif fence:
            code.append(line)
        else:
            prose.append((number, line))
    return prose, blocks


def broken_links(path: Path, root: Path = ROOT) -> Iterator[str]:
    """Yield one line for each relative link of a Markdown file that leads nowhere."""
    prose, _ = prose_and_blocks(path.read_text(encoding="utf-8"))
    for number, line in prose:
        # Inline code is not a link, however much `f[i](x)` looks like one.
        for match in LINK.finditer(re.sub(r"`[^`]*`", "", line)):
            target = unquote(match[1] or match[2]).split("#")[0]
            if not target or ELSEWHERE.match(target):
                continue
            if not (path.parent / target).exists():
                yield f"{path.relative_to(root)}:{number}: broken link {target}"


def failing_blocks(path: Path, root: Path = ROOT) -> Iterator[str]:
    """Run each ```python block of a Markdown file and yield one message for each that fails."""
    _, blocks = prose_and_blocks(path.read_text(encoding="utf-8"))
    for start, language, code in blocks:
        if language != "python":
            continue
        where = f"{path.relative_to(root)}:{start}"
        print(f"run {where}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            # Empty lines in front, so that a traceback names the line of the document.
            script = Path(folder, path.name)
            script.write_text("\n" * (start - 1) + code, encoding="utf-8")
            # matplotlib must not open a window.
            env = os.environ | {"MPLBACKEND": "Agg"}
            command = [sys.executable, str(script)]
            try:
                done = subprocess.run(
                    command,
                    cwd=folder,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    timeout=TIMEOUT_S,
                )
            except subprocess.TimeoutExpired:
                yield f"{where}: still running after {TIMEOUT_S} s"
                continue
            if done.returncode:
                yield f"{where}: exit status {done.returncode}\n{done.stdout}"


def skipped(path: Path) -> bool:
    """Whether a path below the root belongs to a tool or to a run, not to the documentation."""
    return any(part in SKIPPED or part.startswith(".") for part in path.parts)


def main() -> None:
    """Check everything and exit with 1 if anything failed."""
    documents = [path for path in sorted(ROOT.rglob("*.md")) if not skipped(path.relative_to(ROOT))]
    problems = [problem for path in documents for problem in broken_links(path)]
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        problems += failing_blocks(path)
    for problem in problems:
        print(problem)
    if problems:
        sys.exit(f"{len(problems)} problems in the documentation")
    print(f"{len(documents)} documents: links resolve, code runs")


if __name__ == "__main__":
    main()
