"""How much of a study's rounds is run, in words: every output says it in the same way."""

from fedrecall.config.experiment import Experiment
from fedrecall.studies.study import Cell, Study


def scaled(study: Study, *, lengths: bool = False) -> list[str]:
    """What is to be said of a study with fewer rounds than the paper's; nothing of a whole one."""
    if study.fraction == 1:
        return []
    said = f"rounds scaled to {100 * study.fraction:g} %"
    if not lengths:
        return [said]
    full = study.model_copy(update={"fraction": 1.0})
    pairs = dict.fromkeys((_rounds(cell), _rounds(full.cell(*cell[:3]))) for cell in study.cells())
    return [f"{said}: {', '.join(f'{some} of {whole}' for some, whole in pairs)}"]


def _rounds(cell: Cell) -> int:
    return Experiment(**cell.config).run.rounds
