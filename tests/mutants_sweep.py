"""The faults of the experiment runner, drlib/lab/sweep*.py and its figure, of warm ranks, of how
programs begin, and of what the README is told (see `tests.mutants`)."""

from tests.mutants import Mutant

SWEEP = "tests/test_experiments_plan.py"
FIGURE = "tests/test_experiments_figures.py"
RUNS = "tests/test_experiments_runner.py"
FILE = "drlib/experiments/plan.py"
BUILT = "drlib/experiments/runner.py"
TABLE = "drlib/experiments/tables.py"
PLOTS = "drlib/experiments/figures.py"
KEPT = "tests/test_cli.py::test_imports_are_excluded_from_garbage_collection"

MUTANTS = [
    Mutant(
        "sweep: the sign of the difference",
        TABLE,
        "    effect = results.gain(stage, stage, kind, decoding, of=control)",
        "    effect = control.gain(stage, stage, kind, decoding, of=results)",
        (f"{SWEEP}::test_the_accuracies_are_of_each_arm_and_the_difference_is_paired_by_hand",),
        "what is better is said to be worse",
    ),
    Mutant(
        "sweep: an arm compared with itself",
        TABLE,
        "    effect = results.gain(stage, stage, kind, decoding, of=control)",
        "    effect = results.gain(stage, stage, kind, decoding, of=results)",
        (f"{SWEEP}::test_the_accuracies_are_of_each_arm_and_the_difference_is_paired_by_hand",),
        "no arm ever differs from the control",
    ),
    Mutant(
        "sweep: the control is the first arm",
        TABLE,
        "    control = results.get(sweep.control)",
        "    control = results.get(next(iter(sweep.arms)))",
        (f"{SWEEP}::test_the_other_arm_as_control_turns_the_sign",),
        "differences are to another arm than the file names",
    ),
    Mutant(
        "sweep: the seed is ignored",
        FILE,
        '**own, "seed": seed})',
        '**own, "seed": self.seeds[0]})',
        (f"{SWEEP}::test_each_run_has_the_settings_of_its_arm_and_its_seed",),
        "one training counts as several",
    ),
    Mutant(
        "sweep: common settings win",
        FILE,
        "{**self.common, **own,",
        "{**own, **self.common,",
        (f"{SWEEP}::test_an_arm_s_own_setting_stands_before_the_common_one",),
        "an arm is not what its line says",
    ),
    Mutant(
        "sweep: equal arms pass",
        FILE,
        '        require(same == name, f"{fault}: they would be the same runs, remove one")\n',
        "",
        (f"{SWEEP}::test_what_is_wrong_with_an_arm_is_one_line",),
        "a difference of 0 is measured between a run and itself",
    ),
    Mutant(
        "sweep: an arm chooses its own questions",
        FILE,
        'key not in chooses and not key.startswith(("eval_", "world"))',
        "key not in chooses",
        (f"{SWEEP}::test_what_is_wrong_with_an_arm_is_one_line",),
        "arms are compared on different questions",
    ),
    Mutant(
        "sweep: a failed run ends it",
        BUILT,
        "        return _reason(str(fault))\n",
        "        raise\n",
        (f"{RUNS}::test_a_failed_arm_is_named_with_its_reason_and_the_others_are_there",),
        "one broken arm loses all that come after it",
    ),
    Mutant(
        "sweep: a failed run counts as finished",
        TABLE,
        '    return [int(seed) for seed, run in runs.items() if "failed" not in run]\n',
        "    return [int(seed) for seed, run in runs.items()]\n",
        (f"{SWEEP}::test_a_seed_that_the_control_lacks_is_in_the_accuracy_and_in_no_difference",),
        "an arm seems to have seeds that it lacks",
    ),
    Mutant(
        "sweep: failures leave no trace",
        "drlib/lab/__main__.py",
        "    return 1 if failed else 0\n",
        "    return 0\n",
        (f"{RUNS}::test_a_failed_arm_is_named_with_its_reason_and_the_others_are_there",),
        "a script goes on as if all had been well",
    ),
    Mutant(
        "sweep: tokens of one rollout for those of all",
        BUILT,
        '[_times(row, "generated", "rollouts") for row in rows]',
        '[row.get("generated") for row in rows]',
        (f"{SWEEP}::test_costs_are_sums_over_steps_and_means_over_seeds",),
        "costs are too small by the number of rollouts",
    ),
    Mutant(
        "sweep: costs summed over seeds",
        TABLE,
        "sum(run[name] for run in runs) / len(runs), 1)",
        "sum(run[name] for run in runs), 1)",
        (f"{SWEEP}::test_costs_are_sums_over_steps_and_means_over_seeds",),
        "arms with more finished seeds seem dearer",
    ),
    Mutant(
        "sweep: drawn from results of other settings",
        TABLE,
        "    require(not changed,",
        "    require(True,",
        (f"{SWEEP}::test_table_and_figure_are_drawn_again_from_files_alone",),
        "old rows stand under a new name",
    ),
    Mutant(
        "sweep: the claim judged by the accuracy",
        TABLE,
        'judged((difference["effect"], *difference["interval"]))',
        'judged((asked[0]["accuracy"], *asked[0]["interval"]))',
        (f"{SWEEP}::test_a_claim_that_nothing_speaks_for_stays_open",),
        "every claim of something higher is reproduced",
    ),
    Mutant(
        "sweep: a claim judged by one seed",
        TABLE,
        'len(difference["seeds"]) < 2',
        'len(difference["seeds"]) < 1',
        (f"{SWEEP}::test_a_claim_is_judged_by_the_first_kind_of_question_as_a_finding_is",),
        "one training's luck is a finding",
    ),
    Mutant(
        "sweep figure: differences where accuracies belong",
        PLOTS,
        '_interval(ax, y, difference["effect"], difference["interval"], color)',
        '_interval(ax, y, arm["asked"][0]["accuracy"], arm["asked"][0]["interval"], color)',
        (f"{FIGURE}::test_the_figure_shows_the_summary_s_numbers",),
        "the middle panel shows no difference",
    ),
    Mutant(
        "sweep figure: tokens of a step for those so far",
        PLOTS,
        "np.cumsum(made_ST, axis=1) / unit",
        "np.array(made_ST) / unit",
        (f"{FIGURE}::test_the_figure_shows_the_summary_s_numbers",),
        "the x axis goes nowhere",
    ),
    Mutant(
        "sweep on Ray: what a task says is dropped",
        "drlib/experiments/ray_runner.py",
        "        return ray.get(task)\n",
        '        return ray.get(task) and ""\n',
        ("tests/test_experiments_ray.py::test_every_run_is_there_and_a_failed_one_is_named",),
        "a run that failed on the cluster passes for finished",
    ),
    Mutant(
        "effects: an interval around zero is in colour",
        PLOTS,
        "            color = CONTROL if low <= 0 <= high else COLORS[1]\n",
        "            color = CONTROL if low >= 0 >= high else COLORS[1]\n",
        ("tests/test_experiments_figures.py::test_the_effects_of_many_sweeps_are_in_one_figure",),
        "chance looks like an effect",
    ),
    Mutant(
        "notebooks: a kernel whose port was taken is not started again",
        "drlib/notebook/execution.py",
        "KERNEL_STARTS = 3",
        "KERNEL_STARTS = 1",
        ("tests/test_notebook_kernels.py",),
        "one run of all notebooks in some hundreds fails for nothing",
    ),
    Mutant(
        "build: imports are garbage-collected",
        "drlib/training/build.py",
        "        with freeze_imports():\n            from",
        "        if True:\n            from",
        (KEPT,),
        "a stage takes a quarter longer to begin",
    ),
    Mutant(
        "cli: imports are garbage-collected",
        "drlib/cli/__init__.py",
        "    with freeze_imports():\n",
        "    if True:\n",
        (KEPT,),
        "a command takes a quarter longer to begin",
    ),
    Mutant(
        "startup: the collector stays off",
        "drlib/startup.py",
        "        if collects:\n            gc.enable()\n",
        "",
        (
            "tests/test_validation.py::test_frozen_imports_are_not_collected",
        ),
        "cycles that hold tensors are never freed",
    ),
    Mutant(
        "made again: the first run less the second",
        "drlib/experiments/reference_run.py",
        'again.gain("rl", "rl", *asked, of=first)',
        'first.gain("rl", "rl", *asked, of=again)',
        (
            "tests/test_experiments_reference.py::test_a_run_made_again_stands_beside_the_first_with_their_difference",
        ),
        "a line that got worse would be said to have got better",
    ),
]
