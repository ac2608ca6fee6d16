"""bench/recipe --hold: what of the mesh's row must not be is said, each by itself. `python3 bench/test_recipe.py`; it is part of .ci/run."""

import argparse
import copy
import importlib.machinery
import importlib.util
import os
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ARGUMENTS = argparse.Namespace(throws=10, kills=2, dead=3, pause=6, rate=20)
# Of the run in README.
GOOD = {"clients": 300, "throws": 10, "kills": 2, "reconnects": 3_896, "session_present_wrong": 0,
        "qos1": {"owed": 207_200, "lost": 0, "duplicated": 0, "reordered": 0},
        "qos2": {"owed": 206_640, "lost": 0, "duplicated": 0, "reordered": 0}}


def breaches(**changes):
    loader = importlib.machinery.SourceFileLoader("recipe", os.path.join(HERE, "recipe"))
    recipe = importlib.util.module_from_spec(importlib.util.spec_from_loader("recipe", loader))
    loader.exec_module(recipe)
    row = copy.deepcopy(GOOD)
    for key, value in changes.items():
        row[key] = row[key] | value if isinstance(value, dict) else value
    return recipe.breaches(row, ARGUMENTS)


class Hold(unittest.TestCase):
    def test_a_good_run_holds(self):
        self.assertEqual(breaches(), [])

    def test_each_fault_is_said(self):
        for changes, word in [
            ({"session_present_wrong": 1}, "session_present_wrong: 1"),
            ({"qos1": {"lost": 1}}, "QoS 1 lost: 1"),
            ({"qos2": {"duplicated": 2}}, "QoS 2 duplicated: 2"),
            # Of nothing nothing is lost.
            ({"qos1": {"owed": 0}}, "QoS 1: only 0 owed"),
            ({"qos2": {"owed": 50_000}}, "QoS 2: only 50000 owed"),
            ({"throws": 9}, "thrown 9 times"),
            ({"kills": 1}, "killed 1 times"),
            ({"reconnects": 1_000}, "only 1000 reconnects"),
        ]:
            found = breaches(**changes)
            self.assertEqual((len(found), word in found[0]), (1, True), found)


if __name__ == "__main__":
    unittest.main()
