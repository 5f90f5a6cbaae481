"""A cluster has the interface that the loads expect of a broker."""

import ast
import inspect

from bench import loads
from bench.cluster import loads as cluster_loads
from bench.cluster.nodes import Cluster


def _taken_of_broker(source: str) -> set[str]:
    return {node.attr for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name) and node.value.id == "broker"}


def test_a_cluster_has_all_that_loads_ask_of_a_broker(tmp_path):
    own = inspect.getsource(cluster_loads)
    used = [function for name, function in inspect.getmembers(loads, inspect.isfunction)
            if f"loads.{name}(" in own]
    asked = set().union(*(_taken_of_broker(inspect.getsource(function)) for function in (
        *used, loads._run, loads._options, loads._environment)))

    assert used and {"load_bootstrap", "access"} <= asked
    assert asked <= set(dir(Cluster("pylog", tmp_path)))
