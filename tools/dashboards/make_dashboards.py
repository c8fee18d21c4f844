#!/usr/bin/env python3
"""Generates the Grafana dashboards in grafana/ from panels.py.

  make_dashboards.py          write the dashboards
  make_dashboards.py --check  name those that are not current; exit status 1 if there is one
"""
import json
import os
import sys

sys.dont_write_bytecode = True
import panels  # noqa: E402, beside this file

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "grafana")
SOURCE = {"type": "prometheus", "uid": "${source}"}
KINDS = {"stat": ("stat", 6, 4), "time": ("timeseries", 12, 8), "table": ("table", 24, 8)}
COLUMNS = 24

VARIABLES = {
    "box": ("Box", 'label_values(pbox_ready, instance)'),
    "job": ("Job", 'label_values(pbox_job_memory_bytes{instance=~"$box"}, training_job)'),
}


def variable(name):
    label, query = VARIABLES[name]
    return {"name": name, "label": label, "type": "query", "datasource": SOURCE,
            "query": {"query": query, "refId": name}, "definition": query, "refresh": 2,
            "multi": True, "includeAll": True, "allValue": ".*", "sort": 1,
            "current": {"text": "All", "value": "$__all"}}


def targets(kind, queries):
    """Returns one Grafana target for each query. Panels of current numbers use instant queries."""
    instant = {"instant": True, "range": False} if kind != "time" else {}
    return [{"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": expr,
             "legendFormat": legend, **instant,
             **({"format": "table"} if kind == "table" else {})}
            for index, (legend, expr) in enumerate(queries.items())]


def lay_out(entries):
    """Yields the panels from left to right, and begins a new row when one does not fit."""
    x = y = line_height = 0
    for number, (kind, title, unit, text, queries) in enumerate(entries, 1):
        name, width, height = KINDS[kind]
        if x + width > COLUMNS:
            x, y, line_height = 0, y + line_height, 0
        panel = {"id": number, "type": name, "title": title, "description": text,
                 "datasource": SOURCE, "gridPos": {"x": x, "y": y, "w": width, "h": height},
                 "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
                 "targets": targets(kind, queries)}
        if kind == "time":
            panel["options"] = {"tooltip": {"mode": "multi", "sort": "desc"}}
        yield panel
        x, line_height = x + width, max(line_height, height)


def dashboard(uid, title, variables, entries):
    source = {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    return {"uid": uid, "title": title, "tags": ["pbox"], "schemaVersion": 38, "version": 1,
            "editable": True, "refresh": "10s", "time": {"from": "now-30m", "to": "now"},
            "timezone": "browser", "graphTooltip": 1,
            "links": [{"title": "PBox", "type": "dashboards", "tags": ["pbox"], "asDropdown": True,
                       "keepTime": True, "includeVars": True}],
            "templating": {"list": [source] + [variable(name) for name in variables]},
            "panels": list(lay_out(entries))}


def as_text(page):
    """Returns the page as JSON with one line per panel, so that changes are readable."""
    shown = [json.dumps(panel) for panel in page["panels"]]
    rest = {key: value for key, value in page.items() if key != "panels"}
    return (json.dumps(rest, indent=1)[:-2] + ',\n "panels": [\n  ' + ",\n  ".join(shown) +
            "\n ]\n}\n")


def main():
    differing = []
    for uid, title, variables, entries in panels.DASHBOARDS:
        path = os.path.join(FOLDER, uid + ".json")
        text = as_text(dashboard(uid, title, variables, entries))
        if "--check" in sys.argv:
            with open(path, encoding="utf-8") as file:
                if file.read() != text:
                    differing.append(path)
        else:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
    for path in differing:
        print(f"{path} is not current: run tools/dashboards/make_dashboards.py")
    sys.exit(1 if differing else 0)


if __name__ == "__main__":
    main()
