"""A trained model in use: loaded without the training data, applied to raw examples, exported."""

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from fedrecall.config.choices import PythonObject
from fedrecall.config.experiment import Experiment
from fedrecall.core.flat_model import eval_slices
from fedrecall.core.seeds import single_threaded
from fedrecall.data.dataset import Dataset
from fedrecall.data.examples import Examples
from fedrecall.data.inputs import to_inputs
from fedrecall.data.preprocessing import Preprocessing
from fedrecall.data.readers import decode_images, image_files, missing_column_error, read_files
from fedrecall.data.tabular import table_columns
from fedrecall.data.text import encode_as_in_training
from fedrecall.errors import UserError, first_line, missing_extra, unknown_name
from fedrecall.files import parse_json, write_atomic
from fedrecall.models.adapt import without_hooks
from fedrecall.runs.setup import MODEL_FILE, UserModel, build_model, load_weights
from fedrecall.tensor_dict import Inputs, TensorDict

if TYPE_CHECKING:
    from pandas import DataFrame

PREPROCESS_FILE = "preprocess.json"

ExportFormat = Literal["onnx", "torch.export", "safetensors"]

EXPORT_SUFFIXES: dict[str, str] = {"onnx": ".onnx", "torch.export": ".pt2", "safetensors": ".safetensors"}


