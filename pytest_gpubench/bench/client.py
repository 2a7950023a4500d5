"""The command of the benchmark client: ``vllm bench serve`` for one load, or the recipe's own. Pure.

Source of the flags: vLLM 0.32 ``vllm bench serve --help=all``.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gpubench.bench.command import command_argv
from pytest_gpubench.plan.ranks import ROUTER_PORT, head_variable, port_variable
from pytest_gpubench.plan.shell import Runtime
from pytest_gpubench.recipe.types import Deployment, Load

__all__ = ["MANAGED_FLAGS", "PERCENTILES", "ClientRun", "api_url", "bench_argv", "warmup_prompts"]

PERCENTILES = "50,90,95,99"
"""Asked for explicitly, so that every row has p50, p90, p95 and p99."""

MANAGED_FLAGS = frozenset(
    {
        "backend", "base-url", "host", "port", "endpoint", "model", "dataset-name", "num-prompts",
        "max-concurrency", "request-rate", "seed", "save-result", "save-detailed", "append-result",
        "result-dir", "result-filename", "random-input-len", "random-output-len", "ignore-eos", "num-warmups",
        "metric-percentiles", "percentile-metrics", "served-model-name", "random-range-ratio",
    }
)  # fmt: skip
"""Client flags that come from the load or from the launcher; a recipe's ``args`` may not set them."""


@dataclass(frozen=True)
class ClientRun:
    """One invocation: where it writes (as the client sees it), its seed, and whether it only warms up."""

    result_dir: str
    result_filename: str
    seed: int
    base_url: str | None = None  # None: the job's head and port, known only at run time
    warmup: bool = False


def warmup_prompts(deployment: Deployment, load: Load) -> int:
    """Prompts of the warm-up run: as the recipe says, else one wave of the concurrency.

    A command of the recipe's own is run for warm-up only when the recipe says how many prompts that takes.
    """
    if load.num_warmups is not None:
        return load.num_warmups
    if deployment.client.command is not None:
        return 0
    return min(load.concurrency or 1, load.num_prompts)


def api_url(deployment: Deployment) -> Runtime:
    """What clients talk to, known only at run time: the router when there is one, else the head."""
    port = port_variable("API", 0) if deployment.router is None else ROUTER_PORT
    return Runtime(f"http://${{{head_variable(0)}}}:${{{port}}}")


def bench_argv(deployment: Deployment, load: Load, run: ClientRun) -> list[str]:
    """The client's command as the process receives it.

    The warm-up is a run of its own with another seed: the client's own ``--num-warmups`` sends the
    first *measured* prompts, which then hit the prefix cache when they are measured.
    """
    if deployment.client.command is not None:
        return command_argv(deployment.client.command, _words(deployment, load, run))
    chat = load.backend == "openai-chat"
    argv = ["vllm", "bench", "serve", "--backend", load.backend]
    argv += ["--base-url", run.base_url or api_url(deployment)]
    argv += ["--endpoint", "/v1/chat/completions" if chat else "/v1/completions"]
    # The result file names the hub id, also of a staged model; its tokenizer lies with the model.
    argv += ["--model", deployment.model]
    if deployment.model_path != deployment.model and "tokenizer" not in dict(load.args):
        argv += ["--tokenizer", deployment.model_path]
    if deployment.served_name != deployment.model:
        argv += ["--served-model-name", deployment.served_name]
    argv += ["--dataset-name", load.dataset]
    argv += _dataset(load)
    argv += ["--num-prompts", str(warmup_prompts(deployment, load) if run.warmup else load.num_prompts)]
    if load.concurrency is not None:
        argv += ["--max-concurrency", str(load.concurrency)]
    argv += ["--request-rate", load.request_rate]
    if load.ignore_eos:
        argv += ["--ignore-eos"]
    argv += ["--seed", str(run.seed)]
    given = dict(load.args)
    if "percentile-metrics" not in given:
        argv += ["--percentile-metrics", "ttft,tpot,itl,e2el"]
    if "metric-percentiles" not in given:
        argv += ["--metric-percentiles", PERCENTILES]
    for name, value in load.args:
        if name == "num-warmups":
            continue
        argv += [f"--{name}"] if value is None else [f"--{name}", value]
    if "trust-remote-code" not in given and "--trust-remote-code" in deployment.serve_args:
        argv += ["--trust-remote-code"]
    argv += ["--save-result", "--result-dir", run.result_dir, "--result-filename", run.result_filename]
    return argv


def _words(deployment: Deployment, load: Load, run: ClientRun) -> dict[str, str | None]:
    """What a command template may name; None where the load has no such value."""
    prompts = warmup_prompts(deployment, load) if run.warmup else load.num_prompts
    return {
        "base_url": run.base_url or api_url(deployment),
        "model": deployment.served_name,
        "model_path": deployment.model_path,
        "result_dir": run.result_dir,
        "result_file": f"{run.result_dir}/{run.result_filename}",
        "concurrency": _text(load.concurrency),
        "num_prompts": str(prompts),
        "isl": _text(load.isl),
        "osl": _text(load.osl),
        "request_rate": load.request_rate,
        "seed": str(run.seed),
        "dataset": load.dataset,
        "scenario": deployment.scenario,
    }


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)


def _dataset(load: Load) -> list[str]:
    argv: list[str] = []
    if load.dataset == "random":
        if load.isl is not None:
            argv += ["--random-input-len", str(load.isl)]
        if load.osl is not None:
            argv += ["--random-output-len", str(load.osl)]
        if load.random_range_ratio is not None:
            argv += ["--random-range-ratio", repr(load.random_range_ratio)]
        return argv
    if load.isl is not None:
        argv += ["--input-len", str(load.isl)]
    if load.osl is not None:
        argv += ["--output-len", str(load.osl)]
    if load.speed_bench_dataset_subset is not None:
        argv += ["--speed-bench-dataset-subset", load.speed_bench_dataset_subset]
    if load.speed_bench_category is not None:
        argv += ["--speed-bench-category", load.speed_bench_category]
    return argv
