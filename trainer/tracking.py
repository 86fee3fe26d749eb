"""MLflow tracking for the single trial, the GPU actors and the sweep: journal first, ship in the background.

Every record is appended to a journal file (JSON lines) on local disk and shipped to MLflow in batches by one thread. So
the trainer never waits for the server, memory stays bounded however long the server is away, and what a crash left
unshipped is shipped by the next process that opens the journal. Timestamps are taken when a value is recorded: shipping
a line twice changes nothing. Runs are found by their tags, never by a remembered id: a resumed trial continues its own.

No torch here: thin clients track too.
"""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from trainer.errors import UserError

MAX_METRICS, MAX_PARAMS, MAX_PARAM_CHARS = 800, 100, 6_000
"""What goes into one batch beside up to 100 tags (MLflow takes 1,000 values in all), and into one parameter."""
PIECE_BYTES = 1 << 20
"""Of a journal are read at a time."""
_LONG_VALUE_FOLDER = "params"
_REFUSALS = ("INVALID_PARAMETER_VALUE", "INVALID_STATE", "RESOURCE_DOES_NOT_EXIST")
_EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}


@dataclass(frozen=True)
class RunKey:
    """Which run a record belongs to: found by these tags, created where none is found."""

    tags: tuple[tuple[str, str], ...]
    name: str
    parent: RunKey | None = None

    @staticmethod
    def of(name: str, parent: RunKey | None = None, **tags: str) -> RunKey:
        return RunKey(tuple(sorted(tags.items())), name, parent)

    def to_json(self) -> dict[str, Any]:
        parent = None if self.parent is None else self.parent.to_json()
        return {"tags": dict(self.tags), "name": self.name, "parent": parent}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> RunKey:
        parent = None if value["parent"] is None else RunKey.from_json(value["parent"])
        return RunKey(tuple(sorted(value["tags"].items())), value["name"], parent)


class Tracker:
    """Records values of runs; one instance per process and journal.

    Args:
        uri: MLflow tracking URI.
        experiment: name of the experiment, created where it does not exist.
        journal: file that keeps what is not shipped yet; reopened after a crash.
    """

    def __init__(self, uri: str, experiment: str, journal: Path) -> None:
        self._journal = journal
        journal.parent.mkdir(parents=True, exist_ok=True)
        _drop_torn_line(journal)
        self._file = journal.open("a", encoding="utf-8")
        self._lock = threading.Lock()
        self._wake, self._closing = threading.Event(), threading.Event()
        self._shipper = Shipper(uri, experiment, journal)
        self._thread = threading.Thread(target=self._ship_until_closed, name="tracking", daemon=True)
        self._thread.start()

    def metrics(self, run: RunKey, values: Mapping[str, float], step: int) -> None:
        """Record numbers of one step; those that are not finite are left out (the database cannot order them)."""
        finite = {name: float(value) for name, value in values.items() if math.isfinite(value)}
        self._record(run, {"metrics": finite, "step": step})

    def params(self, run: RunKey, values: Mapping[str, Any]) -> None:
        """Record the values a run was started with; they never change."""
        self._record(run, {"params": {name: str(value) for name, value in values.items()}})

    def tags(self, run: RunKey, values: Mapping[str, str]) -> None:
        """Record or change tags."""
        self._record(run, {"tags": dict(values)})

    def artifact(self, run: RunKey, path: Path) -> None:
        """Record a file or folder; it is read when shipped and must exist until then."""
        self._record(run, {"artifact": str(path.resolve())})

    def status(self, run: RunKey, status: str) -> None:
        """Set ``RUNNING``, ``FINISHED``, ``FAILED`` or ``KILLED``."""
        self._record(run, {"status": status})

    def flush(self, timeout_s: float) -> bool:
        """Wait until all is shipped; False where the server did not take it in time (nothing is lost)."""
        deadline = time.monotonic() + timeout_s
        self._wake.set()
        while self._shipper.offset < self._journal.stat().st_size:
            if time.monotonic() > deadline or not self._thread.is_alive():
                return False
            time.sleep(0.02)
        return True

    def run_id(self, run: RunKey) -> str | None:
        """MLflow's id of a run that was shipped, else None."""
        return self._shipper.run_ids.get(run)

    def close(self, timeout_s: float = 30.0) -> bool:
        """Flush and stop; True where everything was shipped, else the journal keeps the rest for next time."""
        shipped = self.flush(timeout_s)
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout=5.0)
        with self._lock:
            self._file.close()
        return shipped

    def _record(self, run: RunKey, what: dict[str, Any]) -> None:
        line = json.dumps({"run": run.to_json(), "time_ms": int(time.time() * 1000), **what})
        with self._lock:
            self._file.write(line + "\n")
            self._file.flush()
        self._wake.set()

    def _ship_until_closed(self) -> None:
        delay = 0.0
        while not self._closing.is_set():
            self._wake.wait(timeout=1.0)
            self._wake.clear()
            try:
                self._shipper.ship_all(self._closing)
                delay = 0.0
            except (
                Exception
            ) as error:  # whatever the server or the network did, training goes on and the journal keeps all
                delay = min(30.0, max(0.5, 2 * delay))
                self._shipper.last_error = f"{type(error).__name__}: {error}"
                self._closing.wait(delay)
                self._wake.set()


