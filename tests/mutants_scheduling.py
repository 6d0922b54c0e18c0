"""Mutants of rollout scheduling: admission by cache, the engine's budget, routers, simulators (see
`tests.mutants`)."""

from tests.mutants import Mutant

ADMISSION = "tests/test_models_admission.py"
BUDGET = "tests/test_models_local_engine_budget.py"
ROUTING = "tests/test_models_replica_routing.py"
SIMULATED = "tests/test_analysis_scheduling.py"

MUTANTS = [
    Mutant(
        "admission: the longest rollouts are evicted",
        "drlib/models/admission.py",
        'order = np.argsort(needed_N, kind="stable")\n        left',
        'order = np.argsort(-needed_N, kind="stable")\n        left',
        (ADMISSION,),
        "the most work would be lost",
    ),
    Mutant(
        "admission: one rollout more than the cache holds",
        "drlib/models/admission.py",
        "(np.cumsum(self.reserve(waiting_M)) <= free).sum())",
        "(np.cumsum(self.reserve(waiting_M)) - self.reserve(waiting_M) <= free).sum())",
        (ADMISSION,),
        "reserve would overflow",
    ),
    Mutant(
        "budget: an evicted row keeps its cache",
        "drlib/models/local_engine.py",
        "        self._forget(evicted)\n        self.has_cache[evicted] = False",
        "        self.has_cache[evicted] = False",
        (f"{BUDGET}::test_samples_do_not_depend_on_the_budget",),
        "the cache would hold more than its budget",
    ),
    Mutant(
        "budget: rows are read before they are admitted",
        "drlib/models/local_engine.py",
        "np.flatnonzero((self.state == _WAITING) & self.has_cache).tolist()",
        "np.flatnonzero(self.state == _WAITING).tolist()",
        (f"{BUDGET}::test_samples_do_not_depend_on_the_budget",),
        "every prompt would be cached at once",
    ),
    Mutant(
        "budget: a second reading replaces the routes",
        "drlib/models/local_engine.py",
        "        self.recorded[evicted] = np.maximum(self.recorded[evicted], self.feed[evicted])\n",
        "",
        (f"{BUDGET}::test_an_eviction_keeps_the_routes_of_the_first_reading",),
        "the last layer's routes of sampled tokens would be lost",
    ),
    Mutant(
        "routing: keys depend on the order of the replicas",
        "drlib/models/replica_routing.py",
        '_hash(f"{name}/{point}")',
        '_hash(f"{index}/{point}")',
        (f"{ROUTING}::test_a_leaving_replica_moves_only_its_own_keys",),
        "most rollouts would move when a replica leaves",
    ),
    Mutant(
        "routing: blocks without the ids before them",
        "drlib/models/replica_routing.py",
        "value = hash((value, *ids[start : start + self._block]))",
        "value = hash((*ids[start : start + self._block],))",
        (f"{ROUTING}::test_the_longest_cached_prefix_wins",),
        "equal text after another prompt would count as cached",
    ),
    Mutant(
        "simulation: interrupted rollouts begin again",
        "drlib/analysis/scheduling.py",
        "length_P[rest], left_P[rest] - tokens, begun_P[rest]",
        "length_P[rest], length_P[rest], begun_P[rest]",
        (f"{SIMULATED}::test_resuming_is_biased_at_first_only",),
        "resuming would be as slow and as biased as dropping",
    ),
    Mutant(
        "routing: a server is chosen by the length of the context",
        "drlib/models/vllm_server.py",
        "self._router.choose(conversation.key, ",
        "self._router.choose(len(conversation.ids), ",
        ("tests/test_models_vllm_server.py::test_the_turns_of_a_rollout_reach_one_replica",),
        "each turn would be read again by another server",
    ),
    Mutant(
        "tasks: every verified row is correct",
        "drlib/evaluation/answer_files.py",
        "Verdict.CORRECT if row.verified == 1 else",
        "Verdict.CORRECT if row.verified >= 0 else",
        (
            "tests/test_evaluation_environment_items.py::test_folders_of_harbor_are_run_and_verified",
        ),
        "failed tasks of environments would count as solved",
    ),
]
