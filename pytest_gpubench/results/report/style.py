"""The page's style sheet: light and dark by custom properties, nothing loaded from elsewhere."""

from __future__ import annotations

__all__ = ["STYLE"]

STYLE = """\
:root {
  color-scheme: light;
  --page: #f6f7f9; --card: #ffffff; --ink: #1a1f29; --muted: #56606f; --line: #d9dee6; --grid: #e6e9ee;
  --accent: #0b5fcc; --good: #1a7f37; --bad: #b42318; --warn: #8a5a00; --warn-page: #fff4d6; --code: #f0f2f5;
}
:root[data-theme="dark"] {
  color-scheme: dark;
  --page: #0f131a; --card: #171c25; --ink: #e7ebf2; --muted: #a3adbd; --line: #323a48; --grid: #262d39;
  --accent: #7db4ff; --good: #57c878; --bad: #ff8f85; --warn: #f2c14e; --warn-page: #2f2610; --code: #10151d;
}
* { box-sizing: border-box; }
[hidden] { display: none !important; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
header, main, footer { max-width: 1320px; margin: 0 auto; padding: 0 24px; }
header { display: flex; align-items: flex-start; justify-content: space-between; gap: 16px;
  padding-top: 22px; }
h1 { font-size: 24px; line-height: 1.25; margin: 0; }
h2 { font-size: 18px; margin: 0 0 4px; }
h3 { font-size: 15px; margin: 14px 0 6px; overflow-wrap: anywhere; }
p { margin: 4px 0; }
a { color: var(--accent); }
.muted { color: var(--muted); }
section { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: 16px 18px; margin: 16px 0; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); gap: 16px; }
.pair section { margin: 0; min-width: 0; }
.banner { background: var(--warn-page); border: 1px solid var(--warn); border-radius: 8px; color: var(--ink);
  padding: 9px 14px; margin: 14px 0 0; }
.tiles { display: flex; flex-wrap: wrap; gap: 10px; margin: 14px 0; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 8px 14px;
  min-width: 104px; }
.tile b { display: block; font-size: 21px; line-height: 1.25; font-variant-numeric: tabular-nums; }
.tile span { color: var(--muted); font-size: 13px; }
.controls { display: flex; flex-wrap: wrap; gap: 10px 16px; align-items: end; margin: 8px 0; }
.controls label { display: grid; gap: 2px; font-size: 13px; color: var(--muted); }
button, select, input { font: inherit; color: var(--ink); background: var(--card);
  border: 1px solid var(--line); border-radius: 6px; padding: 5px 9px; min-height: 34px; }
input[type="search"] { min-width: min(320px, 70vw); }
button { cursor: pointer; }
button:disabled { opacity: .45; cursor: default; }
:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
.chart { width: 100%; height: 470px; }
.scroll { overflow: auto; max-height: 640px; border: 1px solid var(--line); border-radius: 6px; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 5px 8px; border-bottom: 1px solid var(--line); white-space: nowrap; }
tbody tr:last-child > * { border-bottom: 0; }
tbody tr:hover { background: var(--code); }
td.number, th.number { text-align: right; }
.scroll thead th { position: sticky; top: 0; background: var(--card); padding: 0; z-index: 1;
  box-shadow: inset 0 -1px 0 var(--line); }
thead th button { border: 0; background: none; width: 100%; text-align: inherit; font-weight: 600;
  padding: 6px 8px; border-radius: 0; white-space: nowrap; }
th button:focus-visible { outline-offset: -3px; }
thead th button:hover { text-decoration: underline; }
th[aria-sort="ascending"] button::after { content: " \\2191"; color: var(--accent); }
th[aria-sort="descending"] button::after { content: " \\2193"; color: var(--accent); }
.passed { color: var(--good); font-weight: 600; }
.failed, .error { color: var(--bad); font-weight: 600; }
pre { background: var(--code); border: 1px solid var(--line); border-radius: 6px;
  padding: 9px 12px; margin: 6px 0;
  overflow: auto; max-height: 360px; font: 12.5px/1.45 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
pre.message { white-space: pre-wrap; overflow-wrap: anywhere; }
details { border-top: 1px solid var(--line); padding: 6px 0; }
summary { cursor: pointer; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 2px 16px;
  margin: 6px 0; font-size: 14px; }
dt { color: var(--muted); }
dd { margin: 0; overflow-wrap: anywhere; }
footer { padding-bottom: 28px; font-size: 13px; color: var(--muted); }
.skip { position: absolute; left: -9999px; }
.skip:focus { left: 12px; top: 12px; background: var(--card); padding: 8px 12px; z-index: 9; }
@media (max-width: 640px) { dl { grid-template-columns: 1fr; } dd { margin-bottom: 6px; } }
@media print { .controls, #theme, .pager { display: none; } .scroll { max-height: none; } }
"""