@dataclass
class Shipper:
    """Reads the journal from where shipping stopped and sends it; raises on any failure and can be called again."""

    uri: str
    experiment: str
    journal: Path
    run_ids: dict[RunKey, str] = field(default_factory=dict)
    knows_all: bool = False  # run_ids has every run there is: others need not be looked for
    last_error: str = ""
    refused: str = ""  # what the server would not take, and never will
    _client: Any = None
    _experiment_id: str = ""

    def __post_init__(self) -> None:
        self.offset = shipped_bytes(self.journal)

    def ship_all(self, closing: threading.Event) -> None:
        while not closing.is_set():
            lines, end = self.read_piece()
            if not lines:
                return
            self.send(lines)
            self.shipped(end)

    def send(self, lines: Sequence[dict[str, Any]]) -> None:
        """Send records, those of one run together."""
        self._connect()
        for run, records in _by_run(lines):
            self._send_unless_refused(run, records)

    def shipped(self, end: int) -> None:
        """Remember that the journal was sent up to this byte."""
        _write_whole(_offset_file(self.journal), str(end))
        self.offset = end

    def read_piece(self, max_bytes: int = PIECE_BYTES) -> tuple[list[dict[str, Any]], int]:
        """The next whole lines, and the byte after them."""
        with self.journal.open("rb") as file:
            file.seek(self.offset)
            piece = file.read(max_bytes)
            while piece and b"\n" not in piece:
                more = file.read(max_bytes)
                if not more:
                    break
                piece += more
        whole = piece[: piece.rfind(b"\n") + 1]
        return [json.loads(line) for line in whole.splitlines()], self.offset + len(whole)

    def _connect(self) -> None:
        if self._client is not None:
            return
        client = connect(self.uri)
        self._experiment_id = ensure_experiment(client, self.uri, self.experiment)
        self._client = client

    def _resolve(self, run: RunKey) -> str:
        if run not in self.run_ids:
            parent = None if run.parent is None else self._resolve(run.parent)
            found = None if self.knows_all else self._find(run)
            self.run_ids[run] = found or self._create(run, parent)
        return self.run_ids[run]

    def _find(self, run: RunKey) -> str | None:
        query = " and ".join(f"tags.`{name}` = '{value}'" for name, value in run.tags)
        found = self._client.search_runs(
            [self._experiment_id], query, max_results=1, order_by=["attributes.start_time"]
        )
        return found[0].info.run_id if found else None

    def _create(self, run: RunKey, parent: str | None) -> str:
        tags = dict(run.tags) | {"mlflow.runName": run.name, "mlflow.source.name": "paceline"}
        if parent is not None:
            tags["mlflow.parentRunId"] = parent
        return str(self._client.create_run(self._experiment_id, tags=tags, run_name=run.name).info.run_id)

    def _send_unless_refused(self, run: RunKey, records: Sequence[dict[str, Any]]) -> None:
        """A server that is away may take them later; one that refuses them (somebody deleted the run) never will."""
        from mlflow.exceptions import MlflowException

        try:
            self._send(self._resolve(run), records)
        except MlflowException as error:
            if error.error_code not in _REFUSALS:
                raise
            self.refused = f"{run.name} refused: {str(error).splitlines()[0][:200]}"

    def _send(self, run_id: str, records: Sequence[dict[str, Any]]) -> None:
        from mlflow.entities import Metric, Param, RunTag

        metrics = [
            Metric(name, value, record["time_ms"], record["step"])
            for record in records
            for name, value in record.get("metrics", {}).items()
        ]
        params = {name: value for record in records for name, value in record.get("params", {}).items()}
        tags = {name: value for record in records for name, value in record.get("tags", {}).items()}
        entities = [Param(name, value[:MAX_PARAM_CHARS]) for name, value in params.items()]
        batches = max(-(-len(metrics) // MAX_METRICS), -(-len(entities) // MAX_PARAMS), bool(tags))
        for batch in range(batches):
            self._client.log_batch(
                run_id,
                metrics=metrics[batch * MAX_METRICS : (batch + 1) * MAX_METRICS],
                params=entities[batch * MAX_PARAMS : (batch + 1) * MAX_PARAMS],
                tags=[RunTag(name, value) for name, value in tags.items()] if batch == 0 else (),
            )
        for name, value in params.items():
            if len(value) > MAX_PARAM_CHARS:
                self._client.log_text(run_id, value, f"{_LONG_VALUE_FOLDER}/{name}.txt")
        for record in records:
            if "artifact" in record:
                self._log_artifact(run_id, Path(record["artifact"]))
            if "status" in record:
                self._set_status(run_id, record["status"])

    def _log_artifact(self, run_id: str, path: Path) -> None:
        if path.is_dir():
            self._client.log_artifacts(run_id, str(path), path.name)
        elif path.is_file():
            self._client.log_artifact(run_id, str(path))

    def _set_status(self, run_id: str, status: str) -> None:
        if status == "RUNNING":
            self._client.update_run(run_id, status=status)
        else:
            self._client.set_terminated(run_id, status=status)


def shipped_bytes(journal: Path) -> int:
    """How far a journal has been shipped."""
    offset = _offset_file(journal)
    return int(offset.read_text()) if offset.exists() else 0


def _offset_file(journal: Path) -> Path:
    return journal.with_suffix(".offset")


def connect(uri: str) -> Any:
    """An MLflow client that fails within seconds where nobody answers."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    from mlflow.tracking import MlflowClient

    for chatty in ("mlflow", "alembic"):  # what they say of a new database's tables is no news to a person
        logging.getLogger(chatty).setLevel(logging.WARNING)
    return MlflowClient(tracking_uri=uri)


def ensure_experiment(client: Any, uri: str, name: str) -> str:
    """The id of an experiment, created where there is none, also when another process creates it at the same time.

    Its kind tells MLflow's pages that these are training runs. Artifacts of a SQLite store lie beside the database.
    """
    found = client.get_experiment_by_name(name)
    if found is None:
        beside = Path(uri.removeprefix("sqlite:///")).resolve().parent / "mlartifacts"
        location = beside.as_uri() if urlsplit(uri).scheme == "sqlite" else None
        try:
            return str(client.create_experiment(name, artifact_location=location, tags=_EXPERIMENT_TAGS))
        except Exception:  # another process created it in between
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    return str(found.experiment_id)


def check_uri(uri: str) -> None:
    """Ask the tracking server one question before any work starts.

    Raises:
        UserError: it does not answer.
    """
    try:
        connect(uri).search_experiments(max_results=1)
    except Exception as error:
        secret = urlsplit(uri).netloc.rpartition("@")[0]
        reason = str(error).splitlines()[0].replace(f"{secret}@", "")[:200]
        raise UserError(f"tracking server {redact(uri)}: no answer ({reason}); start it or name another one") from error


def redact(uri: str) -> str:
    """The URI without the user name and password it may carry."""
    parts = urlsplit(uri)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])) if "@" in parts.netloc else uri


def _by_run(lines: Sequence[dict[str, Any]]) -> Iterator[tuple[RunKey, list[dict[str, Any]]]]:
    grouped: dict[RunKey, list[dict[str, Any]]] = {}
    for line in lines:
        grouped.setdefault(RunKey.from_json(line["run"]), []).append(line)
    yield from grouped.items()


def _drop_torn_line(journal: Path) -> None:
    """Cut off a last line that a crash left half written."""
    if journal.exists():
        data = journal.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole != len(data):
            with journal.open("r+b") as file:
                file.truncate(whole)


def _write_whole(path: Path, text: str) -> None:
    temporary = path.with_suffix(path.suffix + ".tmp")
    temporary.write_text(text)
    temporary.replace(path)
