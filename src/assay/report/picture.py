"""Quality against measured bytes as one static SVG, for a README, a slide or a printed page. No library needed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from xml.sax.saxutils import escape

from assay.report import format as say
from assay.report.palette import styles
from assay.report.summary import Row, Summary, TaskSummary

INK, SOFT, GRID, PAPER = "#1b1f24", "#5b626d", "#e4e7eb", "#ffffff"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
WIDE, HIGH = 330, 250  # one panel
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 44, 42  # its margins


def picture(summary: Summary, columns: int = 3) -> str:
    """The SVG's text: one panel a task, intervals as bars, the full cache as a band, one legend for all."""
    tasks = [t for t in summary.tasks if t.rows]
    columns = max(1, min(columns, len(tasks)))
    lines = math.ceil(len(tasks) / columns)
    width, legend = columns * WIDE, _legend(summary, columns * WIDE)
    height = lines * HIGH + legend[1]
    panels = [
        f'<g transform="translate({(i % columns) * WIDE} {(i // columns) * HIGH})">{_panel(task, summary)}</g>'
        for i, task in enumerate(tasks)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'font-family="{FONT}" font-size="11"><title>Quality against bytes held, by task</title>'
        f'<rect width="{width}" height="{height}" rx="6" fill="{PAPER}"/>{"".join(panels)}'
        f'<g transform="translate(0 {lines * HIGH})">{legend[0]}</g></svg>\n'
    )


@dataclass(frozen=True)
class Axes:
    """Where a share of the bytes and a quality lie in a panel, in pixels. `inverted`: small values at the top."""

    left: float
    right: float
    low: float
    high: float
    inverted: bool

    def x(self, share: float) -> float:
        return LEFT + (WIDE - LEFT - RIGHT) * (share - self.left) / (self.right - self.left)

    def y(self, value: float) -> float:
        part = (value - self.low) / (self.high - self.low)
        return TOP + (HIGH - TOP - BOTTOM) * (part if self.inverted else 1 - part)


def axes(task: TaskSummary, summary: Summary) -> Axes:
    """One horizontal axis for all panels, from zero or from a little left of the smallest cache where zero is far."""
    least = min((r.share for t in summary.tasks for r in t.rows), default=0.0)
    room = max((1 - least) * 0.12, 0.02)
    low, high = 0.0, 1.0
    if task.measure == "nll":
        values = [v for r in [*task.rows, *([task.full] if task.full else [])] for v in say.shown(r) if v is not None]
        margin = (max(values) - min(values)) * 0.08 or 0.5
        low, high = min(values) - margin, max(values) + margin
    return Axes(0.0 if least < 0.4 else least - room, 1 + room, low, high, task.measure == "nll")


def _panel(task: TaskSummary, summary: Summary) -> str:
    at = axes(task, summary)
    parts = [_frame(task, at)]
    if task.full:
        mean, below, above = say.shown(task.full)
        if below is not None and above is not None:
            top, bottom = sorted((at.y(below), at.y(above)))
            box = f'y="{top:.1f}" width="{WIDE - RIGHT - LEFT}" height="{bottom - top:.1f}"'
            parts.append(f'<rect x="{LEFT}" {box} fill="{INK}" opacity=".07"/>')
        parts.append(f'<path d="M{LEFT} {at.y(mean):.1f}H{WIDE - RIGHT}" stroke="{INK}" stroke-width="1.2"/>')
    chosen = styles(summary.policies)
    for place, (policy, style) in enumerate(chosen.items()):
        mine = sorted((r for r in task.rows if r.policy == policy), key=lambda r: r.share)
        apart = (place - (len(chosen) - 1) / 2) * 2.4  # so that intervals at one budget do not hide each other
        parts.append(_curve(mine, style, at, apart))
    if task.says_nothing:
        parts.append(f'<text x="{LEFT + 6}" y="{TOP + 14}" fill="{SOFT}">says nothing here: full cannot do it either</text>')
    return "".join(parts)


