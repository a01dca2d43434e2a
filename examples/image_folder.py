"""Train on your own images: a folder that contains one folder of images per class.

Run it with `python examples/image_folder.py`. It takes a few seconds and needs no download. The images are the
handwritten digits of scikit-learn. The script writes them as PNG files to a temporary folder.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from sklearn.datasets import load_digits

import fedrecall as fr


def write_pictures(folder: Path, count: int = 600) -> None:
    """Write folder/<class>/<any name>.png. JPEG and other formats work as well."""
    digits = load_digits()
    for number, (pixels, label) in enumerate(zip(digits.images[:count], digits.target[:count], strict=True)):
        class_folder = folder / f"digit {label}"
        class_folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((15 * pixels).astype("uint8")).save(class_folder / f"{number}.png")


def main() -> None:
    """Read the folder, compare two methods, and use the better model."""
    with TemporaryDirectory() as folder:
        pictures = Path(folder) / "pictures"
        write_pictures(pictures)
        # size= resizes all pictures; without it they must have the same size. A part of every class is the test set,
        # another one for each seed.
        data = fr.from_folder(pictures, size=16)
        print(f"{len(data.train_y)} pictures of {len(data.classes)} classes, {'x'.join(map(str, data.shape))}\n")

        # Six clients with different classes. The default model for images of at least 16 x 16 is a small CNN.
        comparison = fr.compare(
            ["fedavg", "fedntd"],
            data=data,
            clients=6,
            sample=3,
            alpha=0.3,
            rounds=20,
            seeds=2,
            config={"local": {"lr": 0.05, "batch": 16, "epochs": 3}},
        )
        print(comparison)

        model = comparison.model("fedntd").eval()  # a torch module: features, logits = model(pictures in [0, 1])
        _, logits = model(data.test_x[:5] / 255)
        predicted = [data.classes[i] for i in logits.argmax(-1)]
        truth = [data.classes[i] for i in data.test_y[:5]]
        print("\nfive test pictures:", ", ".join(f"{t} -> {p}" for t, p in zip(truth, predicted, strict=True)))


if __name__ == "__main__":
    main()
