"""What the workers' server imports before it forks. Importing is all it may do: threads do not survive a fork."""

import torch  # noqa: F401, TID253
import transformers  # noqa: F401, TID253
import transformers.generation  # noqa: F401, TID253
import transformers.modeling_utils  # noqa: F401, TID253
