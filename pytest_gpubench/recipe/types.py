"""The resolved recipe: frozen, hashable, complete. Nothing after this reads YAML or the environment.

``recipe/`` makes these from YAML; ``plan/`` turns a :class:`Deployment` into scripts and a
:class:`Point` into a client command; ``results/`` takes labels and divisors from a :class:`Point`.
Durations are seconds, lengths are tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = [
    "AccuracyTask",
    "ClientSettings",
    "ContainerSettings",
    "Deadlines",
    "Deployment",
    "ForeignImage",
    "Gates",
    "Labels",
    "Load",
    "ModelStaging",
    "Pairs",
    "Parallel",
    "Point",
    "Profile",
    "Recipe",
    "Reference",
    "Role",
    "RouterSettings",
    "Slo",
    "SlurmSettings",
]

Pairs = tuple[tuple[str, str], ...]
"""A frozen mapping of strings, in the order it was written."""


@dataclass(frozen=True)
class Parallel:
    """The true parallel sizes. ``ep`` is the expert-parallel size (1 = off), within tp x dp."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    pcp: int = 1
    dcp: int = 1

    @property
    def world_size(self) -> int:
        """GPUs that one server (or one worker) uses: tp x pp x dp x pcp."""
        return self.tp * self.pp * self.dp * self.pcp


@dataclass(frozen=True)
class Deadlines:
    """Seconds per phase. The queue has its own and never counts against the others."""

    queue: float = 3600.0
    image: float = 1800.0
    load: float = 7200.0
    ready: float = 600.0
    bench: float = 7200.0
    teardown: float = 180.0


@dataclass(frozen=True)
class SlurmSettings:
    """What a profile asks of Slurm; None leaves the option out. ``time`` is Slurm's own text."""

    partition: str | None = None
    gres: str | None = None
    exclusive: bool = False
    time: str | None = None
    account: str | None = None
    qos: str | None = None
    reservation: str | None = None
    segment: int | None = None
    extra_sbatch_args: tuple[str, ...] = ()
    extra_srun_args: tuple[str, ...] = ()
    mpi: str | None = None
    reuse_allocation: bool = False  # the next deployment of the same shape takes the nodes over
    server_command: str | None = None  # perf-eval's site hook: replaces the rank command
    launcher: str | None = None  # perf-eval's site hook: a program that submits and writes the endpoint


@dataclass(frozen=True)
class ContainerSettings:
    """Pyxis. ``runtime`` is pyxis, none, or auto (``srun --help`` decides); mounts are SRC:DST[:FLAGS]."""

    runtime: str = "auto"
    mounts: tuple[str, ...] = ()
    workdir: str | None = None
    remap_root: bool = False
    entrypoint: bool = False


@dataclass(frozen=True)
class ModelStaging:
    """Where staged models lie. ``staged``: required, preferred or off; ``paths``: hub id -> path."""

    root: str | None = None
    staged: str = "off"
    scenarios: tuple[str, ...] = ("fixed-seq-len",)
    paths: Pairs = ()


@dataclass(frozen=True)
class Profile:
    """One entry of gpu_profiles.yaml, typed, with the site defaults filled in."""

    name: str
    platform: str  # lower case marker name: gb300, b200, ...
    runtime: str = "slurm"  # slurm | docker | native
    queue: str | None = None
    hf_home: str | None = None
    image_repo: str | None = None
    env: Pairs = ()
    slurm: SlurmSettings = SlurmSettings()
    container: ContainerSettings = ContainerSettings()
    client_node: str = "head"  # head | last | extra
    models: ModelStaging = ModelStaging()
    allowed_images: tuple[str, ...] = ()
    local_images_only: bool = False  # no registry import on this rack: images must be .sqsh
    deadlines: Deadlines = Deadlines()
    sha256: str = ""


@dataclass(frozen=True)
class Role:
    """Prefill or decode of a disaggregated deployment: ``workers`` servers, each of ``parallel``."""

    name: str  # prefill | decode
    workers: int
    parallel: Parallel
    nodes: int  # nodes of the whole role
    serve_args: tuple[str, ...] = ()
    env: Pairs = ()
    dp_attention: bool = False
    extra: Pairs = ()  # the source's own keys, kept for plan.json (InferenceX additional-settings)

    @property
    def gpus(self) -> int:
        """GPUs of all workers of the role."""
        return self.workers * self.parallel.world_size


@dataclass(frozen=True)
class RouterSettings:
    """The router in front of prefill and decode workers; ``command`` is a template, None the default."""

    command: str | None = None
    args: tuple[str, ...] = ()
    name: str = "vllm-router"
    version: str | None = None


@dataclass(frozen=True)
class ClientSettings:
    """Which client measures: ``vllm-bench``, or a command template with a result parser."""

    kind: str = "vllm-bench"
    command: str | None = None
    parser: str | None = None


