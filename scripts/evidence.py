"""Write what ``python -m roofline backtest --markdown`` prints into the README, between its marks.

make evidence
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
COMMAND = ("roofline", "backtest", "--markdown")
BEGIN = (
    "<!-- printed by `python -m roofline backtest --markdown`; `make evidence` writes it anew -->"
)
END = "<!-- end of what the command printed -->"


def printed() -> str:
    """What the command prints now."""
    command = [sys.executable, "-m", *COMMAND]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, encoding="utf-8", check=True)
    return done.stdout


def held(text: str) -> str:
    """What stands between the marks of ``text``."""
    return text.split(BEGIN)[1].split(END)[0].strip() + "\n"


def renewed(text: str, tables: str) -> str:
    """``text`` with ``tables`` between its marks."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{tables.strip()}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    README.write_text(renewed(README.read_text("utf-8"), printed()), "utf-8")
