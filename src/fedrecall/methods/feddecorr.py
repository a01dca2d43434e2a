"""FedDecorr: Towards Understanding and Mitigating Dimensional Collapse in Heterogeneous Federated Learning.

Shi, Liang, Zhang, Tan, Bai. ICLR 2023. https://arxiv.org/abs/2210.00226

The paper prints the squared Frobenius norm of the correlation matrix over d^2. The official code has another scale: it
does not divide the matrix by the batch, leaves out the diagonal and divides the mean square by the batch.
"""

from dataclasses import dataclass

from torch import Tensor

from fedrecall.constraints import Weight
from fedrecall.core.method import Method
from fedrecall.core.types import Local, Step

EPSILON = 1e-8  # added to the variance, as in the official code


@dataclass(frozen=True)
class FedDecorr(Method):
    """Penalty on the correlation of features, so that they do not collapse into few dimensions."""

    beta: Weight = 0.1
    """Weight of the penalty."""
    paper: bool = False
    """Scale of the paper's equation instead of the official code's."""

    def loss(self, s: Step, r: Local) -> Tensor:
        """Return CE + beta L_decorr. A batch of one has no correlation and adds 0."""
        ce, (batch, width) = r.cross_entropy(s.z, s.y), s.h.shape
        if batch == 1 or width == 1:
            return ce
        h = s.h - s.h.mean(0)
        h = h / (h.var(0) + EPSILON).sqrt()
        K = h.T @ h
        if self.paper:  # Eq. (5), with the correlation matrix of an unbiased variance
            return ce + self.beta * (K / (batch - 1)).square().mean()
        off_diagonal = K.square().sum() - K.diagonal().square().sum()
        return ce + self.beta * off_diagonal / (width * (width - 1)) / batch
