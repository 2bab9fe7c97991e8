"""YAML that people write by hand: what PyYAML fails at without saying where is an error with a line here, too."""

from __future__ import annotations

from typing import Any

import yaml


class PlainLoader(yaml.SafeLoader):
    """Raises yaml.YAMLError, ValueError (impossible digits) or RecursionError, and nothing else."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Refuse a text with half a character, which no message and no label could hold."""
        node = super().compose_node(parent, index)
        if isinstance(node, yaml.ScalarNode):
            try:
                node.value.encode()
            except UnicodeEncodeError:
                problem = "\\ud800 to \\udfff alone are no characters"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Name the value that a tag does not fit, as in `!!bool 5`."""
        try:
            return super().construct_object(node, deep)
        except (LookupError, AttributeError, TypeError):
            problem = "the value does not fit the tag before it, leave the tag out"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None
