"""Test plugin: write the tensor type of the trained weights to the run folder."""

from drlib.training import model_setup, sft_trl

save = model_setup.save_trained_model


def save_and_record_types(run, trainer, *others):
    kinds = {type(parameter).__name__ for parameter in trainer.model.parameters()}
    if run.ranks.first:
        (run.path / "sharded.txt").write_text(" ".join(sorted(kinds)))
    return save(run, trainer, *others)


sft_trl.save_trained_model = save_and_record_types
