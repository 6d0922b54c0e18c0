"""Analysis of trajectory files of any model: statistics, figures and a viewer.

    token_table      flat columns of sampled tokens
    rescoring        exact log-probabilities and entropies from a model
    entropy          high-entropy tokens, bounds from top-k log-probabilities
    reflection       forking tokens, lift after tool responses with controls, lexicons
    pseudo_gradient  loss of the right answer along a trajectory (RaML)
    routing          expert load by segment, specialisation, agreement of checkpoints
    inputs           rollouts of TRL, verl, vLLM, OpenAI-compatible servers, Tongyi, chat messages
    viewer, report   self-contained HTML pages: drlib report REPORT.html FILES...
    tour             results of the reference run
    rendering        trajectories in notebooks
    widgets          interactive panels

Modules named `*plots` draw figures.
"""
