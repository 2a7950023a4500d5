"""Reason codes: why a row is not ``passed``. ``docs/reasons.md`` is generated from this module."""

from __future__ import annotations

from enum import Enum

__all__ = ["Phase", "Reason"]


class Phase(Enum):
    """The phases of a deployment, in order; the value is the key in ``phase_seconds``."""

    QUEUE = "queue"
    IMPORT = "import"
    LOAD = "load"
    READY = "ready"
    BENCH = "bench"
    TEARDOWN = "teardown"

    @property
    def doing(self) -> str:
        """The phase as a clause for messages: ``while <doing>``."""
        return {
            "queue": "waiting for nodes",
            "import": "importing the image and starting the ranks",
            "load": "loading the model",
            "ready": "waiting for the server to answer",
            "bench": "benchmarking",
            "teardown": "giving the nodes back",
        }[self.value]


class Reason(Enum):
    """One code per cause. ``meaning`` is for people; ``infrastructure`` says whose fault and what repeats."""

    # The measured system missed what the recipe demands: FAILED.
    GATE_MISSED = "gate_missed"
    KNOWN_ISSUE_PASSED = "known_issue_passed"
    REGRESSION = "regression"
    # The measurement cannot be trusted: FAILED, numbers are null.
    NOTHING_COMPLETED = "nothing_completed"
    PROMPTS_UNACCOUNTED = "prompts_unaccounted"
    OUTPUT_TOKENS_OFF = "output_tokens_off"
    INPUT_TOKENS_OFF = "input_tokens_off"
    NOT_FINITE = "not_finite"
    BAD_DURATION = "bad_duration"
    WRONG_MODEL = "wrong_model"
    WRONG_LOAD = "wrong_load"
    STALE_RESULT = "stale_result"
    UNREADABLE_RESULT = "unreadable_result"
    PREFIX_CACHE_HITS = "prefix_cache_hits"
    # The world failed: ERROR (or a failure whose first line says so); repeatable.
    SUBMIT_REFUSED = "submit_refused"
    SUBMIT_UNCLEAR = "submit_unclear"
    PENDING_FOREVER = "pending_forever"
    QUEUE_TIMEOUT = "queue_timeout"
    IMPORT_FAILED = "import_failed"
    IMPORT_TIMEOUT = "import_timeout"
    MODEL_NOT_STAGED = "model_not_staged"
    PORT_TAKEN = "port_taken"
    FOREIGN_SERVER = "foreign_server"
    SERVER_EXITED = "server_exited"
    LOAD_TIMEOUT = "load_timeout"
    READY_TIMEOUT = "ready_timeout"
    CLIENT_FAILED = "client_failed"
    CLIENT_HUNG = "client_hung"
    NO_RESULT = "no_result"
    TIME_LIMIT = "time_limit"
    CANCELLED = "cancelled"
    NODE_FAILED = "node_failed"
    PREEMPTED = "preempted"
    REQUEUED = "requeued"
    OUT_OF_MEMORY = "out_of_memory"
    JOB_ENDED = "job_ended"
    JOB_LOST = "job_lost"
    HEARTBEAT_LOST = "heartbeat_lost"
    SLURM_UNREACHABLE = "slurm_unreachable"
    RESULTS_UNWRITABLE = "results_unwritable"
    INTERRUPTED = "interrupted"
    DEPLOYMENT_FAILED = "deployment_failed"
    HARNESS_ERROR = "harness_error"

    @property
    def infrastructure(self) -> bool:
        """True when the measured system is not to blame; only these are ever repeated."""
        return self not in _MEASURED

    @property
    def trusted(self) -> bool:
        """True when the row's figures are a measurement, judged by its gates; they are null otherwise."""
        return self in _TRUSTED

    @property
    def meaning(self) -> str:
        """One sentence for ``docs/reasons.md``."""
        return _MEANING[self]


_TRUSTED = frozenset({Reason.GATE_MISSED, Reason.KNOWN_ISSUE_PASSED, Reason.REGRESSION})
_MEASURED = _TRUSTED | frozenset(
    {
        Reason.NOTHING_COMPLETED,
        Reason.PROMPTS_UNACCOUNTED,
        Reason.OUTPUT_TOKENS_OFF,
        Reason.INPUT_TOKENS_OFF,
        Reason.NOT_FINITE,
        Reason.BAD_DURATION,
        Reason.WRONG_MODEL,
        Reason.WRONG_LOAD,
        Reason.STALE_RESULT,
        Reason.UNREADABLE_RESULT,
        Reason.PREFIX_CACHE_HITS,
    }
)