@dataclass(frozen=True)
class Deployment:
    """One server configuration on one allocation. Equal deployments share a running server."""

    recipe: str  # file stem
    id: str  # [A-Za-z0-9._-], unique within the recipe
    model: str  # hub id, the row's ``model``
    model_path: str  # what vLLM is given: the hub id, or the staged path
    image: str | None
    vllm_commit: str | None
    profile: Profile
    runtime: str
    framework: str = "vllm"
    servable: bool = True
    unservable_reason: str | None = None
    scenario: str = "fixed-seq-len"
    num_nodes: int = 1
    gpus_per_node: int = 8
    gpu_count: int = 8  # the per-GPU divisor: GPUs allocated
    parallel: Parallel = Parallel()
    serve_args: tuple[str, ...] = ()  # the recipe's own, in order; never launcher-owned flags
    env: Pairs = ()  # profile < recipe, HF_HOME and offline variables included
    env_from_host: tuple[str, ...] = ()  # names whose values come from the caller's environment
    prefill: Role | None = None
    decode: Role | None = None
    router: RouterSettings | None = None
    kv_transfer: str | None = None  # JSON text
    deadlines: Deadlines = Deadlines()
    client: ClientSettings = ClientSettings()
    check_model_path: bool = False  # staged: the path must exist on every node before vLLM starts
    preferred_path: str | None = None  # staged path that replaces model_path where every node has it
    extra: Pairs = ()  # the source's own settings, kept for plan.json

    def role(self, name: str) -> Role | None:
        """The settings of prefill or decode; None for any other role."""
        return {"prefill": self.prefill, "decode": self.decode}.get(name)

    @property
    def serving_gpu_count(self) -> int:
        """GPUs that serve: the parallel sizes' product, over all roles."""
        if self.prefill is not None and self.decode is not None:
            return self.prefill.gpus + self.decode.gpus
        return self.parallel.world_size

    @property
    def served_name(self) -> str:
        """The model name that the API answers to (``--served-model-name``'s first, else the hub id)."""
        args = self.serve_args
        for index, arg in enumerate(args):
            if arg == "--served-model-name" and index + 1 < len(args):
                return args[index + 1]
            if arg.startswith("--served-model-name="):
                return arg.split("=", 1)[1]
        return self.model


@dataclass(frozen=True)
class Load:
    """One client run. ``args`` are pass-through client flags (name without dashes, value)."""

    name: str
    isl: int | None
    osl: int | None
    concurrency: int | None
    num_prompts: int
    backend: str = "openai"
    dataset: str = "random"
    request_rate: str = "inf"
    repetitions: int = 1
    num_warmups: int | None = None  # None: the default of one wave, see bench/
    seed: int | None = None  # None: derived from point and repetition
    ignore_eos: bool = True
    random_range_ratio: float | None = None
    speed_bench_dataset_subset: str | None = None
    speed_bench_category: str | None = None
    args: tuple[tuple[str, str | None], ...] = ()  # a value of None is a bare flag
    measures_cache_hits: bool = False  # the recipe means to measure prefix-cache hits
    max_prefix_cache_hit_rate: float = 0.02


@dataclass(frozen=True)
class Reference:
    """``value`` with relative bounds: lower -0.05 allows 5 % less; None leaves that side open."""

    metric: str
    value: float
    lower: float | None = None
    upper: float | None = None


@dataclass(frozen=True)
class Gates:
    """What must hold, in the row's metric names and units."""

    max_failure_rate: float = 0.0
    floors: tuple[tuple[str, float], ...] = ()
    ceilings: tuple[tuple[str, float], ...] = ()
    references: tuple[Reference, ...] = ()
    max_spread: tuple[tuple[str, float], ...] = ()  # relative IQR over repetitions
    accuracy: tuple[tuple[str, str, float], ...] = ()  # (task, metric, floor)
    known_issue: str | None = None  # the gates are expected to be missed, for this reason


@dataclass(frozen=True)
class Labels:
    """The dashboard's labels; ``tp dp ep precision`` keep perf-eval's gb300 meaning (DESIGN 4)."""

    device: str
    precision: str
    tp: int
    dp: int | None = None
    ep: int | None = None
    is_multinode: bool = False
    dp_attention: bool = False
    disagg: bool = False
    spec_decoding: str = "false"  # "false", "true", or a method name the source gives
    note: str | None = None  # why a figure differs from what upstream would give


@dataclass(frozen=True)
class AccuracyTask:
    """One lm_eval task or one bfcl category; ``model_args`` as lm_eval's comma list."""

    harness: str  # lm_eval | bfcl
    name: str
    num_fewshot: int | None = None
    model_args: str = ""
    options: Pairs = ()


@dataclass(frozen=True)
class Slo:
    """Search for the highest ``over`` in ``range`` that meets ``ceilings``; judged by ``floors``."""

    ceilings: tuple[tuple[str, float], ...]
    over: str = "concurrency"
    low: int = 1
    high: int = 1024
    floors: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Point:
    """One pytest item: a deployment under one load (or one accuracy task, or one SLO search)."""

    id: str
    kind: str  # serving | accuracy | slo
    deployment: Deployment
    labels: Labels
    gates: Gates
    load: Load | None = None
    task: AccuracyTask | None = None
    slo: Slo | None = None
    markers: tuple[str, ...] = ()
    rejected: str | None = None  # why the point is refused (a constraint, or it cannot run), in words
    line: int = 1  # where the point is written in the recipe
    column: int = 1

    @property
    def num_nodes(self) -> int:
        """Nodes of its deployment."""
        return self.deployment.num_nodes


@dataclass(frozen=True)
class ForeignImage:
    """An image that matches none of a profile's ``allowed_images``; ``place`` is where it is decided."""

    place: str  # file:line:column: key
    image: str
    profile: str
    allowed: tuple[str, ...]


@dataclass(frozen=True)
class Recipe:
    """A loaded recipe. ``points`` are in the order of the file, deployment by deployment."""

    stem: str
    name: str
    path: str
    sha256: str
    profile: Profile
    points: tuple[Point, ...]
    nightly: bool = False
    timeout_minutes: float | None = None
    warnings: tuple[str, ...] = ()
    foreign_images: tuple[ForeignImage, ...] = ()
    source: dict[str, object] = field(default_factory=dict, hash=False, compare=False)
