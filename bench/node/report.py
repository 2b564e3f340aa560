"""results.json, report.md and plots of a folder, from its raw waits alone."""

from __future__ import annotations

from collections.abc import Sequence

from bench.node.plots import draw
from bench.node.records import Folder, Point
from bench.node.summary import OURS, Cell, Results, summarise
from bench.results import to_json, verdicts

_COLUMNS = (
    ("samples/s", "samples_per_s", "{:.1f}"),
    ("of bound", "of_bound", "{:.2f}"),
    ("own bound", "of_own_bound", "{:.2f}"),
    ("misses", "misses", "{:.1%}"),
    ("fixed", "fixed_misses", "{:.1%}"),
    ("steps missed", "step_misses", "{:.0%}"),
    ("p50", "wait_p50_ms", "{:.1f}"),
    ("p95", "wait_p95_ms", "{:.1f}"),
    ("p99", "wait_p99_ms", "{:.1f}"),
    ("max ms", "wait_max_ms", "{:.0f}"),
    ("busy", "utilisation", "{:.0%}"),
    ("max/mean", "imbalance", "{:.2f}"),
    ("CPU ms", "cpu_ms_per_sample", "{:.2f}"),
    ("cores", "real_cores", "{:.2f}"),
    ("node cores", "node_cores", "{:.1f}"),
    ("helixd cores", "helixd_cores", "{:.2f}"),
    ("shared MB", "shared_mb", "{:.0f}"),
    ("private MB", "private_mb", "{:.0f}"),
    ("first s, stretched", "first_batch_s", "{:.1f}"),
)


def write(folder: Folder) -> Results:
    """Make all of it again."""
    head, records = folder.read()
    results = summarise(head, records)
    (folder.path / "results.json").write_bytes(to_json(results))
    pictures = draw(results, records, folder.path)
    (folder.path / "report.md").write_text("\n".join(_lines(results, pictures)) + "\n")
    return results


def _lines(results: Results, pictures: Sequence[str]) -> list[str]:
    head = results.head
    machine = head.circumstances.machine
    lines = ["# The node benchmark", ""]
    lines += [
        f"Tier: **{head.tier}**. {machine.cpu}, {machine.cores} cores, kernel {machine.kernel}; "
        f"revision {head.circumstances.git_revision}; others kept {head.circumstances.cores_busy:.1f} cores "
        "busy when it began.",
        "",
        "Versions: " + ", ".join(f"{k} {v}" for k, v in head.circumstances.versions.items()) + ".",
        "",
        "Settings: " + ", ".join(f"{k} {v}" for k, v in head.settings.items()) + ".",
        "",
    ]
    if head.tier == "emulated":
        lines += [
            "Decoding is a sleep of its recorded cost; all else is real. Time is stretched by the dilation "
            "of each line, and given as it would be without; CPU ms and cores are real ones. *Node cores* "
            "are what the system itself would take of a node at that speed, all of its processes, and "
            "*helixd cores* of those helixd's one thread: above 1 it could not keep up, and the figure is "
            "not one of a real node.",
            "",
        ]
    if head.stopped:
        lines += ["**Stopped before its end.**", ""]
    lines += [f"Skipped: {name}, {why}" for name, why in head.skipped.items()]
    lines += ["", "## Summary", "", *_summary(results), ""]
    lines += ["## Where others are ahead, or figures are beyond a node", "", *_lost(results), ""]
    count = len({c.point.workload for c in results.cells if c.point.table == "main"})
    lines += ["## Targets", "", f"They are meant over all eleven workloads; here are {count}.", ""]
    lines += ["| figure | measured | target | |", "|---|---|---|---|"]
    for v in verdicts(results.summary, results.targets):
        value = "not measured" if v.value is None else f"{v.value:.3g}"
        met = "met" if v.met else "missed"
        lines.append(f"| {v.target.figure} | {value} | {v.target.bound} {v.target.limit:g} | {met} |")
    lines += ["", *(f"![{name}]({name})" for name in pictures), ""]
    for table in dict.fromkeys(c.point.table for c in results.cells):
        lines += [f"## Table: {table}", ""]
        for point in dict.fromkeys(c.point for c in results.cells if c.point.table == table):
            lines += _table(results, point)
    if results.failures:
        lines += ["## Failures", ""]
        for f in results.failures:
            text = " ".join(f.error.split())[:400]
            lines.append(f"* {f.point.workload}, {f.point.lookahead} batches, {f.system}: {text}")
    return lines


