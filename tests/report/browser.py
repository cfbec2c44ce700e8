"""A real Chromium that shows a page: its layout, its colours, and what a screen reader gets."""

from __future__ import annotations

import html
import json
import re
import shutil
import struct
import subprocess
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_until

WIDTH, HEIGHT = 1000, 800

# Runs in a copy of the page only, whose policy would not let it.
_PROBE = """
(async () => {
// A window that has not the focus yet shows none.
for (let tries = 0; tries < 200 && !document.hasFocus(); tries++) await new Promise(go => setTimeout(go, 10));
const round = n => Math.round(n * 100) / 100;
const box = e => {
  const r = e.getBoundingClientRect();
  return [r.left, r.top, r.width, r.height].map(round);
};
const paint = e => { const s = getComputedStyle(e); return { fill: s.fill, stroke: s.stroke }; };
const described = e => ({
  tag: e.tagName.toLowerCase(), role: e.computedRole, name: e.computedName, box: box(e),
                     href: e.getAttribute('href') });
const figures = {};
for (const figure of document.querySelectorAll('figure')) {
  const svg = figure.querySelector('svg'), m = svg.getScreenCTM();
  figures[figure.querySelector('h3').textContent] = {
    described: described(svg), scale: m.a, left: m.e, top: m.f,
    texts: [...svg.querySelectorAll('text')].map(e =>
      ({ text: e.textContent, box: box(e), anchor: e.getAttribute('text-anchor'), ...paint(e) })),
    shapes: [...svg.querySelectorAll('path, circle, rect')].map(e =>
      ({ kind: e.getAttribute('class'), d: e.getAttribute('d'), box: box(e), ...paint(e),
         title: e.querySelector('title')?.textContent ?? null })),
    values: [...figure.querySelectorAll('tbody tr')].map(row => [...row.children].map(e => e.textContent)),
  };
}
const reached = [...document.querySelectorAll('a[href], summary, [tabindex="0"]')];
const stops = reached.filter(e => e.checkVisibility()).map(e => {
  e.focus();
  const mark = e.querySelector?.('.row');
  const outlined = getComputedStyle(e).outlineStyle !== 'none' ||
    (mark !== null && mark !== undefined && getComputedStyle(mark).stroke !== 'none');
  return { ...described(e), focused: document.activeElement === e, outlined };
});
window.scrollTo(0, 0);
const seen = e => getComputedStyle(e).display !== 'none';
const found = {
  title: document.title, dark: matchMedia('(prefers-color-scheme: dark)').matches,
  background: getComputedStyle(document.body).backgroundColor,
  color: getComputedStyle(document.body).color,
  figures, stops, width: document.documentElement.scrollWidth, focus: document.hasFocus(),
  nav: [...document.querySelectorAll('nav')].map(seen),
  details: [...document.querySelectorAll('details')].map(seen),
  landmarks: ['header', 'main', 'nav'].map(name => document.querySelectorAll(name).length),
};
const holder = document.createElement('pre');
holder.id = 'probed';
holder.textContent = JSON.stringify(found);
document.body.append(holder);
})();
"""


