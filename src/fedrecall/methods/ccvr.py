"""CCVR: No Fear of Heterogeneity: Classifier Calibration for Federated Learning with Non-IID Data.

Luo, Chen, Hu, Zhang, Liang, Feng. NeurIPS 2021. https://arxiv.org/abs/2106.05001

Training is FedAvg. After the last round every client sends the count, mean and covariance of its features per class.
The server draws virtual features from the pooled Gaussians and trains the last layer on them.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Generator, Tensor, nn
from torch.nn.utils import skip_init

from fedrecall.constraints import PositiveFloat, PositiveInt
from fedrecall.core import seeds
from fedrecall.core.flat_model import FlatModel
from fedrecall.core.losses import class_mean, one_hot_mask
from fedrecall.core.method import Method
from fedrecall.core.method_extensions import Traits
from fedrecall.core.optim import ClientSGD
from fedrecall.core.reply_validation import Reason
from fedrecall.core.training import LocalTraining, train
from fedrecall.core.types import Cohort, Local, Payload, Reply, Server

BATCH = 64  # virtual features per step


class Head(nn.Module):
    """The last layer as a model of its own, whose inputs are features."""

    def __init__(self, features: int, classes: int, *, bias: bool) -> None:
        super().__init__()
        # no generator is used: the weights are given
        self.linear = skip_init(nn.Linear, features, classes, bias=bias)  # type: ignore[no-untyped-call]

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Return features and logits."""
        return h, self.linear(h)


@dataclass(frozen=True)
class VirtualFeatures:
    """Labelled features, as examples of a `Head`."""

    h: Tensor
    y: Tensor
    is_augmented: bool = False

    def __len__(self) -> int:
        return len(self.y)

    def batch(self, rows: Tensor | slice, rng: Generator | None = None) -> Tensor:
        """Return features of these rows."""
        return self.h[rows]

    def positions(self, rows: Tensor | slice) -> Tensor | slice:
        """Return the rows: every feature has one label."""
        return rows

    def subset(self, rows: Tensor) -> "VirtualFeatures":
        """Return these rows."""
        return VirtualFeatures(self.h[rows], self.y[rows])

    def precomputed(self) -> Self:
        """Return the features."""
        return self


@dataclass(frozen=True)
class CCVR(Method):
    """FedAvg whose last layer is trained again, after the last round, on virtual features of all classes."""

    samples: PositiveInt = 100
    """Virtual features per class."""
    epochs: PositiveInt = 10
    """Passes over the virtual features."""
    lr: PositiveFloat = 0.01
    """Learning rate of the last layer."""

    @property
    def traits(self) -> Traits:
        """Clients compute statistics of one model after training, which the server pools exactly."""
        return Traits(
            needs_global_model=True,
            needs_one_label=True,
            needs_linear_head=True,
            excludes=("server.robust",),
            extra_tasks=("class_statistics",),
        )

    def class_statistics(self, r: Local) -> Payload:
        """Return count [K], mean [K, D] and unbiased covariance [K, D, D] of the client's features by class."""
        h, classes = r.f.outputs(r.state(r.w), r.data).h.double(), len(r.counts)
        mean = class_mean(h, r.y, classes)
        centred = h - mean[r.y]
        held = one_hot_mask(r.y, classes).to(h.dtype)
        covariance = torch.stack([(held[:, c, None] * centred).T @ centred for c in range(classes)])
        covariance /= (r.counts - 1).clamp(min=1)[:, None, None]
        return {"count": r.counts, "mean": mean.to(r.w.dtype), "covariance": covariance.to(r.w.dtype)}

    def validate_reply(self, reply: Reply) -> str | None:
        """Reject class counts that are negative or do not add up to the client's examples."""
        count = reply.up.get("count")
        if count is None or (count.min() >= 0 and count.sum() == reply.n):
            return None
        return Reason("reply.invalid_value", f"count must be >= 0 and add up to {reply.n} examples")

    def finish(self, server: Server, cohort: Cohort) -> Server:
        """Pool the statistics, draw virtual features and train the last layer on them."""
        n, total, second = (torch.zeros((), dtype=torch.float64) for _ in range(3))
        for reply in cohort.run("class_statistics", {"w": server.w}):
            count, mean = reply.up["count"].double(), reply.up["mean"].double()
            n = n + count
            total = total + count[:, None] * mean
            second = second + (count - 1).clamp(min=0)[:, None, None] * reply.up["covariance"].double()
            second = second + count[:, None, None] * mean[:, :, None] * mean[:, None, :]
        features = self.draw(*pooled_gaussians(n, total, second), n > 0, server)
        return server.with_extra(evaluated=self.calibrate(server, features, len(n)))

    def draw(self, mean: Tensor, covariance: Tensor, held: Tensor, server: Server) -> VirtualFeatures:
        """Draw `samples` features of each class that some client holds."""
        rng = seeds.generator(server.seed, "server", server.t)
        values, vectors = torch.linalg.eigh(covariance)
        noise = torch.randn(len(mean), self.samples, mean.shape[1], generator=rng, dtype=mean.dtype)
        h = mean[:, None] + (noise * values.clamp(min=0).sqrt()[:, None]) @ vectors.mT
        y = torch.arange(len(mean))[:, None].expand(-1, self.samples)
        return VirtualFeatures(h[held].flatten(0, 1).to(server.w.dtype), y[held].flatten())

    def calibrate(self, server: Server, features: VirtualFeatures, classes: int) -> Tensor:
        """Return the weights with a last layer that was trained on the features."""
        head, width = server.f.head, features.h.shape[1]
        has_bias = head.stop - head.start == classes * (width + 1)
        f = FlatModel(Head(width, classes, bias=has_bias).to(server.w.dtype))
        r = Local(
            f=f,
            w=server.w[head],
            b=f.b,
            down={},
            memory={},
            data=features,
            y=features.y,
            counts=torch.bincount(features.y, minlength=classes),
            training=LocalTraining(self.epochs, BATCH, ClientSGD(self.lr)),
            t=server.t,
            seed=0,
            scratch={},
        )
        w = server.w.clone()
        w[head] = train(Method(), r, seeds.derive_seed(server.seed, "server", server.t), 0).up["w"]
        return w


def pooled_gaussians(n: Tensor, total: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean [K, D] and unbiased covariance [K, D, D] of the features of all clients.

    `total` is sum_k n_k mu_k, `second` sum_k (n_k - 1) S_k + n_k mu_k mu_k^T. The covariance of one example is 0.
    """
    mean = total / n.clamp(min=1)[:, None]
    covariance = (second - n[:, None, None] * mean[:, :, None] * mean[:, None, :]) / (n - 1).clamp(min=1)[:, None, None]
    return mean, covariance
