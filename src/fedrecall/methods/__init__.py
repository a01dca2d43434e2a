"""The methods, one file each. A method is a difference from FedAvg."""

from fedrecall.core.method import Method
from fedrecall.methods.ccvr import CCVR
from fedrecall.methods.ditto import Ditto
from fedrecall.methods.fedacg import FedACG
from fedrecall.methods.fedavg_kd import FedAvgKD, FedAvgLS
from fedrecall.methods.fedavgm import FedAvgM
from fedrecall.methods.fedbabu import FedBABU
from fedrecall.methods.fedcad import FedCAD
from fedrecall.methods.fedcsd import FedCSD
from fedrecall.methods.fedcurv import FedCurv
from fedrecall.methods.feddecorr import FedDecorr
from fedrecall.methods.feddf import FedDF
from fedrecall.methods.feddyn import FedDyn
from fedrecall.methods.fedexp import FedExP
from fedrecall.methods.fedgkd import FedGKD
from fedrecall.methods.fedlc import FedLC
from fedrecall.methods.fedlmd import FedLMD, FedLMDTf
from fedrecall.methods.fedlsd import FedLSD
from fedrecall.methods.fednova import FedNova
from fedrecall.methods.fedntd import FedNTD
from fedrecall.methods.fedproto import FedProto
from fedrecall.methods.fedprox import FedProx
from fedrecall.methods.fedrep import FedRep
from fedrecall.methods.fedrs import FedRS
from fedrecall.methods.fedsam import FedSAM
from fedrecall.methods.fedssd import FedSSD
from fedrecall.methods.grid import Grid
from fedrecall.methods.moon import Moon
from fedrecall.methods.scaffold import Scaffold

METHODS: dict[str, type[Method]] = {
    "fedavg": Method,
    "fedprox": FedProx,
    "fedavgm": FedAvgM,
    "scaffold": Scaffold,
    "fednova": FedNova,
    "feddyn": FedDyn,
    "fedcurv": FedCurv,
    "moon": Moon,
    "fedproto": FedProto,
    "fedrs": FedRS,
    "fedlc": FedLC,
    "feddecorr": FedDecorr,
    "fedsam": FedSAM,
    "fedexp": FedExP,
    "fedacg": FedACG,
    "feddf": FedDF,
    "ccvr": CCVR,
    "fedrep": FedRep,
    "fedbabu": FedBABU,
    "ditto": Ditto,
    "fedlsd": FedLSD,
    "fedntd": FedNTD,
    "fedgkd": FedGKD,
    "fedcad": FedCAD,
    "fedssd": FedSSD,
    "fedcsd": FedCSD,
    "fedlmd": FedLMD,
    "fedlmd-tf": FedLMDTf,
    "fedavg-kd": FedAvgKD,
    "fedavg-ls": FedAvgLS,
    "grid": Grid,
}

METHOD_GROUPS: dict[str, tuple[str, ...]] = {  # by the purpose of the methods
    "base": ("fedavg",),
    "forget less: distillation": ("fedntd", "fedlmd", "fedlsd", "fedgkd", "fedcad", "fedssd", "fedcsd"),
    "forget less: without a teacher": ("fedlmd-tf", "fedrs", "fedlc"),
    "drift less: local training": (
        "fedprox", "scaffold", "feddyn", "fedcurv", "moon", "fedproto", "feddecorr", "fedsam",
    ),
    "average better: server": ("fedavgm", "fednova", "fedexp", "fedacg", "feddf", "ccvr"),
    "personal models": ("fedrep", "fedbabu", "ditto"),
    "controls and ablations": ("fedavg-kd", "fedavg-ls", "grid"),
}  # fmt: skip
