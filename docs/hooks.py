"""What mkdocs does beside its own: pages that live elsewhere in the repository, and equations without a script.

The README is the home page; CHANGELOG and CONTRIBUTING are pages as well. Equations become MathML while the site is
built, so that no page loads a script from anyone.
"""

import re
from html import unescape
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
ALONE = "---\nhide: [navigation]\n---\n"  # the home page has no neighbours
# GitHub chooses between two pictures by the reader's theme; so does the theme of the site, by the end of the address.
PICTURE = re.compile(
    r'<picture>\s*<source [^>]*srcset="(?P<dark>[^"]+)">\s*<img alt="(?P<alt>[^"]*)" src="(?P<light>[^"]+)">\s*'
    r"</picture>"
)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are kept outside the folder of the documentation, and the examples, for download."""
    for source, page in PAGES.items():
        text = moved((ROOT / source).read_text())
        files.append(File.generated(config, page, content=ALONE + text if page == "index.md" else text))
    for example in EXAMPLES.glob("*.*"):
        place = f"examples/{example.name}"
        files.append(File.generated(config, place, abs_src_path=str(example), inclusion=InclusionLevel.INCLUDED))
    return files


def moved(text: str) -> str:
    """A page of the repository's root, as one of docs/."""
    text = re.sub(r"(\]\(|src(?:set)?=\")docs/", r"\1", text)
    for source, page in PAGES.items():
        text = text.replace(f"]({source}", f"]({page}")
    return text


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Pictures that follow the theme; links to examples, which are beside the pages here."""
    markdown = markdown.replace("](../examples/", "](examples/")
    return PICTURE.sub(r"![\g<alt>](\g<light>#only-light)\n![\g<alt>](\g<dark>#only-dark)", markdown)


def on_page_content(html: str, **_: Any) -> str:
    r"""Equations: `\(x\)` within a line, `\[x\]` by itself."""
    html = re.sub(r'<span class="arithmatex">\\\((.*?)\\\)</span>', lambda m: mathml(m[1]), html, flags=re.DOTALL)
    shown = r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>'
    return re.sub(shown, lambda m: f'<div class="equation">{mathml(m[1], "block")}</div>', html, flags=re.DOTALL)


def mathml(latex: str, display: str = "inline") -> str:
    """One equation, as browsers draw it themselves."""
    text = convert(unescape(latex).strip(), display=display)
    return text.replace("<mi>log</mi>", '<mi>log</mi><mspace width="0.17em"/>')  # else it clings to what follows
