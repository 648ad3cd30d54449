"""Builds the documentation site with Zensical: the pages of docs/, a reference made from what the package exports, the notebooks.

    python scripts/build_site.py                # build/site, and status 1 for a warning or a picture that is not there
    python scripts/build_site.py --serve
"""

import argparse
import ast
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: (section, pages). Pages that are not there yet are left out; any other page of docs/ goes under "More".
PAGES = (
    (None, ["index.md", "start.md", "concepts.md"]),
    ("Using it", ["pipelines.md", "machines.md", "deployment.md", "performance.md", "tuning.md", "scale.md", "troubleshooting.md"]),
    ("Writing kernels", ["kernels.md", "primitives.md", "checking.md", "faults.md", "porting.md"]),
)
REFERENCE = ("World and memory", "Operators", "Configurations", "Kernels and templates", "Primitives", "Errors", "Tools")


def exports():
    """{name: home} of the package, read off its source."""
    tree = ast.parse((ROOT / "pknumba" / "__init__.py").read_text())
    found = next(n.value for n in tree.body if isinstance(n, ast.Assign) and n.targets[0].id == "_HOMES")
    return ast.literal_eval(found)


def homes(package):
    """{name: module} of what a package's __init__ takes from its modules, in its order."""
    path, found = ROOT / "pknumba" / package / "__init__.py", {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            found.update((a.name, f"pknumba.{package}.{node.module}.{a.name}") for a in node.names if not a.name.startswith("_"))
    return found


def reference():
    """{page: text} of the reference."""
    public = exports()
    kernels, configs, templates = homes("kernels"), homes("config"), homes("templates")
    functions = {n: kernels[n] for n, home in public.items() if home == "kernels" and n[0].islower()}
    classes = {n: kernels[n] for n, home in public.items() if home == "kernels" and n[0].isupper()}
    return {
        "World and memory": _page("What ranks share.", ["pknumba.runtime.world.World", "pknumba.runtime.symmetric.SymmetricArray"]),
        "Operators": _page("Public functions: every rank of a world calls them alike.", functions.values()),
        "Configurations": _page("Frozen settings of a family of kernels. Without one, an operator chooses.",
                                [configs[n] for n, home in public.items() if home == "config"]),
        "Kernels and templates": _page("What to extend.", [*templates.values(), *classes.values()], members=False),
        "Primitives": _primitives(),
        "Errors": _page("Every exception, and when it is raised.", ["pknumba.errors"]),
        "Tools": _page("", ["pknumba.checking.checker.check", "pknumba.checking.toys.Toy", "pknumba.checking.verdict.Verdict",
                            "pknumba.lowering.bundle.use", "pknumba.doctor.examination.examine", "pknumba.tiles.Tile",
                            "pknumba.tiles.Semaphore", "pknumba.tiles.Config"]),
    }


def _page(text, names, members=True):
    more = "" if members else "\n    options: {members: false}"
    return "\n\n".join([text, *(f"::: {name}{more}" for name in names)])


def _primitives():
    """Primitives by module, each with the roles that may call it, as its decorator says."""
    parts = ["What roles may call. A *register tile* lies in the registers of a warpgroup, a *shared tile* in shared memory."]
    by_module = {}
    for name, path in homes("primitives").items():
        by_module.setdefault(path.split(".")[2], []).append(name)
    for module, names in by_module.items():
        tree = ast.parse((ROOT / "pknumba" / "primitives" / f"{module}.py").read_text())
        parts.append(f"## {module}\n\n{ast.get_docstring(tree)}")
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name in names:
                parts.append(f"::: pknumba.primitives.{module}.{node.name}\n    options: {{heading_level: 3}}")
                parts.append(f"*Roles:* {_scope(node, tree)}.")
    return "\n\n".join(parts)


def _scope(function, tree):
    """"thread, warp" from ``@primitive(scope=...)``."""
    for decorator in function.decorator_list:
        for keyword in getattr(decorator, "keywords", ()):
            if keyword.arg == "scope":
                value = keyword.value
                if isinstance(value, ast.Name):
                    value = next(n.value for n in tree.body if isinstance(n, ast.Assign) and n.targets[0].id == value.id)
                scopes = ast.literal_eval(value) or "any"
                return scopes if isinstance(scopes, str) else ", ".join(scopes)
    return "any"


def folded(title, text):
    """Text that a reader opens."""
    return f'??? note "{title}"\n\n' + "\n".join(f"    {line}" if line else "" for line in text.splitlines())


def notebook(path):
    """A notebook as Markdown: its texts, its code, and what the code printed or drew. Solutions, and code that only draws, are folded."""
    parts = []
    for cell in json.loads(path.read_text())["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        code, shown = f"```python\n{text}\n```", []
        for out in cell.get("outputs", ()):
            data = out.get("data", {})
            if "image/svg+xml" in data:
                shown.append("".join(data["image/svg+xml"]))
            elif "text" in out or "text/plain" in data:
                shown.append("```text\n" + "".join(out.get("text") or data["text/plain"]).rstrip() + "\n```")
        if "solution" in cell["metadata"].get("tags", ()):
            parts.append(folded("Solution", "\n\n".join([code, *shown])))
        elif text.startswith("d = Drawing"):
            parts += [*shown, folded("The code of this picture", code)]
        else:
            parts += [code, *shown]
    return "\n\n".join(parts)


def _slug(name):
    return name.lower().replace(" ", "-").replace("world-and-memory", "world")


def navigation(there):
    """The order of the pages, as the generator wants it. there: every page."""
    placed, nav = set(), []
    for section, pages in PAGES:
        pages = [p for p in pages if p in there]
        placed |= set(pages)
        nav += pages if section is None else [{section: pages}]
    notebooks = sorted(p for p in there if p.startswith("notebooks/"))
    nav += [{"Notebooks": notebooks}] if notebooks else []
    nav.append({"Reference": [f"reference/{_slug(name)}.md" for name in REFERENCE]})
    rest = [p for p in there if p not in placed and not p.startswith(("notebooks/", "reference/"))]
    return [*nav, {"Inside": sorted(rest, key=lambda p: (p.count("/"), p))}]


def stage(folder):
    """Everything that the generator reads, in a folder: the pages of docs/, those made here, and the configuration. Returns its path."""
    docs = folder / "docs"
    shutil.rmtree(docs, ignore_errors=True)
    shutil.copytree(ROOT / "docs", docs)
    made = {f"reference/{_slug(name)}.md": f"# {name}\n\n{text}\n" for name, text in reference().items()}
    made.update((f"notebooks/{path.stem}.md", notebook(path)) for path in sorted((ROOT / "notebooks").glob("*.ipynb")))
    for name, text in made.items():
        (docs / name).parent.mkdir(exist_ok=True)
        (docs / name).write_text(text)
    there = {p.relative_to(docs).as_posix() for p in docs.rglob("*.md")}
    text = (ROOT / "mkdocs.yml").read_text().replace("paths: [.]", f"paths: [{json.dumps(str(ROOT))}]")
    text = text.replace("scripts/docstring_style.py", json.dumps(str(ROOT / "scripts" / "docstring_style.py")))
    (folder / "mkdocs.yml").write_text(f"{text}\nnav: {json.dumps(navigation(there))}\n")
    return folder / "mkdocs.yml"


def lost_pictures(site):
    """[page: picture] of pictures that pages show and the site does not have."""
    lost = []
    for page in sorted(site.rglob("*.html")):
        for source in re.findall(r'<img[^>]* src="([^":]+)"', page.read_text()):
            target = site / source.lstrip("/") if source.startswith("/") else page.parent / source
            lost += [] if target.exists() else [f"{page.relative_to(site)}: {source}"]
    return lost


def main():
    """Stage and build. Returns the exit status."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--folder", type=Path, default=ROOT / "build", help="where to build (build/); the site is in its folder site")
    p.add_argument("--serve", action="store_true", help="show it on a local port instead, until interrupted")
    args = p.parse_args()
    if importlib.util.find_spec("zensical") is None:
        p.error("zensical is not installed. It makes the site, and needs Python 3.11. pip install '.[docs]' there.")
    args.folder.mkdir(parents=True, exist_ok=True)
    config = stage(args.folder)
    if args.serve:
        return subprocess.run([sys.executable, "-m", "zensical", "serve", "-f", str(config)]).returncode
    done = subprocess.run([sys.executable, "-m", "zensical", "build", "--strict", "--clean", "-f", str(config)], cwd=args.folder)
    lost = lost_pictures(args.folder / "site")
    pages = len(list((args.folder / "site").rglob("*.html")))
    print("\n".join(f"lost picture: {line}" for line in lost) or f"{args.folder / 'site'}: {pages} pages", flush=True)
    return 1 if done.returncode or lost else 0


if __name__ == "__main__":
    sys.exit(main())
