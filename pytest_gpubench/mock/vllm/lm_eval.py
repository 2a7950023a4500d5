"""``lm_eval``: asks the endpoint a few questions, and writes results and samples where the real one does.

The score is set (``sim: {"score": …}``), since the simulated model knows nothing; the requests are real.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

from .. import phases
from ..faults import ClientExits, ClientHangs, FaultBox, ResultMissing
from . import client
from .settings import Sim, load

__all__ = ["main"]

_METRICS = {
    "gsm8k": ("exact_match,strict-match", "exact_match,flexible-extract"),
    "mmlu": ("acc,none",),
}
_DEFAULT = ("acc,none", "acc_norm,none")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lm_eval", allow_abbrev=False)
    parser.add_argument("--model", "-M", default="hf")
    parser.add_argument("--model_args", "-a", nargs="*", default=[])
    parser.add_argument("--tasks", "-t", nargs="*", default=[])
    for name in (
        "--num_fewshot",
        "--output_path",
        "--limit",
        "--batch_size",
        "--gen_kwargs",
        "--seed",
        "--include_path",
    ):
        parser.add_argument(name)
    for name in (
        "--use_cache",
        "--device",
        "--max_batch_size",
        "--verbosity",
        "--system_instruction",
        "--metadata",
    ):
        parser.add_argument(name)
    parser.add_argument("--apply_chat_template", nargs="?", const=True, default=False)
    parser.add_argument("--fewshot_as_multiturn", nargs="?", const=True, default=False)
    for name in (
        "--log_samples",
        "--trust_remote_code",
        "--confirm_run_unsafe_code",
        "--predict_only",
        "--write_out",
    ):
        parser.add_argument(name, action="store_true")
    return parser


def main(folder: Path, argv: list[str]) -> int:
    """Evaluate; the exit status."""
    if argv[:1] == ["run"]:
        argv = argv[1:]
    args = _parser().parse_args(argv)
    faults, (_, job) = FaultBox(folder), phases.current_job(folder)
    early = faults.find(ClientExits, job)
    if early is not None:
        sys.stderr.write(f"Traceback (most recent call last):\n{early.text}\n")
        return early.code
    options = _model_args(args.model_args)
    tasks = [name for word in args.tasks for name in word.split(",") if name]
    if not tasks:
        sys.stderr.write("ValueError: Need to specify task to evaluate.\n")
        return 1
    if args.model not in ("local-completions", "local-chat-completions") or "base_url" not in options:
        sys.stderr.write(
            "this simulation evaluates local-completions and local-chat-completions with a base_url\n"
        )
        return 1
    sim = load(folder, options.get("model", ""))
    began = time.time()
    try:
        samples = {task: asyncio.run(_ask(args, options, sim, task)) for task in tasks}
    except (OSError, RuntimeError, asyncio.IncompleteReadError) as err:
        sys.stderr.write(f"Traceback (most recent call last):\n{type(err).__name__}: {err}\n")
        return 1
    if faults.find(ClientHangs, job) is not None:
        time.sleep(86_400)
    found = _results(args, options, sim, samples, began)
    if args.output_path and faults.find(ResultMissing, job) is None:
        _write(args, options, found, samples)
    _table(found)
    return 0


def _model_args(words: list[str]) -> dict[str, str]:
    """``key=value,key=value``."""
    pairs = (item.partition("=") for word in words for item in word.split(",") if item)
    return {name.strip(): value for name, _, value in pairs}


async def _ask(
    args: argparse.Namespace, options: dict[str, str], sim: Sim, task: str
) -> list[dict[str, Any]]:
    """Put the task's questions to the endpoint, a few at a time."""
    chat = args.model == "local-chat-completions"
    count = min(sim.eval_samples, int(float(args.limit))) if args.limit else sim.eval_samples
    slots = asyncio.Semaphore(int(options.get("num_concurrent", "1")))

    async def one(number: int) -> dict[str, Any]:
        text = f"Question {number} of {task}: what is {number} plus {number}?"
        payload: dict[str, Any] = {"model": options.get("model"), "max_tokens": 16, "temperature": 0}
        payload |= {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
        async with slots:
            status, body = await client.post(options["base_url"], payload)
        if status != 200:
            raise RuntimeError(f"API request failed with error message: {body}")
        choice = body["choices"][0]
        reply = choice["message"]["content"] if chat else choice["text"]
        digest = hashlib.sha256(text.encode()).hexdigest()
        return {
            "doc_id": number,
            "doc": {"question": text, "answer": str(2 * number)},
            "target": str(2 * number),
            "arguments": {"gen_args_0": {"arg_0": text, "arg_1": {"until": ["\n"]}}},
            "resps": [[reply]],
            "filtered_resps": [reply],
            "doc_hash": digest,
            "prompt_hash": digest,
            "target_hash": digest,
        }

    return list(await asyncio.gather(*(one(number) for number in range(count))))


def _results(
    args: argparse.Namespace, options: dict[str, str], sim: Sim, samples: dict[str, Any], began: float
) -> dict[str, Any]:
    shots = int(args.num_fewshot) if args.num_fewshot is not None else 0
    results: dict[str, Any] = {}
    for task, documents in samples.items():
        score = sim.score.get(task, 0.0) if isinstance(sim.score, dict) else sim.score
        names = _METRICS.get(task, _DEFAULT)
        values: dict[str, float] = score if isinstance(score, dict) else dict.fromkeys(names, float(score))
        results[task] = {"alias": task}
        for metric, value in values.items():
            name, _, kind = metric.partition(",")
            spread = (value * (1 - value) / max(1, len(documents) - 1)) ** 0.5
            results[task] |= {metric: float(value), f"{name}_stderr,{kind}": spread}
    counts = {task: {"original": len(docs), "effective": len(docs)} for task, docs in samples.items()}
    return {
        "results": results,
        "group_subtasks": {task: [] for task in samples},
        "configs": {task: {"task": task, "num_fewshot": shots} for task in samples},
        "versions": dict.fromkeys(samples, 3.0),
        "n-shot": dict.fromkeys(samples, shots),
        "n-samples": counts,
        "config": {
            "model": args.model,
            "model_args": options,
            "batch_size": args.batch_size,
            "limit": args.limit,
        },
        "git_hash": None,
        "date": began,
        "model_source": args.model,
        "model_name": options.get("model", ""),
        "model_name_sanitized": _sanitised(options),
        "start_time": began,
        "end_time": time.time(),
        "total_evaluation_time_seconds": str(time.time() - began),
    }


def _sanitised(options: dict[str, str]) -> str:
    return re.sub(r"[\"<>:/\|\\?\*\[\]]+", "__", options.get("model", ""))


def _write(
    args: argparse.Namespace, options: dict[str, str], found: dict[str, Any], samples: dict[str, Any]
) -> None:
    path, stamp = (
        Path(args.output_path),
        time.strftime("%Y-%m-%dT%H-%M-%S") + f".{time.time_ns() % 10**9 // 1000:06d}",
    )
    if path.suffix == ".json":  # a file name: results beside it, with the date
        folder, name = path.parent, f"{path.stem}_{stamp}.json"
    else:
        folder, name = path / _sanitised(options), f"results_{stamp}.json"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(found, indent=2))
    if args.log_samples:
        for task, documents in samples.items():
            lines = "".join(json.dumps(document) + "\n" for document in documents)
            (folder / f"samples_{task}_{stamp}.jsonl").write_text(lines)


def _table(found: dict[str, Any]) -> None:
    print("|Tasks|Version|Filter|n-shot|Metric|   |Value|   |Stderr|")
    for task, values in found["results"].items():
        for metric, value in values.items():
            if "," in metric and "_stderr" not in metric:
                name, _, kind = metric.partition(",")
                print(
                    f"|{task}|3|{kind}|{found['n-shot'][task]}|{name}|↑|{value:.4f}|±|{values[f'{name}_stderr,{kind}']:.4f}|"
                )
