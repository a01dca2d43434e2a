"""Hooks of mkdocs: pages from other folders of the repository, and equations as MathML.

The README is the home page; CHANGELOG and CONTRIBUTING are pages as well. Equations become MathML when the site is
built, so no page loads a script from another server.
"""

import re
from html import unescape
from pathlib import Path
from typing import Any

import make_configuration  # mkdocs puts the folder of its hooks on the path
from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
NO_NAVIGATION = "---\nhide: [navigation]\n---\n"  # the home page is the only page of its section
# GitHub selects one of two images by the reader's theme. The site does the same by the fragment of the address.
PICTURE = re.compile(
    r'<picture>\s*<source [^>]*srcset="(?P<dark>[^"]+)">\s*<img alt="(?P<alt>[^"]*)" src="(?P<light>[^"]+)">\s*'
    r"</picture>"
)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from outside the folder docs, and the examples for download."""
    for source, page in PAGES.items():
        text = with_docs_links((ROOT / source).read_text())
        files.append(File.generated(config, page, content=NO_NAVIGATION + text if page == "index.md" else text))
    for example in EXAMPLES.glob("*.*"):
        path = f"examples/{example.name}"
        files.append(File.generated(config, path, abs_src_path=str(example), inclusion=InclusionLevel.INCLUDED))
    if (committed := files.get_file_from_path(make_configuration.PAGE.name)) is not None:
        files.remove(committed)
    files.append(File.generated(config, make_configuration.PAGE.name, content=make_configuration.page()))
    return files


def with_docs_links(text: str) -> str:
    """Rewrite the links of a page in the repository's root for a page in docs."""
    text = re.sub(r"(\]\(|src(?:set)?=\")docs/", r"\1", text)
    for source, page in PAGES.items():
        text = text.replace(f"]({source}", f"]({page}")
    return text


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Rewrite images that depend on the theme, and links to examples."""
    markdown = markdown.replace("](../examples/", "](examples/")
    return PICTURE.sub(r"![\g<alt>](\g<light>#only-light)\n![\g<alt>](\g<dark>#only-dark)", markdown)


def on_page_content(html: str, **_: Any) -> str:
    r"""Convert equations to MathML: `\(x\)` inline, `\[x\]` as a block."""
    html = re.sub(r'<span class="arithmatex">\\\((.*?)\\\)</span>', lambda m: mathml(m[1]), html, flags=re.DOTALL)
    shown = r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>'
    return re.sub(shown, lambda m: f'<div class="equation">{mathml(m[1], "block")}</div>', html, flags=re.DOTALL)


def mathml(latex: str, display: str = "inline") -> str:
    """Convert one equation to MathML, which browsers render without a script."""
    text = convert(unescape(latex).strip(), display=display)
    text = text.replace("<mi>log</mi>", '<mi>log</mi><mspace width="0.17em"/>')  # no space around log otherwise
    return re.sub(r"(</m(?:i|sub|sup|subsup)>)<mi>log</mi>", r'\1<mspace width="0.17em"/><mi>log</mi>', text)
