"""Run the per-release tests for many FlashInfer releases and print one table.

usage: python tools/matrix.py [RELEASE ...]      (default: all that have a table)
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path

import fetch_flashinfer
from tabulate import tabulate

from fi_shim.compatibility import known_releases, load_release

TESTS = "tests/real_flashinfer/test_releases.py"


def main() -> int:
    """Fetch, test, tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("releases", nargs="*", metavar="RELEASE")
    chosen = parser.parse_args().releases or list(known_releases())
    for release in chosen:
        fetch_flashinfer.fetch(release)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fi_shim-matrix-") as folder:
        report = Path(folder, "report.xml")
        options = ("-n", "2", "--dist", "worksteal", "-q", "--thorough", f"--releases={','.join(chosen)}", f"--junitxml={report}")
        command = [sys.executable, "-m", "pytest", *options, TESTS]
        exit_code = subprocess.run(command, check=False).returncode
        outcomes = _outcomes(report)
    columns = sorted({test for tests in outcomes.values() for test in tests})
    rows = [
        (release, *load_release(release).regimes.values(), *(outcomes[release].get(test, "-") for test in columns)) for release in chosen
    ]
    titles = [test.removeprefix("test_").replace("_", " ") for test in columns]
    print(tabulate(rows, headers=("FlashInfer", "trtllm", "mnnvl", *titles), tablefmt="simple"))
    for release in chosen:
        if reason := load_release(release).importable:
            print(f"{release} can be imported on {reason}; tested with that annotation unevaluated")
    print(f"{len(chosen)} releases in {time.monotonic() - started:.0f} s")
    return exit_code


def _outcomes(report: Path) -> dict[str, dict[str, str]]:
    """Release -> test -> outcome, from pytest's report."""
    outcomes: dict[str, dict[str, str]] = defaultdict(dict)
    for case in ET.parse(report).getroot().iter("testcase"):  # our own pytest wrote it
        test, _, parameter = case.attrib["name"].partition("[")
        kinds = {child.tag for child in case}
        outcome = "FAILED" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        outcomes[parameter.rstrip("]")][test] = outcome
    return outcomes


if __name__ == "__main__":
    sys.exit(main())
