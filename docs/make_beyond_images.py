"""Tables of docs/beyond-images.md: `python docs/make_beyond_images.py [SEEDS]` runs the examples and writes them."""

import runpy
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import fedrecall as fr
from fedrecall.reporting.tables.render import to_markdown

DOCS = Path(__file__).parent
EXAMPLES = DOCS.parent / "examples"
METHODS = ["fedavg", "fedlmd", "fedntd", "fedcad"]


def main(seeds: int = 5) -> None:
    """Run the examples and write their tables into the page."""
    tabular, text = (runpy.run_path(str(EXAMPLES / f"{name}.py")) for name in ("tabular", "text"))
    with TemporaryDirectory() as folder:
        tabular["write_table"](Path(folder) / "patients.csv")
        patients = tabular["read_table"](Path(folder) / "patients.csv")
    texts = text["read_texts"]()
    parts = {
        "clinics": summary_table(tabular["natural"](patients, seeds, METHODS)),
        "patients": "\n\n".join(
            [summary_table(tabular["skewed"](patients, seeds, METHODS)), pooled_accuracy(tabular["pooled"](patients))]
        ),
        "texts": "\n\n".join(
            [summary_table(text["skewed"](texts, seeds, METHODS)), pooled_accuracy(text["pooled"](texts))]
        ),
    }
    page = (DOCS / "beyond-images.md").read_text()
    for name, content in parts.items():
        before, begin, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        page = f"{before}{begin}{content}\n{end}{after}"
    (DOCS / "beyond-images.md").write_text(page)


def summary_table(comparison: fr.Comparison) -> str:
    """Return the brief table without its title (the page has a heading) and seconds (they depend on the machine)."""
    (table,) = comparison.tables(brief=True)
    rows = tuple((name, entries[:-1]) for name, entries in table.rows)
    return to_markdown(table._replace(header=table.header[:-1], rows=rows)).split("\n\n", 1)[1].strip()


def pooled_accuracy(accuracy: float) -> str:
    """Format the accuracy of training on the pooled data."""
    return f"The same network, trained on the pooled data: **{100 * accuracy:.2f} %**."


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
