"""Commands of the former laboratory; moved to drlib.experiments and drlib.cli."""
