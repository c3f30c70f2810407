"""Metrics of several processes as one text."""

from __future__ import annotations

import logging

import pytest

from defserve.server.logs import JsonLogFormatter, add_worker_number_to_logs
from defserve.server.metrics import add_metric_label, merge_metrics


def test_samples_of_a_metric_stand_together_under_one_head():
    one = '# HELP a About a.\n# TYPE a counter\na{worker="1"} 1\n# HELP b About b.\n# TYPE b gauge\nb{worker="1"} 2\n'
    two = '# HELP b About b.\n# TYPE b gauge\nb{worker="2"} 3\n# HELP a About a.\n# TYPE a counter\na{worker="2"} 4\n'
    assert merge_metrics([one, two]).splitlines() == [
        "# HELP a About a.",
        "# TYPE a counter",
        'a{worker="1"} 1',
        'a{worker="2"} 4',
        "# HELP b About b.",
        "# TYPE b gauge",
        'b{worker="1"} 2',
        'b{worker="2"} 3',
    ]
    assert merge_metrics([]) == merge_metrics([""]) == ""


def test_every_sample_gets_the_label():
    text = '# HELP a With {braces} here.\na 1\na{} 2\na{tool="x{y} z"} 3\n'
    assert add_metric_label(text, 'worker="1"').splitlines() == [
        "# HELP a With {braces} here.",
        'a{worker="1"} 1',
        'a{worker="1"} 2',
        'a{worker="1",tool="x{y} z"} 3',
    ]


def test_lines_of_the_log_name_their_worker(monkeypatch: pytest.MonkeyPatch):
    plain, as_json = logging.Handler(), logging.Handler()
    as_json.setFormatter(JsonLogFormatter())
    monkeypatch.setattr(logging.root, "handlers", [plain, as_json])
    add_worker_number_to_logs(3)
    record = logging.LogRecord("defserve", logging.INFO, "", 0, "said", None, None)
    assert as_json.filter(record) and '"worker":3' in as_json.format(record)
    assert plain.filter(record) and plain.filter(record)
    assert record.name == "worker 3 defserve"
