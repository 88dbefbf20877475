"""How long after a key press on a slider the charts on the screen have changed, in a real browser.

    python benchmarks/slider_latency.py [--presses 30] [--json]

Measured inside the page: from the key press to the frame after the last change of text or curves before the page
is quiet for 300 ms, so drawing the charts is included. First paint and the second start are measured on the way.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from browser import dashboard, page, settle

PROBE = """() => {
  window.probe = {pressed: 0, changed: 0};
  document.addEventListener('keydown', () => { window.probe = {pressed: performance.now(), changed: 0}; }, true);
  const seen = () => requestAnimationFrame(() => { window.probe.changed = performance.now(); });
  new MutationObserver(seen).observe(document.querySelector('[data-testid="stMain"]'),
    {subtree: true, childList: true, characterData: true, attributeFilter: ['d', 'x', 'y', 'transform']});
}"""
SLIDERS = {
    "batch, four charts": ("/rooflines", "Batch in tokens"),
    "replicas, one chart": ("/rooflines?strategy=Data+parallel", "Replicas"),
    "message size, two charts": ("/collectives", "Message size"),
}
QUIET = "() => window.probe.changed > 0 && performance.now() - window.probe.changed > 300"


def measure(url: str, path: str, label: str, presses: int) -> list[float]:
    """Milliseconds of each press on the slider called ``label``."""
    with page() as tab:
        tab.goto(url + path)
        settle(tab)
        tab.evaluate(PROBE)
        thumb = tab.locator('[data-testid="stSlider"]', has_text=label).locator(
            'input[type="range"]'
        )
        thumb.focus()
        times = []
        for i in range(presses):
            tab.keyboard.press("ArrowRight" if (i // 4) % 2 else "ArrowLeft")
            tab.wait_for_function(QUIET, timeout=15_000, polling=20)
            times.append(tab.evaluate("() => window.probe.changed - window.probe.pressed"))
        return times[2:]


def first_paint(url: str) -> float:
    """Seconds from opening the address to every chart drawn."""
    with page() as tab:
        start = time.perf_counter()
        tab.goto(url)
        settle(tab)
        return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--presses", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    started = time.perf_counter()
    with dashboard() as url:
        result = {"server_s": time.perf_counter() - started, "first_paint_s": first_paint(url)}
        result["second_paint_s"] = first_paint(url)
        for name, (path, label) in SLIDERS.items():
            times = measure(url, path, label, options.presses)
            result[f"{name}_median_ms"] = statistics.median(times)
            result[f"{name}_p90_ms"] = statistics.quantiles(times, n=10)[-1]
    if options.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:34} {value:8.2f}")


if __name__ == "__main__":
    main()
