"""`python docs/make_beyond_images.py [SEEDS]` runs the examples and puts their tables into docs/beyond-images.md."""

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
    """Make all tables, then write the page."""
    tabular, text = (runpy.run_path(str(EXAMPLES / f"{name}.py")) for name in ("tabular", "text"))
    with TemporaryDirectory() as folder:
        tabular["write_table"](Path(folder) / "patients.csv")
        patients = tabular["read_table"](Path(folder) / "patients.csv")
    texts = text["read_texts"]()
    parts = {
        "clinics": shown(tabular["natural"](patients, seeds, METHODS)),
        "patients": f"{shown(tabular['skewed'](patients, seeds, METHODS))}\n\n{one_place(tabular['pooled'](patients))}",
        "texts": f"{shown(text['skewed'](texts, seeds, METHODS))}\n\n{one_place(text['pooled'](texts))}",
    }
    page = (DOCS / "beyond-images.md").read_text()
    for name, content in parts.items():
        before, begin, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        page = f"{before}{begin}{content}\n{end}{after}"
    (DOCS / "beyond-images.md").write_text(page)


def shown(side: fr.Comparison) -> str:
    """The brief table, without its title, which the page's heading says, and seconds, which depend on the machine."""
    (table,) = side.tables(brief=True)
    rows = tuple((name, entries[:-1]) for name, entries in table.rows)
    return to_markdown(table._replace(header=table.header[:-1], rows=rows)).split("\n\n", 1)[1].strip()


def one_place(accuracy: float) -> str:
    """What the federation is measured by."""
    return f"The same network with all data in one place: **{100 * accuracy:.2f} %**."


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
