"""Analysis of trajectory files from any model: functions, figures and a viewer.

    entropy          exact entropies from a model, bounds from top-k, flat columns of tokens
    reflection       forking tokens, the lift after tool responses with its nulls, lexicons
    pseudo_gradient  the right answer's loss along a trajectory (RaML)
    routing          experts by segment, specialisation, agreement of checkpoints
    inputs           rollouts of TRL, verl, vLLM, OpenAI-compatible servers, Tongyi, chat messages
    viewer, report   pages that need nothing else: drlib report REPORT.html FILES...

`plots`, `entropy_plots`, `tour_plots` and `sandbox_plots` draw, `widgets` makes panels of them,
`rendering` shows trajectories in notebooks, `tour` reads the reference run.
"""
