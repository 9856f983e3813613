"""What the workers' server does before it forks: it imports, and nothing else. Threads do not survive a fork."""

import os
import signal

# Ctrl-C reaches every process of the terminal; the parent ends the workers, and an import need not say how far it was.
signal.signal(signal.SIGINT, signal.SIG_IGN)

# The parent fetches what the user asked for; nothing in a worker has a reason to reach the network.
os.environ["HF_HUB_OFFLINE"] = "1"
# hardware= counts cards as the driver does; torch would else put the fastest first.
os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
# NVML then answers torch.cuda.is_available(), without a CUDA context, which could not be forked.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

import torch  # noqa: E402, F401, TID253
import transformers  # noqa: E402, TID253
import transformers.generation  # noqa: E402, TID253
import transformers.modeling_utils  # noqa: E402, F401, TID253