def require_browser() -> str:
    """Return Chromium's path; skip the test where there is none."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium to run this test")
    return browser


def probe(page: str, folder: Path, *, dark: bool = False, width: int = WIDTH) -> dict[str, Any]:
    """Return what Chromium made of a page: boxes in pixels, colours, names and roles.

    Its clock is virtual and may have run out before a busy machine gave the window the focus: then once more.
    """
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    text = text.replace("</body>", f"<script>{_PROBE}</script></body>")

    def probed() -> dict[str, Any] | None:
        shown = _run(text, folder, "--dump-dom", "--virtual-time-budget=10000", dark=dark, width=width).stdout
        found = re.search(r'<pre id="probed">(.*)</pre>', shown, re.DOTALL)
        result: dict[str, Any] | None = json.loads(html.unescape(found[1])) if found is not None else None
        return result if result is not None and result["focus"] else None

    result = wait_until(probed, timeout_s=300, what="the probe to run in a window with the focus")
    assert result is not None
    return result


def dom(page: str, folder: Path) -> str:
    """Return the page as Chromium holds it, once it has loaded it as it is."""
    return _run(page, folder, "--dump-dom", dark=False, width=WIDTH).stdout


def only_first_figure(page: str) -> str:
    """Return the page with nothing but its first figure to be seen, for a small picture."""
    hidden = "header, h2, section > p, section:not(:first-child), figure:not(:first-of-type), footer"
    style = "<style>" + hidden + " { display: none; } main { padding: 0; }</style>"
    return page.replace("</head>", style + "</head>")


def screenshot(page: str, folder: Path, *, dark: bool = False) -> Picture:
    """Return what Chromium paints for the page as it is, as far as it fits a window."""
    file = folder / "page.png"
    _run(page, folder, f"--screenshot={file}", dark=dark, width=WIDTH)
    return read_png(file.read_bytes())


def _run(page: str, folder: Path, *action: str, dark: bool, width: int) -> subprocess.CompletedProcess[str]:
    file = folder / "page.html"
    file.write_text(page, encoding="utf-8")
    done = subprocess.run(
        [
            *(require_browser(), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *("--disable-background-networking", "--disable-sync", "--no-first-run"),
            *("--enable-blink-features=ComputedAccessibilityInfo", "--force-device-scale-factor=1"),
            *(f"--user-data-dir={folder / 'profile'}", f"--window-size={width},{HEIGHT}"),
            *(["--blink-settings=preferredColorScheme=0"] if dark else []),
            *(*action, file.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Pixels, each of `channels` bytes."""

    width: int
    height: int
    channels: int
    pixels: bytes

    def colour(self, x: float, y: float) -> tuple[int, int, int]:
        start = (int(y) * self.width + int(x)) * self.channels
        red, green, blue = self.pixels[start : start + 3]
        return red, green, blue

    def has_near(self, x: float, y: float, colour: tuple[int, ...], *, radius: int = 2) -> bool:
        """Return whether a pixel around a position has about this colour; edges are smoothed."""
        return any(
            max(abs(a - b) for a, b in zip(self.colour(x + dx, y + dy), colour, strict=True)) <= 40
            for dx in range(-radius, radius + 1)
            for dy in range(-radius, radius + 1)
        )


def rgb(colour: str) -> tuple[int, int, int]:
    """Return the parts of a computed colour such as rgb(1, 2, 3)."""
    red, green, blue = (int(part) for part in re.findall(r"\d+", colour)[:3])
    return red, green, blue


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two computed colours (WCAG 2.1, 1.4.3)."""

    def luminance(colour: str) -> float:
        parts = [part / 255 for part in rgb(colour)]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def read_png(data: bytes) -> Picture:
    """Return a PNG of 8 bits a channel, not interlaced, as Chromium writes it."""
    place, packed = 8, b""
    width = height = channels = 0
    while place < len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        kind, body = data[place + 4 : place + 8], data[place + 8 : place + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", body)
            assert (depth, interlaced) == (8, 0)
            channels = {2: 3, 6: 4}[colour]
        elif kind == b"IDAT":
            packed += body
        place += 12 + length
    return Picture(width=width, height=height, channels=channels, pixels=_unfilter(packed, width, channels))


def _unfilter(packed: bytes, width: int, channels: int) -> bytes:
    import numpy as np

    stride = width * channels
    rows = np.frombuffer(zlib.decompress(packed), dtype=np.uint8).reshape(-1, stride + 1)
    out = np.zeros((len(rows) + 1, stride), dtype=np.uint8)
    for index, row in enumerate(rows):
        kind, line, above = int(row[0]), row[1:], out[index]
        if kind == 0:
            out[index + 1] = line
        elif kind == 2:
            out[index + 1] = line + above
        elif kind == 1:
            pixels = line.reshape(-1, channels).astype(np.uint64)
            out[index + 1] = np.cumsum(pixels, axis=0).astype(np.uint8).reshape(-1)
        else:
            out[index + 1] = _by_pixel(kind, line.tolist(), above.tolist(), channels)
    return out[1:].tobytes()


def _by_pixel(kind: int, line: list[int], above: list[int], channels: int) -> list[int]:
    done: list[int] = []
    for place, value in enumerate(line):
        left = done[place - channels] if place >= channels else 0
        corner = above[place - channels] if place >= channels else 0
        if kind == 3:
            guess = (left + above[place]) // 2
        else:
            base = left + above[place] - corner
            guess = min((left, above[place], corner), key=lambda one: abs(base - one))
        done.append((value + guess) % 256)
    return done
