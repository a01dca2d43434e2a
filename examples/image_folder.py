"""Your own images: a folder with one folder of pictures for each class is all that is needed.

Run it with `python examples/image_folder.py`; it takes some seconds and needs no download. The pictures are the
handwritten digits that come with scikit-learn, written as PNG files to a folder that is removed at the end.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from sklearn.datasets import load_digits

import fedrecall as fr


def write_pictures(folder: Path, count: int = 600) -> None:
    """folder/<class>/<any name>.png; JPEG and other formats do as well."""
    digits = load_digits()
    for number, (pixels, label) in enumerate(zip(digits.images[:count], digits.target[:count], strict=True)):
        place = folder / f"digit {label}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray((15 * pixels).astype("uint8")).save(place / f"{number}.png")


def main() -> None:
    """Read the folder, see who has what, compare two methods, use the better model."""
    with TemporaryDirectory() as folder:
        pictures = Path(folder) / "pictures"
        write_pictures(pictures)
        # All pictures must have one size, or are brought to one by size=. Some of every class are kept for the test.
        data = fr.from_folder(pictures, size=16)
    print(f"{len(data.train_y)} pictures of {len(data.classes)} classes, {'x'.join(map(str, data.shape))}\n")

    # Six clients that have different classes; a small CNN is chosen because these are images of 16 x 16 or more.
    side = fr.compare(
        ["fedavg", "fedntd"],
        data=data,
        clients=6,
        sample=3,
        alpha=0.3,
        rounds=20,
        seeds=2,
        config={"local": {"lr": 0.05, "batch": 16, "epochs": 3}},
    )
    print(side)

    model = side.model("fedntd").eval()  # a torch module: features and logits of a batch of pictures in [0, 1]
    _, logits = model(data.test_x[:5] / 255)
    said = [data.classes[i] for i in logits.argmax(-1)]
    truth = [data.classes[i] for i in data.test_y[:5]]
    print("\nfive test pictures:", ", ".join(f"{t} -> {s}" for t, s in zip(truth, said, strict=True)))


if __name__ == "__main__":
    main()
