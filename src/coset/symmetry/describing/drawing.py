"""A picture of a network with its permutation factors coloured, written as SVG by hand."""

import colorsys
import math
import re
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from torch import nn

from coset.printing import several
from coset.symmetry.describing.describe import nested
from coset.symmetry.describing.outline import Box, Outline, Segment, axis_segments, outline
from coset.symmetry.elements import PermutationFactor
from coset.symmetry.group import SymmetryGroup
from coset.symmetry.tracing import trace
from coset.vocabulary import Inputs

INK, FAINT, PINNED, PAPER, BLOCK = "#1f2733", "#8a94a3", "#98a1af", "#ffffff", "#f3f5f9"
_PALETTE = (
    "#2f6fb2", "#d9722b", "#3a9a5b", "#b8405e", "#7a5bb5", "#0f9aa7",
    "#c49a17", "#8c5a3c", "#d45fa0", "#5c7d2e",
)  # fmt: skip
_ROW, _GAP, _BAR, _LANE, _LETTER = 26, 12, 15, 13, 6.3
_STYLE = f"""
  text {{ font-family: system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; }}
  .name {{ font-size: 11px; fill: {INK}; }}
  .small {{ font-size: 9px; fill: {FAINT}; }}
  .size {{ font-size: 9px; fill: #ffffff; text-anchor: middle; font-weight: 600;
    paint-order: stroke; stroke: #1f2733; stroke-opacity: 0.35; stroke-width: 1.6px; }}
"""


def draw(module: nn.Module, example: Inputs, group: SymmetryGroup) -> str:
    """The network as SVG text: its layers from top to bottom, each axis in its factor's colour.

    Grey axes are pinned, hatched ones live inside another factor, and lines on the left are
    branches that meet again.
    """
    return render(outline(trace(module, example)), group)


def render(plan: Outline, group: SymmetryGroup) -> str:
    """The picture of an outline."""
    return _Picture(plan, group).text()


def colours_of(factors: Sequence[PermutationFactor]) -> dict[str, str]:
    """A colour for each factor, the first ones easiest to tell apart."""
    colours = {}
    for k, factor in enumerate(factors):
        if k < len(_PALETTE):
            colours[factor.name] = _PALETTE[k]
            continue
        lightness = (0.40, 0.50, 0.33)[k % 3]
        red, green, blue = colorsys.hls_to_rgb((0.13 + k * 0.6180339887) % 1, lightness, 0.55)
        colours[factor.name] = "#" + "".join(f"{round(255 * c):02x}" for c in (red, green, blue))
    return colours


