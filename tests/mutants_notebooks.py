"""Mutants of what notebooks show: panels, figures, curricula (see `tests.mutants`)."""

from tests.mutants import Mutant

PANELS = ("tests/test_notebook_panels.py",)
SCRIPT = "drlib/notebook/panels.js"
WIDGETS = ("tests/test_analysis_scaling.py",)
SANDBOX = ("tests/test_analysis_sandbox.py",)

MUTANTS = [
    Mutant(
        "clip panel: the clip of a bad token is that of a good one",
        SCRIPT,
        "(a > 0 ? r > 1 + high : r < 1 - low)",
        "r > 1 + high",
        PANELS,
        "ratios below the range would keep their gradient",
    ),
    Mutant(
        "advantage panel: a rollout is part of its own baseline",
        SCRIPT,
        "(mean(R) * R.length - r) / (R.length - 1)",
        "mean(R)",
        PANELS,
        "leave-one-out would be the group mean",
    ),
    Mutant(
        "KL panel: k3 has the other sign",
        SCRIPT,
        "Math.exp(-x) - 1 + x",
        "Math.exp(x) - 1 - x",
        PANELS,
        "its mean would not be the KL",
    ),
    Mutant(
        "staleness panel: age has no effect",
        SCRIPT,
        "v.sigma * Math.sqrt(v.age)",
        "v.sigma",
        PANELS,
        "the effective sample size would be that of age 1",
    ),
    Mutant(
        "entropy panel: temperature multiplies",
        SCRIPT,
        "(rank * v.gap) / v.temperature",
        "rank * v.gap * v.temperature",
        PANELS,
        "a high temperature would sharpen the distribution",
    ),
    Mutant(
        "scheduler panel: the learner does not wait for a batch",
        SCRIPT,
        "Math.max(now, ready[e])",
        "now",
        PANELS,
        "sampling would take no time",
    ),
    Mutant(
        "panel: reset does not redraw",
        SCRIPT,
        "inputs[c.name].value = c.value;\n      draw();",
        "inputs[c.name].value = c.value;",
        PANELS,
        "the picture would be of the old values",
    ),
    Mutant(
        "widgets: a code host gets no picture",
        "drlib/analysis/widgets.py",
        'if "picture" in vars(self):',
        "if False:",
        WIDGETS,
        "a page without a kernel would show one line of text",
    ),
    Mutant(
        "widgets: the busy state stays after an error",
        "drlib/analysis/widgets.py",
        "        finally:\n            self.status.value",
        "        except KeyError:\n            self.status.value",
        WIDGETS,
        "the panel would seem to be drawing for ever",
    ),
    Mutant(
        "pipeline map: every stage is highlighted",
        "drlib/analysis/pipeline_map.py",
        '*places[stage], active in (stage, "all"))',
        "*places[stage], True)",
        ("tests/test_docs_book.py",),
        "the map would not show where the reader is",
    ),
    Mutant(
        "experiments: a pilot is shown with the questions of the new plan",
        "drlib/experiments/tables.py",
        '"common": _common(plan, ran),',
        '"common": dict(plan.common),',
        ("tests/test_experiments_plan.py",),
        "the table would state a number of questions that was never asked",
    ),
    Mutant(
        "curriculum: shares are not normalised",
        "drlib/rl/curriculum.py",
        "[weight / sum(weights) for weight in weights]",
        "weights",
        ("tests/test_rl_curriculum.py",),
        "they would not add up to 1",
    ),
    Mutant(
        "call queue: a free core does not shorten the wait",
        "drlib/analysis/sandbox_plots.py",
        "start = max(arrival, free[0])",
        "start = max(arrival, free[-1])",
        SANDBOX,
        "every call would wait for the busiest core",
    ),
    Mutant(
        "call queue: more cores than needed",
        "drlib/analysis/sandbox_plots.py",
        "(low, cores) if enough else (cores + 1, high)",
        "(low, cores) if enough else (cores + 2, high)",
        SANDBOX,
        "the search would skip the least number",
    ),
    Mutant(
        "first step: gradients of unmoved weights are drawn",
        "drlib/analysis/gradient_plots.py",
        "moved = sizes > 0",
        "moved = sizes >= 0",
        ("tests/test_analysis_gradient_plots.py",),
        "a logarithmic axis has no zero",
    ),
]
