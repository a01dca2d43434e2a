"""Tables of a run on Flower: its nodes, and the replies that were lost or rejected."""

from collections import Counter
from collections.abc import Iterator
from statistics import median
from typing import Any

from fedrecall.reporting.tables.cells import MILLION, number_cell
from fedrecall.reporting.tables.render import ReportTable, TableCell, TableNote
from fedrecall.runs.directory import STATUS_FILE
from fedrecall.studies.results import FinishedRun, StudyResults, read_json

MAX_LOST = 200  # listed lost replies; rounds.jsonl has all of them

MAX_NODES = 1000  # listed nodes


def federated_runs(results: StudyResults) -> list[FinishedRun]:
    """Return the runs of a study that ran on Flower."""
    found = {run.path: run for run in results.finished_runs()}
    return [run for path, run in found.items() if (path / STATUS_FILE).exists()]


def node_sizes(run: FinishedRun) -> dict[int, int]:
    """Return the number of examples of each client on Flower; without clients that never registered."""
    path = run.path / STATUS_FILE
    clients: dict[str, Any] = read_json(path).get("clients", {}) if path.exists() else {}
    return {int(client): int(entry["examples"]) for client, entry in clients.items() if "examples" in entry}


def federation_tables(results: StudyResults) -> Iterator[ReportTable]:
    """Yield the tables of each run on Flower. With server.privacy there is none: nothing per client is shown."""
    runs = federated_runs(results)
    for run in runs:
        title = "" if len(runs) == 1 else f": {run.cell.row}, seed {run.cell.seed}"
        if any("nodes" in record for record in run.records):
            yield _nodes_table(run, title)
        if (lost := _lost_table(run, title)) is not None:
            yield lost


def _nodes_table(run: FinishedRun, title: str) -> ReportTable:
    status = read_json(run.path / STATUS_FILE).get("clients", {})
    sizes, clients = node_sizes(run), sorted({*map(int, status), *(c for r in run.records for c in r["clients"])})
    sampled = Counter(client for record in run.records for client in record["clients"])
    lost, rejected = (
        Counter(client for record in run.records for client in {entry["client"] for entry in record.get(key, ())})
        for key in ("lost", "refused")
    )
    scored = next((record["client_test"] for record in reversed(run.records) if "client_test" in record), None)
    accuracy = {} if scored is None else dict(zip(scored["clients"], scored["accuracy"]["by_client"], strict=True))
    rows, names = [], dict(enumerate(run.client_names))
    for client in clients[:MAX_NODES]:
        transfers = [r["nodes"][str(client)] for r in run.records if str(client) in r.get("nodes", {})]
        cells = (
            TableCell((str(status.get(str(client), {}).get("node", "-")),)),
            number_cell(None if client not in sizes else float(sizes[client])),
            number_cell(accuracy.get(client), 0.01),
            number_cell(float(sampled[client])),
            number_cell(float(sampled[client] - lost[client] - rejected[client])),
            number_cell(float(lost[client])),
            number_cell(float(rejected[client])),
            number_cell(median(t["seconds"] for t in transfers) if transfers else None),
            number_cell(float(sum(t["bytes_up"] for t in transfers)), MILLION),
            number_cell(float(sum(t["bytes_down"] for t in transfers)), MILLION),
        )
        rows.append((f"client {names.get(client, client)}", cells))
    header = (
        "client",
        "node",
        "examples",
        "accuracy %",
        "sampled",
        "replies",
        "lost",
        "rejected",
        "seconds",
        "MB up",
        "MB down",
    )
    notes = [
        TableNote("sampled, replies, lost and rejected count rounds"),
        TableNote("seconds: median over rounds, from sending the requests until the replies arrived"),
    ]
    if scored is not None:
        overall = scored["accuracy"]
        text = ", ".join(
            f"{label} {100 * overall[key]:.2f} %"
            for label, key in (("mean", "mean"), ("by examples", "weighted"), ("worst", "worst"))
            if overall[key] is not None
        )
        notes.append(TableNote(f"accuracy: of the {scored['model']} model on the node's held-out examples; {text}"))
    if len(clients) > MAX_NODES:
        notes.append(TableNote(f"the first {MAX_NODES} of {len(clients)} clients"))
    return ReportTable(f"nodes{title}", f"Nodes{title}", header, tuple(rows), tuple(notes))


def _lost_table(run: FinishedRun, title: str) -> ReportTable | None:
    found = [
        (record["round"], kind, entry)
        for record in run.records
        for key, kind in (("lost", "lost"), ("refused", "rejected"))
        for entry in record.get(key, ())
    ]
    if not found:
        return None
    names = dict(enumerate(run.client_names))
    rows = []
    for number, kind, entry in found[:MAX_LOST]:
        client = names.get(entry["client"], entry["client"])
        texts = (client, kind, entry.get("code", ""), entry["reason"])
        rows.append((f"round {number}", tuple(TableCell((str(text),)) for text in texts)))
    cut = f"the first {MAX_LOST} of {len(found)}; rounds.jsonl has all"
    notes = (TableNote(cut),) if len(found) > MAX_LOST else ()
    header = ("round", "client", "what", "code", "reason")
    return ReportTable(f"lost replies{title}", f"Lost and rejected replies{title}", header, tuple(rows), notes)
