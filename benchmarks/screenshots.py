"""Pictures of every page, light and dark, at 1280, 1920 and a phone's width.

python benchmarks/screenshots.py OUT [--page rooflines]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from browser import dashboard, page, settle

PAGES = {
    "plan": "/?gpus=512&tokens=4Mi&sequence=8192",
    "plan-moe": "/?cluster=h800-deepseek&gpus=2048&model=deepseek-v3&dtype=fp8&tokens=64Mi",
    "plan-nothing-fits": "/?gpus=64&model=llama-3-405b",
    "rooflines": "/rooflines",
    "data-parallel": "/rooflines?strategy=Data+parallel",
    "explain": "/explain",
    "explain-pipeline": "/explain?model=llama-3-405b&tokens=4Mi&tp=8&pp=16&chunks=2",
    "collectives": "/collectives",
    "hardware": "/hardware",
    "placement": "/placement",
    "validate": "/validate",
    "evidence": "/evidence",
    "worked-problems": "/evidence?ev_view=Worked+problems",
    "calibrations": "/evidence?ev_view=Calibrations",
}
SIZES = {"1280": (1280, 1400), "1920": (1920, 1300), "phone": (390, 844)}


def main() -> None:
    """Take them all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--page", choices=PAGES, action="append")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with dashboard() as url:
        for name in options.page or PAGES:
            for size, (width, height) in SIZES.items():
                for dark in (False, True):
                    with page(width, height, dark) as tab:
                        tab.goto(url + PAGES[name])
                        settle(tab)
                        look = "dark" if dark else "light"
                        tab.screenshot(path=options.out / f"{name}-{size}-{look}.png")


if __name__ == "__main__":
    main()
