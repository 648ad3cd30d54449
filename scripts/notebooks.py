"""Makes notebooks/*.ipynb from the percent-format sources beside them: jupytext reads, this file runs the cells and keeps what they say.

    python scripts/notebooks.py                 # run all, write the .ipynb with outputs
    python scripts/notebooks.py --check 03      # run those whose name begins so; status 1 if a cell fails or an .ipynb is not current

Cells run in this process, one namespace for each notebook; a kernel of Jupyter is not needed. Of outputs the words are compared, not the
numbers, and of long ones the beginning: predicted times follow the model's constants.
"""

import argparse
import ast
import contextlib
import io
import linecache
import re
import sys
import time
import types
from pathlib import Path

import jupytext
import nbformat

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
#: What may differ from run to run, and how much of an output is compared.
UNSTEADY, BEGINNING = re.compile(r"\d[\d.,]*|\s+"), 60


class Stopped(Exception):
    """A cell ended with an error."""


def source(path):
    """The notebook of a percent-format file, without outputs."""
    notebook = jupytext.read(path, fmt="py:percent")
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"{path.stem[:2]}-{number:02d}"
        if "solution" in cell.metadata.get("tags", ()) or cell.source.startswith("d = Drawing"):
            cell.metadata["jupyter"] = {"source_hidden": True}      # opened by a click: solutions, and code that only draws
    notebook.metadata["kernelspec"] = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return notebook


def run(path):
    """The notebook with its outputs. Raises Stopped where a cell fails."""
    notebook, count, main = source(path), 0, types.ModuleType("__main__")
    space, before = vars(main), sys.modules["__main__"]
    sys.modules["__main__"] = main                  # as in Jupyter: classes of cells are found there
    try:
        return _run_cells(path, notebook, space, count)
    finally:
        sys.modules["__main__"] = before


def _run_cells(path, notebook, space, count):
    for cell in notebook.cells:
        if cell.cell_type == "code":
            count += 1
            cell.execution_count = count
            try:
                cell.outputs = execute(cell.source, space, f"{path.stem}, cell {count}", count)
            except Exception as error:
                raise Stopped(f"{path.name}, cell {count}: {type(error).__name__}: {error}") from error
    return notebook


def execute(text, space, name, count):
    """Outputs of a cell: what it printed, then what its last expression is."""
    linecache.cache[name] = len(text), None, text.splitlines(True), name          # so that roles have a source
    tree, said, value = ast.parse(text, name), io.StringIO(), None
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(said):
        exec(compile(tree, name, "exec"), space)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), name, "eval"), space)
    outputs = [nbformat.v4.new_output("stream", name="stdout", text=said.getvalue())] if said.getvalue() else []
    if value is not None:
        svg = getattr(value, "_repr_svg_", None)
        data = {"image/svg+xml": svg(), "text/plain": "a picture"} if svg else {"text/plain": repr(value)}
        outputs.append(nbformat.v4.new_output("execute_result", data=data, execution_count=count))
    return outputs


def steady(notebook):
    """What must not change: sources and texts of outputs, without what depends on the machine; of pictures, that there is one."""
    cells = []
    for cell in notebook.cells:
        said = [o.get("text") or ("picture" if "image/svg+xml" in o["data"] else o["data"]["text/plain"]) for o in cell.get("outputs", [])]
        cells.append((cell.cell_type, cell.source, [UNSTEADY.sub(" ", text)[:BEGINNING] for text in said]))
    return cells


def check(path, notebook):
    """"" if the .ipynb beside the source says what this run says, else what differs."""
    made = path.with_suffix(".ipynb")
    if not made.exists():
        return f"{made.name}: is missing"
    old, new = steady(nbformat.read(made, as_version=4)), steady(notebook)
    for (_, text, before), (_, now_text, now) in zip(old, new):
        if text != now_text:
            return f"{made.name}: another source than {path.name}, in the cell that begins {now_text[:60]!r}"
        if before != now:
            return f"{made.name}: another output, of the cell that begins {now_text[:60]!r}: {now} instead of {before}"
    return "" if len(old) == len(new) else f"{made.name}: has {len(old)} cells instead of {len(new)}"


def main():
    """Run, write or check. Returns the exit status."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("names", nargs="*", help="beginnings of names (all)")
    p.add_argument("--check", action="store_true", help="write nothing; compare")
    args = p.parse_args()
    failed = False
    for path in sorted(FOLDER.glob("[0-9]*.py")):
        if args.names and not path.name.startswith(tuple(args.names)):
            continue
        start = time.perf_counter()
        try:
            notebook = run(path)
            wrong = check(path, notebook) if args.check else ""
        except Stopped as error:
            wrong = str(error)
        if not args.check and not wrong:
            nbformat.write(notebook, path.with_suffix(".ipynb"))
        failed = failed or bool(wrong)
        print(f"{path.stem:<28} {time.perf_counter() - start:5.1f} s  {wrong or 'fine'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