def _summary(results: Results) -> list[str]:
    """A line for each system and look-ahead of the main table."""
    lines = [
        "| batches | system | workloads | DataHelix / it | least | of bound | misses | fewer | p95 ms "
        "| less |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    main = [c for c in results.cells if c.point.table == "main"]
    for lookahead in sorted({c.point.lookahead for c in main}):
        for system in dict.fromkeys(c.system for c in main if c.point.lookahead == lookahead):
            end = f"{system.replace('-', '_')}_at_{lookahead}"
            s = results.summary
            count = sum(c.system == system and c.point.lookahead == lookahead for c in main)
            lines.append(
                f"| {lookahead} | {results.head.systems.get(system, system)} | {count} "
                f"| {_said(s, f'speedup_over_{end}', '{:.2f}')} "
                f"| {_said(s, f'least_speedup_over_{end}', '{:.2f}')} "
                f"| {_said(s, f'of_bound_{end}', '{:.2f}')} | {_said(s, f'misses_{end}', '{:.1%}')} "
                f"| {_said(s, f'less_misses_than_{end}', '{:.0%}')} "
                f"| {_said(s, f'wait_p95_ms_{end}', '{:.1f}')} "
                f"| {_said(s, f'less_wait_p95_ms_than_{end}', '{:.0%}')} |"
            )
    return lines


def _lost(results: Results) -> list[str]:
    """Lines on cells in which DataHelix is not ahead, or what is emulated cannot be."""
    found = []
    for cell in results.cells:
        ours = next((c for c in results.cells if c.point == cell.point and c.system == OURS), None)
        where = f"* {cell.point.table}, {cell.point.workload}, {cell.point.lookahead} batches"
        title = results.head.systems.get(cell.system, cell.system)
        if cell is ours and cell.figures["helixd_cores"].median > 1:
            found.append(f"{where}: helixd would need {cell.figures['helixd_cores'].median:.1f} cores")
        if ours is None or cell is ours:
            continue
        if cell.ratio is not None and cell.ratio < 1:
            found.append(f"{where}: DataHelix has {cell.ratio:.2f} times the samples/s of {title}")
        for name, form in (
            ("fixed_misses", "{:.1%}"),
            ("wait_p95_ms", "{:.1f} ms"),
            ("shared_mb", "{:.0f} MB"),
        ):
            mine, other = ours.figures[name].median, cell.figures[name].median
            if mine > other:
                found.append(f"{where}, {name}: {form.format(mine)}, {title} {form.format(other)}")
    return found or ["Nowhere."]


def _said(figures: dict[str, float], name: str, form: str) -> str:
    return form.format(figures[name]) if name in figures else ""


def _table(results: Results, point: Point) -> list[str]:
    cells = [c for c in results.cells if c.point == point]
    value = f", {point.value:g}" if point.table != "main" else ""
    title = results.head.workloads.get(point.workload, point.workload)
    tier = results.head.tier
    lines = [
        f"### {title} ({point.workload}): {point.lookahead} batches{value}; {tier}",
        "",
        f"Look-ahead of {point.lookahead} batches a rank, "
        f"{cells[0].lookahead_bytes / 1e6:.1f} MB were all samples the largest; dilation "
        f"{cells[0].dilation:.1f}; demand {cells[0].figures['demand'].median:.2f} of the cores.",
        "",
        "| system | ours / it | " + " | ".join(name for name, _, _ in _COLUMNS) + " | setting |",
        "|---" * (len(_COLUMNS) + 3) + "|",
    ]
    ordered = sorted(cells, key=lambda c: (c.system != OURS, c.system))
    return [*lines, *(_row(results, cell) for cell in ordered), ""]


def _row(results: Results, cell: Cell) -> str:
    shown = [form.format(cell.figures[name].median) for _, name, form in _COLUMNS]
    rate = cell.figures["samples_per_s"]
    if cell.runs > 1:
        shown[0] += f" ({rate.least:.1f} to {rate.most:.1f})"
    title = results.head.systems.get(cell.system, cell.system)
    ratio = "" if cell.ratio is None else f"{cell.ratio:.2f}"
    setting = f"{cell.variant}; {cell.decode_processes} decode, {cell.runs} runs, {results.head.tier}"
    return f"| {title} | {ratio} | " + " | ".join(shown) + f" | {setting} |"
