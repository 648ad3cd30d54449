"""How the reference reads docstrings: an extension of mkdocstrings' reader that scripts/build_site.py names.

Sources keep docstrings short: several arguments in a line ("A: (M, K). B: (K, N)."), results and errors in one ("Returns: C (M, N).").
The reference shows an entry for each argument, and the words before a colon in bold.
"""

import re

import griffe

#: What begins a paragraph of its own, in bold.
LABELS = re.compile(r"^(Returns|Raises|PTX|Yields): (?=\S)", re.MULTILINE)
SECTION = re.compile(r"^(Args|Attributes):\n((?:(?: +.*)?\n)*(?: +.*)?)", re.MULTILINE)
ENTRY = re.compile(r"^(\**\w+(?:, \**\w+)*): ")


def entries(text, known):
    """[(names, description)] of a section's lines; further arguments in the same line are entries of their own.

    Args:
        known: names that may begin an entry inside a line.
    """
    lines = [line.strip() for line in text.splitlines()]
    depth = min((len(line) - len(line.lstrip()) for line in text.splitlines() if line.strip()), default=0)
    found = []
    for raw, line in zip(text.splitlines(), lines):
        begins = ENTRY.match(line) if len(raw) - len(raw.lstrip()) == depth else None
        if begins:
            found.append([begins[1], line[begins.end():]])
        elif found and line:
            found[-1][1] += " " + line
    split = []
    for names, said in found:
        parts = re.split(r"(?<=[.)\]]) (\w+(?:, \w+)*): ", said)
        split.append([names, parts[0]])
        for more, words in zip(parts[1::2], parts[2::2]):
            if all(name in known for name in more.split(", ")):
                split.append([more, words])
            else:
                split[-1][1] += f" {more}: {words}"
    return split


def styled(text, known=()):
    """A docstring as the reference's reader wants it."""
    def section(match):
        listed = entries(match[2], known)
        rest = "" if not match[2].endswith("\n\n") else "\n"
        return f"{match[1]}:\n" + "".join(f"    {names}: {said}\n" for names, said in listed) + rest
    return LABELS.sub(r"**\1:** ", SECTION.sub(section, text))


class Style(griffe.Extension):
    """Restyles every docstring as it is read."""

    def on_object(self, *, obj, **more):
        """Called for each module, class, function and attribute."""
        if not obj.is_alias and obj.docstring:
            known = {p.name for p in obj.parameters} if obj.is_function else set(obj.members) if obj.is_class else ()
            obj.docstring.value = styled(obj.docstring.value, known)