class Logits(nn.Module):
    """A module that returns only the logits of another one. Inputs by name become positional, in this order."""

    def __init__(self, module: nn.Module, names: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.module, self.names = module, names

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the logits [B, K]."""
        output = self.module(**dict(zip(self.names, inputs, strict=True))) if self.names else self.module(*inputs)
        logits = getattr(output, "logits", output)
        found: Tensor = logits[1] if isinstance(logits, tuple | list) else logits
        return found


@dataclass(frozen=True, eq=False)
class DeployedModel:
    """A global model with the preprocessing of the data that it was trained on."""

    module: nn.Module  # its forward returns (features, logits)
    preprocessing: Preprocessing

    @classmethod
    def load(
        cls, folder: Path, experiment: Experiment, model: UserModel | None = None, weights: str = MODEL_FILE
    ) -> "DeployedModel":
        """Load the model of a run directory, from its file `weights`. The training data is not needed."""
        if model is None and isinstance(experiment.model, PythonObject):
            hint = f'pass it: fedrecall.load("{folder}", model=...)'
            raise UserError("config.needs_python_object", f"{folder}: the run is on your own module", "model", hint)
        file = folder / PREPROCESS_FILE
        try:
            preprocessing = Preprocessing.from_json(parse_json(file.read_text()))
            x = preprocessing.zeros()
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
            raise UserError(
                "run.no_preprocessing",
                f"{file}: cannot be read ({type(error).__name__}), so the inputs of the model are not known",
                str(file),
                "run the experiment again with this version",
            ) from None
        y = torch.zeros(2, dtype=torch.int64)
        stand_in = Dataset("inputs", x, y, x, y, preprocessing.classes, test_transform=preprocessing.transform)
        module = build_model(experiment, stand_in, model)
        load_weights(module, folder / weights)
        return cls(module.eval(), preprocessing)

    def plain(self) -> nn.Module:
        """Return the module without the hooks of this library."""
        return without_hooks(self.module).eval()

    @torch.no_grad()
    def logits(self, x: Inputs) -> Tensor:
        """Return the logits of raw inputs, in the batches of a run's evaluation."""
        examples = Examples(x, torch.zeros(len(x), dtype=torch.int64), self.preprocessing.transform)
        with single_threaded():
            return torch.cat([self.module(examples.batch(rows))[1] for rows in eval_slices(len(x))])

    def predict(self, data: Any) -> "DataFrame":
        """Return the predicted class of every example and the probability of each class.

        `data` is a table (a DataFrame, a list of dictionaries, a CSV or Parquet file) with the columns of the training
        data, a list of texts, a folder of images or one image, or an array of inputs. Predictions on a DataFrame have
        its index.
        """
        from pandas import DataFrame

        if self.preprocessing.columns and isinstance(data, list) and all(isinstance(row, Mapping) for row in data):
            data = DataFrame(data)
        x, names = self._inputs(data)
        if len(x) == 0:
            raise UserError("data.empty", "data: there are no examples", "data", "pass at least one")
        probabilities = self.logits(x).softmax(1)
        classes = np.asarray(self.preprocessing.classes)
        columns: dict[str, Any] = {} if names is None else {"file": names}
        columns["prediction"] = classes[probabilities.argmax(1).numpy()]
        columns |= {f"p({name})": probabilities[:, i].numpy() for i, name in enumerate(classes)}
        return DataFrame(columns, index=data.index if isinstance(data, DataFrame) else None)

    def _inputs(self, data: Any) -> tuple[Inputs, list[str] | None]:
        """Return raw examples as inputs, and the names of their files."""
        spec = self.preprocessing
        is_path = isinstance(data, str | Path)
        if spec.text is not None and not is_path and not hasattr(data, "columns"):
            return encode_as_in_training(list(data), spec.text, "data"), None
        if is_path and Path(data).suffix.lower() not in (".csv", ".parquet"):
            path, shape = Path(data).expanduser(), spec.shapes.get("", ())
            files = image_files(path) if path.is_dir() else [path]
            if len(shape) != 3 or spec.types[""] != "uint8":
                message = f"{path}: the model was not trained on images"
                hint = "pass a table or an array" if spec.text is None else "pass a list of texts, or a table"
                raise UserError("data.unsupported_type", message, str(path), hint)
            size = shape[1] if shape[1] == shape[2] else None
            return decode_images(read_files(files), path.name, shape[0], size)[0], [str(file) for file in files]
        if is_path or hasattr(data, "columns"):
            file, columns = table_columns(data)
            if spec.text is not None:
                name = spec.text.column or "text"
                if name not in columns:
                    raise missing_column_error(file, name, columns)
                return encode_as_in_training(columns[name].to_pylist(), spec.text, file), None
            if not spec.columns:
                message = f"{file}: the model was not trained on a table"
                raise UserError("data.unsupported_type", message, file, "pass inputs as in training")
            return spec.encode_table(columns, file), None
        if spec.columns:
            message, hint = (
                "data: the model was trained on a table",
                "pass a table with the columns of the training data",
            )
            raise UserError("data.unsupported_type", message, "data", hint)
        return spec.standardise(spec.checked(to_inputs(data, "data"))), None

    def metadata(self) -> dict[str, str]:
        """Return the metadata of model.safetensors."""
        return model_metadata(self.preprocessing)

    def export(self, kind: ExportFormat, path: str | Path) -> Path:
        """Write the model in a format of other tools; return the file.

        "onnx" and "torch.export" are programs that compute logits from preprocessed inputs, of any batch size; several
        inputs are in the order of the data. "safetensors" is the state of the plain module.
        """
        if kind not in get_args(ExportFormat):
            raise unknown_name("export format", kind, get_args(ExportFormat), key="kind")
        file = Path(path)
        if not file.parent.is_dir():
            raise _cannot_export(file, f"there is no folder {file.parent}")
        if kind == "safetensors":
            state = {name: t.contiguous().clone() for name, t in self.plain().state_dict().items()}
            with _naming_export(file):
                write_atomic(file, safetensors.torch.save(state, self.metadata()))
            return file
        examples = Examples(
            self.preprocessing.zeros(3), torch.zeros(3, dtype=torch.int64), self.preprocessing.transform
        )
        sample, batch = examples.batch(slice(None)), torch.export.Dim("batch")
        tensors = sample.tensors if isinstance(sample, TensorDict) else {"": sample.contiguous()}
        names = tuple(name for name in tensors if name)
        dynamic = {"inputs": tuple({0: batch} for _ in tensors)}
        module = Logits(self.plain(), names).eval()
        program = torch.export.export(module, (*tensors.values(),), dynamic_shapes=dynamic, strict=False)
        if kind == "torch.export":
            extra = {PREPROCESS_FILE: json.dumps(self.preprocessing.to_json())}
            with _naming_export(file):
                torch.export.save(program, file, extra_files=extra)
            return file
        try:
            import onnx  # noqa: F401
            import onnxscript  # noqa: F401
        except ImportError:
            raise missing_extra("onnx", "onnx") from None
        inputs = list(names) or ["input"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecations inside the exporter
            exported = torch.onnx.export(
                program, input_names=inputs, output_names=["logits"], dynamo=True, verbose=False
            )
        if exported is None:
            raise RuntimeError("torch.onnx.export returned no program")
        exported.model.metadata_props.update(self.metadata())
        with _naming_export(file):
            exported.save(str(file))
        return file


@contextmanager
def _naming_export(file: Path) -> Iterator[None]:
    """Turn an error of writing into one that names the file."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # torch writes files in C++
        raise _cannot_export(file, getattr(error, "strerror", None) or first_line(error)) from None


def _cannot_export(file: Path, reason: str) -> UserError:
    return UserError("run.cannot_write", f"{file}: cannot write the model: {reason}", str(file), "set another path")


def default_export_path(kind: str, folder: Path | None) -> Path:
    """Return the path of an exported model in a run directory, or in the current folder."""
    return (folder or Path()) / f"model{EXPORT_SUFFIXES.get(kind, '')}"


def model_metadata(preprocessing: Preprocessing) -> dict[str, str]:
    """Return the metadata of a model file: the preprocessing, without any name of a client.

    One key, because safetensors writes several in random order, and equal models must be equal files.
    """
    return {"preprocess": json.dumps(preprocessing.to_json())}
