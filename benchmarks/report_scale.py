"""Cost of the report of a large cluster: a made run, read from its results.json and built into its page, by a process of its own,
and how long Chromium takes to show its first screen.

Seconds are those of this machine, and mean nothing elsewhere; sizes do. Needs the root of the checkout on PYTHONPATH.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gpu_acceptance.folder.files import write_results
from gpu_acceptance.report.build import write_page
from tests.report.browser import Browser
from tests.report.large import NUM_VALIDATIONS, large
from tools.system_packages import browser as find_browser

# Of "Paint Timing" (w3.org/TR/paint-timing): from the beginning of the navigation to the first text that is seen.
PAINTED = """new Promise(done => new PerformanceObserver(list => list.getEntriesByName("first-contentful-paint").forEach(
  one => done(one.startTime))).observe({type: "paint", buffered: true}))"""


def main(sizes: list[int]) -> None:
    for num_nodes in sizes:
        with tempfile.TemporaryDirectory() as folder:
            for step in ("make", "build", "look"):
                subprocess.run([sys.executable, __file__, "--step", step, "--folder", folder, str(num_nodes)], check=True)


def make(folder: Path, num_nodes: int) -> None:
    write_results(folder, large(num_nodes))


def build(folder: Path, num_nodes: int) -> None:
    begin_s = time.monotonic()
    page = write_page(folder)
    seconds, peak = time.monotonic() - begin_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    results = (folder / "results.json").stat().st_size
    print(
        f"{8 * num_nodes:,} GPUs x {NUM_VALIDATIONS} validations: results.json {results / 1e6:.1f} MB; report.html "
        f"{page.stat().st_size / 1e6:.1f} MB, built in {seconds:.1f} s with {peak:.2f} GiB"
    )


def look(folder: Path, _: int) -> None:
    """Seconds until a reader sees the first screen."""
    if not find_browser():
        print("    first screen: no Chromium on this machine")
        return
    browser = Browser(folder)
    try:
        painted_ms = browser.open((folder / "report.html").read_text(encoding="utf-8")).ask(PAINTED)
        print(f"    first screen in Chromium after {painted_ms / 1e3:.1f} s")
    finally:
        browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nodes", type=int, nargs="*", default=[128, 2048], help="of 8 GPUs each, at least 3 (128 2048); 2048 wants 16 GiB")
    parser.add_argument("--step", choices=("make", "build", "look"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        {"make": make, "build": build, "look": look}[options.step](options.folder, options.nodes[0])
    else:
        main(options.nodes)
