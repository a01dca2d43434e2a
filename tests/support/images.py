"""Folders of small images, one folder per class."""

from pathlib import Path

import numpy as np
from PIL import Image


def write_images(folder: Path, classes: dict[str, int], size: int = 4) -> Path:
    """Write so many grey images of each class."""
    for label, number in classes.items():
        (folder / label).mkdir(parents=True)
        for i in range(number):
            Image.fromarray(np.full((size, size), 20 * i, dtype=np.uint8)).save(folder / label / f"{i}.png")
    return folder