class _Picture:
    """Places and paints the boxes of an outline."""

    def __init__(self, plan: Outline, group: SymmetryGroup) -> None:
        self.plan, self.group = plan, group
        self.factors = nested(group.permutations)
        self.colours = colours_of(self.factors)
        self.inside = {factor.name for factor in self.factors if factor.within}
        self.bars = [list(self._bars(box)) for box in plan.boxes]
        self.blocks = _blocks(plan.boxes)
        self.titles = [
            box.name.removeprefix(f"{block}.") if block else box.name
            for box, block in zip(plan.boxes, self.blocks, strict=True)
        ]
        self.tops = self._rows()
        self.lanes = _lanes(plan.edges)
        self.left = 24 + _LANE * (1 + max(self.lanes.values(), default=-1))
        layers = [i for i, box in enumerate(plan.boxes) if box.kind == "layer"]
        self.title_width = max([60, *(_LETTER * len(self.titles[i]) for i in layers)]) + 22
        widths = [sum(bar[1] for bar in self.bars[i]) for i in layers]
        self.width = self.title_width + max([60, *widths]) + 6
        self.flow = self._flow()

    def _rows(self) -> list[float]:
        """Tops of the rows; a block's label needs a little more room."""
        tops, y = [], 58.0
        for i, block in enumerate(self.blocks):
            if block and (i == 0 or self.blocks[i - 1] != block):
                y += 24
            elif i and not block and self.blocks[i - 1]:
                y += 8
            junction = self.plan.boxes[i].kind == "junction"
            tops.append(y - 6 * junction)
            y += _ROW + _GAP - 12 * junction
        self.bottom = y
        return tops

    # -- content ---------------------------------------------------------------------------------

    def _bars(self, box: Box) -> Iterator[tuple[str, float, list[list[Segment]]]]:
        """Tensors of a layer with their axes; tensors that look the same share one drawing."""
        seen: dict[tuple[tuple[Segment, ...], ...], list[str]] = {}
        for tensor in box.tensors:
            axes = tuple(tuple(axis) for axis in axis_segments(self.group, tensor))
            axes = tuple(axis for axis in axes if axis and (axis[0].length > 1 or len(axis) > 1))
            seen.setdefault(axes, []).append(tensor.rpartition(".")[2])
        for axes, names in seen.items():
            label = names[0] + (f" +{len(names) - 1}" if len(names) > 1 else "")
            width = 5.1 * len(label) + 6 + sum(_axis_width(axis) + 2 for axis in axes) + 12
            yield label, width, [list(axis) for axis in axes]

    def _ends(self, i: int) -> tuple[set[str], set[str]]:
        """Factors of what leaves a layer (first axes) and of what enters it (the others)."""
        leaving: set[str] = set()
        entering: set[str] = set()
        for _, _, axes in self.bars[i]:
            for k, axis in enumerate(axes):
                names = {n for piece in axis for n in piece.factors if n is not None}
                if k == 0:
                    leaving |= names
                if k > 0 or len(axes) == 1:
                    entering |= names
        # a table of embeddings has its units on the second axis
        return leaving or entering, entering

    def _flow(self) -> dict[tuple[int, int], str]:
        """The colour of each edge: the factor of what flows along it, where that is clear."""
        ends = [self._ends(i) for i in range(len(self.plan.boxes))]
        for i, box in enumerate(self.plan.boxes):
            if box.kind == "junction":
                before = [ends[u][0] for u, v in self.plan.edges if v == i]
                common = set.intersection(*before) if before else set()
                ends[i] = (common, common)
        colours = {}
        for u, v in self.plan.edges:
            shared = ends[u][0] & ends[v][1] or set().union(*ends[u]) & set().union(*ends[v])
            if self.plan.boxes[v].kind == "junction":
                shared = ends[v][1] or ends[u][0]
            ordered = [f.name for f in self.factors if f.name in shared]
            colours[(u, v)] = self.colours[ordered[0]] if ordered else FAINT
        return colours

    # -- painting --------------------------------------------------------------------------------

    def text(self) -> str:
        """The whole SVG."""
        legend, legend_width, legend_bottom = self._legend(self.left + self.width + 40)
        height = max(self.bottom, legend_bottom) + 12
        order = self.group.log_order()
        title = (
            f"{several(len(self.factors), 'permutation factor')}, log order {order:.1f} "
            f"(10^{order / math.log(10):.0f} equivalent networks)"
        )
        width = self.left + max(self.width + 40 + legend_width, 8.4 * len(title) + 20)
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}</style>",
            '<defs><pattern id="hatch" width="5" height="5" patternUnits="userSpaceOnUse" '
            'patternTransform="rotate(45)"><rect width="2" height="5" fill="#ffffff" '
            'fill-opacity="0.38"/></pattern></defs>',
            f'<rect width="100%" height="100%" fill="{PAPER}"/>',
            f'<text x="{self.left}" y="30" font-size="14" font-weight="600" fill="{INK}">'
            f"{escape(title)}</text>",
            *self._backgrounds(),
            *(self._edge(u, v) for u, v in self.plan.edges),
            *(part for i in range(len(self.plan.boxes)) for part in self._box(i)),
            *legend,
            "</svg>",
        ]
        return "\n".join(parts) + "\n"

    def _backgrounds(self) -> Iterator[str]:
        """A light card behind each block of layers."""
        start = 0
        for i in range(1, len(self.blocks) + 1):
            if i < len(self.blocks) and self.blocks[i] == self.blocks[start]:
                continue
            if self.blocks[start]:
                top = self.tops[start] - 20
                height = self.tops[i - 1] + _ROW + 5 - top
                yield (
                    f'<rect x="{self.left - 7}" y="{top}" width="{self.width + 14}" '
                    f'height="{height}" rx="8" fill="{BLOCK}"/>'
                    f'<text class="small" x="{self.left}" y="{top + 13}">'
                    f"{escape(self.blocks[start])}</text>"
                )
            start = i

    def _box(self, i: int) -> Iterator[str]:
        box, top = self.plan.boxes[i], self.tops[i]
        middle, centre = top + _ROW / 2, self.left + self.title_width / 2
        if box.kind == "junction":
            yield (
                f'<circle cx="{centre}" cy="{middle}" r="8" fill="{PAPER}" stroke="{FAINT}"/>'
                f'<text x="{centre}" y="{middle + 4}" font-size="12" text-anchor="middle" '
                f'fill="{INK}">{box.name}</text>'
            )
            return
        if box.kind != "layer":
            yield (
                f'<rect x="{centre - 34}" y="{top + 3}" width="68" height="{_ROW - 6}" rx="10" '
                f'fill="{INK}"/><text x="{centre}" y="{middle + 4}" font-size="10" '
                f'text-anchor="middle" fill="#ffffff">{escape(box.name)}</text>'
            )
            return
        yield (
            f'<rect x="{self.left}" y="{top}" width="{self.width}" height="{_ROW}" rx="5" '
            f'fill="{PAPER}" stroke="#ccd3dd"/>'
            f'<text class="name" x="{self.left + 10}" y="{middle + 4}">'
            f"{escape(self.titles[i])}</text>"
        )
        x = self.left + self.title_width
        for label, width, axes in self.bars[i]:
            yield f'<text class="small" x="{x:.1f}" y="{middle + 3}">{escape(label)}</text>'
            place = x + 5.1 * len(label) + 6
            for axis in axes:
                yield from self._axis(axis, place, middle - _BAR / 2)
                place += _axis_width(axis) + 2
            x += width

    def _axis(self, axis: Sequence[Segment], x: float, y: float) -> Iterator[str]:
        total, width = sum(piece.length for piece in axis), _axis_width(axis)
        for piece in axis:
            own = width * piece.length / total
            strip = _BAR / len(piece.factors)
            for k, name in enumerate(piece.factors):
                fill = PINNED if name is None else self.colours[name]
                rect = f'x="{x:.1f}" y="{y + k * strip:.1f}" width="{own:.1f}" height="{strip:.1f}"'
                yield f'<rect {rect} fill="{fill}"/>'
                if name in self.inside:
                    yield f'<rect {rect} fill="url(#hatch)"/>'
            label = "×".join(map(str, piece.sizes))
            if own >= 5.4 * len(label) + 2:
                yield f'<text class="size" x="{x + own / 2:.1f}" y="{y + 11}">{label}</text>'
            x += own
            if piece is not axis[-1]:
                yield f'<rect x="{x - 0.5:.1f}" y="{y}" width="1" height="{_BAR}" fill="{PAPER}"/>'

    def _edge(self, u: int, v: int) -> str:
        colour = self.flow[(u, v)]
        centre = self.left + self.title_width / 2
        line = f'fill="none" stroke="{colour}" stroke-width="2"'
        start, end = self._border(u, bottom=True), self._border(v, bottom=False)
        if (u, v) not in self.lanes:
            tip = f'<path d="M{centre - 4} {end - 6}h8l-4 6z" fill="{colour}"/>'
            return f'<path d="M{centre} {start}V{end - 5}" {line}/>{tip}'
        x = self.left - 14 - _LANE * self.lanes[(u, v)]
        first, last = self.tops[u] + _ROW / 2 + 5, self.tops[v] + _ROW / 2 - 5
        out, into = self._side(u), self._side(v)
        turn = 6 if last > first else -6
        dashed = "" if last > first else ' stroke-dasharray="4 3"'
        return (
            f'<path d="M{out} {first}H{x + 6}q-6 0 -6 {turn}V{last - turn}q0 {turn} 6 {turn}'
            f'H{into - 5}" {line}{dashed}/>'
            f'<path d="M{into - 6} {last - 4}v8l6 -4z" fill="{colour}"/>'
        )

    def _border(self, i: int, *, bottom: bool) -> float:
        inset = {"layer": 0, "junction": 5}.get(self.plan.boxes[i].kind, 3)
        return self.tops[i] + (_ROW - inset if bottom else inset)

    def _side(self, i: int) -> float:
        centre = self.left + self.title_width / 2
        return {"layer": self.left, "junction": centre - 6.5}.get(
            self.plan.boxes[i].kind, centre - 34
        )

    def _legend(self, x: float) -> tuple[list[str], float, float]:
        """Every factor with its colour, name and size."""
        sizes = {factor.name: factor.size for factor in self.factors}
        lines: list[tuple[float, str, str, bool]] = []
        for factor in self.factors:
            depth = 14.0 * len(factor.within)
            copies = math.prod(sizes[name] for name in factor.within)
            times = f"{copies} × " if factor.within else ""
            label = f"{factor.name}   {times}{factor.size}"
            lines.append((depth, label, self.colours[factor.name], bool(factor.within)))
        lines.append((0.0, "pinned", PINNED, False))
        parts, y = [f'<text class="small" x="{x}" y="{64}">factors and their sizes</text>'], 74.0
        for depth, label, colour, hatched in lines:
            rect = f'x="{x + depth}" y="{y}" width="22" height="11" rx="2"'
            parts.append(f'<rect {rect} fill="{colour}"/>')
            if hatched:
                parts.append(f'<rect {rect} fill="url(#hatch)"/>')
            parts.append(
                f'<text class="name" x="{x + depth + 30}" y="{y + 9.5}" xml:space="preserve">'
                f"{escape(label)}</text>"
            )
            y += 18
        width = max(depth + 30 + _LETTER * len(label) for depth, label, *_ in lines) + 20
        return parts, width, y


def _axis_width(axis: Sequence[Segment]) -> float:
    length = sum(piece.length for piece in axis)
    plain = min(max(12 + 4.5 * math.log2(length), 16), 58)
    return max(plain, sum(6.4 * len("×".join(map(str, piece.sizes))) + 6 for piece in axis))


def _blocks(boxes: Sequence[Box]) -> list[str]:
    """The repeated block that a box belongs to: its name up to the first number."""
    found: list[str] = []
    for box in boxes:
        number = re.match(r"(.*?\.\d+)\.", box.name)
        if box.kind == "junction":
            found.append(found[-1] if found else "")
        else:
            found.append(number.group(1) if number and box.kind == "layer" else "")
    return found


def _lanes(edges: Sequence[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """A lane for each edge that skips rows; short ones lie closest to the boxes."""
    lanes: dict[tuple[int, int], int] = {}
    skipping = sorted((e for e in edges if e[1] != e[0] + 1), key=lambda e: abs(e[1] - e[0]))
    for u, v in skipping:
        low, high = min(u, v), max(u, v)
        taken = {lane for (a, b), lane in lanes.items() if min(a, b) < high and low < max(a, b)}
        lanes[(u, v)] = next(k for k in range(len(taken) + 1) if k not in taken)
    return lanes