_MEANING = {
    Reason.GATE_MISSED: "A floor, ceiling, reference, spread or the maximum failure rate was missed.",
    Reason.KNOWN_ISSUE_PASSED: "A gate marked `known_issue` was met: remove the mark.",
    Reason.REGRESSION: "A metric is worse than the baseline by more than `--gpubench-compare-fail` allows.",
    Reason.NOTHING_COMPLETED: "No request completed: nothing was measured, whatever the exit code says.",
    Reason.PROMPTS_UNACCOUNTED: "completed + failed differs from the prompts that were asked for.",
    Reason.OUTPUT_TOKENS_OFF: "Fewer or more output tokens than requests x osl although EOS is ignored.",
    Reason.INPUT_TOKENS_OFF: "The input tokens are far from requests x isl.",
    Reason.NOT_FINITE: "A figure that decides is NaN or infinite.",
    Reason.BAD_DURATION: "The benchmark duration is missing, zero or negative.",
    Reason.WRONG_MODEL: "The result file names another model than the one that was asked for.",
    Reason.WRONG_LOAD: "The result file has another concurrency or number of prompts than asked for.",
    Reason.STALE_RESULT: "The result file was not written by this run.",
    Reason.UNREADABLE_RESULT: "The result file is not JSON, or lacks what no result can lack.",
    Reason.PREFIX_CACHE_HITS: "Random prompts hit the prefix cache more than the limit allows.",
    Reason.SUBMIT_REFUSED: "sbatch refused the job; its own words and the options are in the message.",
    Reason.SUBMIT_UNCLEAR: "sbatch gave no job id and no job of that name is in the queue.",
    Reason.PENDING_FOREVER: "The job is pending for a reason that never clears by itself.",
    Reason.QUEUE_TIMEOUT: "No nodes within `max_pending`.",
    Reason.IMPORT_FAILED: "The container image could not be imported or started.",
    Reason.IMPORT_TIMEOUT: "No rank process started within the image deadline.",
    Reason.MODEL_NOT_STAGED: "The staged model path is missing on a node.",
    Reason.PORT_TAKEN: "A port the server needs is taken on its node.",
    Reason.FOREIGN_SERVER: "The endpoint answers, but serves another model.",
    Reason.SERVER_EXITED: "A rank ended (any exit code) while it was needed.",
    Reason.LOAD_TIMEOUT: "The server did not answer /health within the load deadline.",
    Reason.READY_TIMEOUT: "The server answers /health but does not serve within the ready deadline.",
    Reason.CLIENT_FAILED: "The benchmark client ended with an error and left no result.",
    Reason.CLIENT_HUNG: "The benchmark client did not end within the bench deadline.",
    Reason.NO_RESULT: "The benchmark client ended well but its result file never appeared.",
    Reason.TIME_LIMIT: "Slurm ended the job at its time limit.",
    Reason.CANCELLED: "The job was cancelled from outside.",
    Reason.NODE_FAILED: "A node of the allocation failed.",
    Reason.PREEMPTED: "The job was preempted.",
    Reason.REQUEUED: "The job was requeued or restarted: what ran before is no measurement.",
    Reason.OUT_OF_MEMORY: "Slurm ended the job for memory.",
    Reason.JOB_ENDED: "The job ended although it should have gone on.",
    Reason.JOB_LOST: "The job left the queue and no record says how it ended.",
    Reason.HEARTBEAT_LOST: "The job ended itself because the controlling process stopped its heartbeat.",
    Reason.SLURM_UNREACHABLE: "Slurm did not answer within the tolerated time.",
    Reason.RESULTS_UNWRITABLE: "The results folder cannot be written (disk full, permissions).",
    Reason.INTERRUPTED: "The run was interrupted (Ctrl-C, SIGTERM, SIGHUP).",
    Reason.DEPLOYMENT_FAILED: "The deployment had already failed for an earlier point; its cause is quoted.",
    Reason.HARNESS_ERROR: "An exception that nobody expected: a defect here, or in a project's own fixture.",
}
