"""Peak memory of `gpubench report` and `gpubench compare` over 50,000 rows, against 5,000."""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

RUN = """\
import resource, sys
from pytest_gpubench.cli.main import main
code = main(sys.argv[1:])
print("PEAK", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""


def main() -> int:
    """Print the peaks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for count in (options.rows // 10, options.rows):
            path = folder / f"ingest-{count}.json"
            path.write_text(json.dumps(ingest(count)))
            report = peak("report", str(path), "--out", str(folder / "report.html"))
            compare = peak("compare", str(path), str(path))
            print(f"{count} rows: report {report:.0f} MB, compare {compare:.0f} MB")
    return 0


def peak(*arguments: str) -> float:
    """Megabytes at most."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, *arguments], capture_output=True, text=True, timeout=900
    )
    if done.returncode != 0:
        raise SystemExit(done.stderr[-2000:])
    line = next(line for line in done.stderr.splitlines() if line.startswith("PEAK"))
    return int(line.split()[1]) / 1024


def ingest(count: int) -> dict[str, object]:
    """Rows as a run writes them, of made-up figures."""
    rows: list[dict[str, object]] = []
    for number in range(count):
        figures = {"tput_per_gpu": 900.0 + number % 100, "output_tput_per_gpu": 450.0, "median_ttft": 0.2}
        figures |= {"p99_ttft": 0.4, "median_tpot": 0.02, "p99_tpot": 0.03, "median_intvty": 50.0}
        labels = {"workload": f"w{number % 50}", "point": f"tp4-1k1k-conc{number}", "run_id": "r"}
        labels |= {"deployment": f"tp4-{number % 40}", "model": "org/model", "device": "gb300"}
        sizes = {"conc": number % 512 + 1, "isl": 1024, "osl": 1024, "gpu_count": 4, "num_nodes": 1}
        verdict = {"kind": "serving", "status": "passed", "reason": None, "failure_rate": 0.0}
        rows.append({**labels, **sizes, **figures, **verdict, "simulated": True})
    return {"schema_version": 1, "run": {"run_id": "r", "simulated": True}, "rows": rows}


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.exit(main())
