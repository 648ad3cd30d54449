"""lint(): what is wrong with a kernel can often be read. Nothing is run; each rule is one function."""

import ast
import os
from collections import namedtuple

from . import rank_rules
from .rules import RULES
from .subject import Subject

__all__ = ["lint", "Finding", "RULES", "rank_rules"]

#: Something a rule found. ``text`` reads *fact. Rule. Remedy.*
Finding = namedtuple("Finding", "rule role file line code text")


def lint(kernel, cfg=None, rules=None):
    """Read a kernel's roles and say what looks wrong.

    Args:
        kernel: class, or Subject. cfg: the configuration to read its declarations with. rules: names of rules; None: all.

    Returns: list of Finding, by line.
    """
    subject = kernel if isinstance(kernel, Subject) else Subject.of_kernel(kernel, cfg)
    found = []
    for name, rule in RULES.items():
        if rules is None or name in rules:
            for role, call, text in rule(subject):
                found.append(Finding(name, role, call.file if call else "", call.node.lineno if call else 0,
                                     ast.unparse(call.node) if call else "", text))
    return sorted(set(found), key=lambda f: (f.file, f.line, f.rule))


def told(findings, name):
    """The findings as text."""
    if not findings:
        return f"{name}: nothing to say ({len(RULES)} rules)"
    lines = [f"{os.path.relpath(f.file) if f.file else name}:{f.line}: {f.rule}: {f.role}: {f.code}: {f.text}" for f in findings]
    return "\n".join([*lines, f"{name}: {len(findings)} finding{'s' if len(findings) > 1 else ''}"])
