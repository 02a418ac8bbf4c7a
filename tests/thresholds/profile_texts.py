"""Texts of profiles, and of the keys that they may have."""

from hypothesis import strategies as st

SOURCE = "policy: a sentence that is long enough"
BASE = f"""\
deadline_s: 300
requires: [environment]
parameters: {{gemm.size: 8192}}
limits:
  environment.gpu.shared: {{at_most: 0, unit: count, scope: rank, source: "{SOURCE}"}}
"""
CHILD = f"""\
extends: base
match: {{device_name: "NVIDIA X1"}}
requires: [hbm]
limits:
  hbm.copy.bandwidth: {{at_least: 100, unit: GB/s, scope: rank, ceiling: 200, spread_at_most: 2, source: "{SOURCE}"}}
"""


def entry(text, metric="hbm.copy.bandwidth"):
    return f"limits:\n  {metric}:\n" + "".join(f"    {line}\n" for line in text.splitlines())


def plain(*lines, unit="GB/s", scope="rank", source=SOURCE):
    return entry("\n".join([*lines, f"unit: {unit}", f"scope: {scope}", f'source: "{source}"']))


CONDITIONS = "world, nodes, min_ranks, min_ranks_per_node"
ENTRY_KEYS = (
    f"at_least, at_most, equals, uniform, peers, unit, scope, {CONDITIONS}, floor, ceiling, spread_at_most, source, remedy, reading"
)
TOP_KEYS = "extends, match, reason, requires, figures, limits, parameters, deadline_s, levels, phases, not_applicable"
IB = f'limits:\n  ib.ports.state: {{equals: "ACTIVE", unit: text, scope: node, source: "{SOURCE}"}}\n'
numbers = st.floats(-1e6, 1e6).map(lambda number: round(number, 3))