def _frame(task: TaskSummary, at: Axes) -> str:
    what = "perplexity (up is better)" if task.measure == "nll" else "share of right answers"
    parts = [
        f'<text x="{LEFT}" y="20" font-size="13" font-weight="600" fill="{INK}">{escape(task.name)}</text>'
        f'<text x="{LEFT}" y="35" fill="{SOFT}">{what}</text>'
    ]
    for tick in ticks(at.low, at.high):
        label = f"{tick:g}" if task.measure == "nll" else f"{tick:.0%}"
        parts.append(
            f'<path d="M{LEFT} {at.y(tick):.1f}H{WIDE - RIGHT}" stroke="{GRID}"/>'
            f'<text x="{LEFT - 6}" y="{at.y(tick) + 4:.1f}" text-anchor="end" fill="{SOFT}">{label}</text>'
        )
    for tick in ticks(at.left, max(1.0, at.left + 0.01)):
        parts.append(f'<text x="{at.x(tick):.1f}" y="{HIGH - BOTTOM + 16}" text-anchor="middle" fill="{SOFT}">{tick:.0%}</text>')
    middle = (LEFT + WIDE - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HIGH - 8}" text-anchor="middle" fill="{SOFT}">bytes held, of the full cache</text>')
    return "".join(parts)


def ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Round numbers inside [low, high]."""
    step = 10 ** math.floor(math.log10((high - low) / about))
    step *= min((1, 2, 5, 10), key=lambda m: abs(m * step - (high - low) / about))
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _curve(rows: list[Row], style: dict[str, str], at: Axes, apart: float) -> str:
    if not rows:
        return ""
    colour = style["light"]
    points = [(at.x(r.share) + apart, *(None if v is None else at.y(v) for v in say.shown(r))) for r in rows]
    dash = ' stroke-dasharray="4 3"' if style["dash"] == "dash" else ""
    line = " ".join(f"{px:.1f},{py:.1f}" for px, py, _, _ in points)
    parts = [f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.6"{dash}/>']
    for px, py, low, high in points:
        if low is not None:
            parts.append(f'<path d="M{px:.1f} {low:.1f}V{high:.1f}" stroke="{colour}" opacity=".55"/>')
        parts.append(marker(style["symbol"], px, py, colour))
    return "".join(parts)


def marker(symbol: str, x: float, y: float, colour: str) -> str:
    """A small shape in the place of plotly's marker of that name."""
    hollow = symbol.endswith("-open")
    paint = f'fill="{PAPER if hollow else colour}" stroke="{colour}" stroke-width="1.3"'
    shapes = {
        "square": f'<path d="M{x - 3.6:.1f} {y - 3.6:.1f}h7.2v7.2h-7.2z" {paint}/>',
        "diamond": f'<path d="M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5 -5z" {paint}/>',
        "triangle-up": f'<path d="M{x:.1f} {y - 4.8:.1f}l4.6 8h-9.2z" {paint}/>',
        "triangle-down": f'<path d="M{x:.1f} {y + 4.8:.1f}l4.6 -8h-9.2z" {paint}/>',
        "cross": f'<path d="M{x - 1.6:.1f} {y - 4.6:.1f}h3.2v3h3v3.2h-3v3h-3.2v-3h-3v-3.2h3z" {paint}/>',
        "hexagon": f'<path d="M{x - 2.4:.1f} {y - 4.2:.1f}h4.8l2.4 4.2l-2.4 4.2h-4.8l-2.4 -4.2z" {paint}/>',
        "x-thin": f'<path d="M{x - 3.6:.1f} {y - 3.6:.1f}l7.2 7.2m0 -7.2l-7.2 7.2" stroke="{colour}" stroke-width="1.6"/>',
        "star": f'<path d="{_star(x, y)}" {paint}/>',
    }
    return shapes.get(symbol.removesuffix("-open"), f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.9" {paint}/>')


def _star(x: float, y: float) -> str:
    corners = [(5.6 if i % 2 == 0 else 2.3, math.pi * (i / 5 - 0.5)) for i in range(10)]
    return "M" + "L".join(f"{x + r * math.cos(a):.1f} {y + r * math.sin(a):.1f}" for r, a in corners) + "z"


def _legend(summary: Summary, width: int) -> tuple[str, int]:
    """The legend's SVG and its height, wrapped to the width."""
    parts, at, line = [], LEFT, 16
    for name, style in {"full": {"light": INK, "symbol": ""}, **styles(summary.policies)}.items():
        room = 26 + 6.6 * len(name) + 14
        if at + room > width - RIGHT and at > LEFT:
            at, line = LEFT, line + 20
        shape = f'<path d="M{at} {line - 4}h16" stroke="{INK}" stroke-width="1.4"/>'
        if style["symbol"]:
            shape = marker(style["symbol"], at + 8, line - 4, style["light"])
        parts.append(f'{shape}<text x="{at + 22}" y="{line}" fill="{INK}">{escape(name)}</text>')
        at += room
    return "".join(parts), line + 14
