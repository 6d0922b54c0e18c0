"""A plugin of a test: notes in the run folder what kind of tensor the trained weights are."""

from drlib.training import model_setup, sft_trl

save = model_setup.save_trained_model


def save_and_say(run, trainer, *others):
    kinds = {type(parameter).__name__ for parameter in trainer.model.parameters()}
    if run.ranks.first:
        (run.path / "sharded.txt").write_text(" ".join(sorted(kinds)))
    return save(run, trainer, *others)


sft_trl.save_trained_model = save_and_say
