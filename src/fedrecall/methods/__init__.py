"""One file a method. A method is a difference from FedAvg."""

from fedrecall.core.method import Method
from fedrecall.methods.fedavgm import FedAvgM
from fedrecall.methods.fedprox import FedProx

METHODS: dict[str, type[Method]] = {
    "fedavg": Method,
    "fedprox": FedProx,
    "fedavgm": FedAvgM,
}
