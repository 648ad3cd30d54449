"""Hooks of mkdocs: the order of the pages, a reference made from what the package exports, and the notebooks as pages."""

import ast
import json
from pathlib import Path

from mkdocs.structure.files import File

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


def notebook(path):
    """A notebook as Markdown: its texts, its code, and what the code printed or drew."""
    parts = []
    for cell in json.loads(path.read_text())["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(f"```python\n{text}\n```")
        for out in cell.get("outputs", ()):
            data = out.get("data", {})
            if "image/svg+xml" in data:
                parts.append("".join(data["image/svg+xml"]))
            elif "text" in out or "text/plain" in data:
                parts.append("```text\n" + "".join(out.get("text") or data["text/plain"]).rstrip() + "\n```")
    return "\n\n".join(parts)


def on_files(files, config):
    """Add the pages that are made here, and take away what is no page."""
    for name, text in reference().items():
        files.append(File.generated(config, f"reference/{_slug(name)}.md", content=f"# {name}\n\n{text}\n"))
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=notebook(path)))
    return files


def _slug(name):
    return name.lower().replace(" ", "-").replace("world-and-memory", "world")


def on_config(config):
    """The order of the pages."""
    there = {p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")}
    placed, nav = set(), []
    for section, pages in PAGES:
        pages = [p for p in pages if p in there]
        placed |= set(pages)
        nav += pages if section is None else [{section: pages}]
    notebooks = [f"notebooks/{p.stem}.md" for p in sorted((ROOT / "notebooks").glob("*.ipynb"))]
    nav += [{"Notebooks": notebooks}] if notebooks else []
    nav.append({"Reference": [f"reference/{_slug(name)}.md" for name in REFERENCE]})
    rest = sorted(there - placed)
    nav.append({"Inside": sorted(rest, key=lambda p: (p.count("/"), p))})
    config["nav"] = nav
    return config
