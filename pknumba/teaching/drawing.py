"""Pictures of boxes and arrows as SVG: for notebooks, which show them, and for the documents, which keep them as files."""

from html import escape

__all__ = ["Drawing", "Picture", "COLOURS"]

#: Fill colours by what a box is.
COLOURS = {"memory": "#e8eefc", "tile": "#fdf0d5", "role": "#e3f3e6", "peer": "#f6e4f3", "wait": "#eceef1", "signal": "#fbdcdc",
           "plain": "#ffffff", "done": "#cfe8d4"}


class Picture:
    """An SVG text that a notebook shows."""

    def __init__(self, text):
        self.text = text

    def _repr_svg_(self):
        return self.text

    def save(self, path):
        """Write it to a file."""
        with open(path, "w") as f:
            f.write(self.text)


class Drawing(Picture):
    """A picture that is put together from boxes, arrows and words. Coordinates are pixels from the top left; methods return the drawing."""

    def __init__(self, width, height, title=""):
        self.width, self.height, self.parts = width, height, []
        if title:
            self.words(12, 22, title, size=14, weight="bold")

    def box(self, x, y, width, height, text="", kind="plain", size=12):
        """A box with lines of text in its middle."""
        self.parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="4" fill="{COLOURS[kind]}" stroke="#8a93a3"/>')
        lines = text.split("\n") if text else []
        for i, line in enumerate(lines):
            self.words(x + width / 2, y + height / 2 + (i - (len(lines) - 1) / 2) * (size + 3) + size / 3, line, size, anchor="middle")
        return self

    def row(self, x, y, texts, kind="tile", width=60, height=34, gap=4):
        """Boxes side by side."""
        for i, text in enumerate(texts):
            self.box(x + i * (width + gap), y, width, height, str(text), kind)
        return self

    def arrow(self, x1, y1, x2, y2, text="", colour="#4a5568", dashed=False):
        """An arrow with words beside its middle."""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}" stroke-width="1.6"{dash} '
                          'marker-end="url(#end)"/>')
        if text:
            self.words((x1 + x2) / 2 + (4 if abs(x2 - x1) < abs(y2 - y1) else 0), (y1 + y2) / 2 - 5, text, 11,
                       anchor="start" if abs(x2 - x1) < abs(y2 - y1) else "middle")
        return self

    def bars(self, x, y, values, width=420, unit="", kind="role"):
        """A bar for each of {label: value}, one below the other, as long as its value."""
        most = max(values.values())
        for i, (label, value) in enumerate(values.items()):
            top = y + 26 * i
            self.words(x + 118, top + 15, str(label), 11, anchor="end")
            self.box(x + 125, top, max(width * value / most, 1), 20, "", kind)
            self.words(x + 132 + width * value / most, top + 15, f"{value:,.1f}".removesuffix(".0") + (f" {unit}" if unit else ""), 11)
        return self

    def words(self, x, y, text, size=12, anchor="start", weight="normal"):
        """A line of text."""
        self.parts.append(f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}">{escape(text)}'
                          '</text>')
        return self

    @property
    def text(self):
        """The SVG."""
        mark = ('<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
                '<path d="M0 0L8 4L0 8z" fill="#4a5568"/></marker></defs>')
        return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{self.height}" '
                f'viewBox="0 0 {self.width} {self.height}" font-family="sans-serif">'
                f'<rect width="100%" height="100%" fill="white"/>{mark}{"".join(self.parts)}</svg>')
